"""Calibration: decisions, winner's curse, foreign evaluations. Allocation: hopeless classes, saturation, weights."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from frognano.records import PolicyEvaluation
from frognano.taskpilot.allocation import (
    ClassBook,
    Waiting,
    allocate,
    next_rung,
    pick,
    saturated,
    step_weight,
)
from frognano.taskpilot.calibration import (
    Admit,
    Binding,
    Calibration,
    CalibrationConfig,
    Confirm,
    Drop,
    Screen,
    calibrate,
)

PI0 = Binding("pi0", "leaf", "2x60")
RUNGS = (0, 1, 2, 3, 4, 5)
CONFIG = CalibrationConfig.model_validate({})
HALF = CalibrationConfig.model_validate({"rule": {"high": 0.5}})


def ev(
    rung: int, k: int, n: int, stage: Literal["screen", "confirm"] = "screen", policy: str = "pi0"
) -> PolicyEvaluation:
    return PolicyEvaluation(policy=policy, harness="leaf", budget="2x60", rung=rung, n=n, k=k, stage=stage)


def after(*evaluations: PolicyEvaluation, config: CalibrationConfig = CONFIG, start: int = 4) -> Calibration:
    return calibrate(evaluations, RUNGS, start, PI0, config)


def test_decisions() -> None:
    assert after().action == Screen(4)
    assert after(ev(4, 1, 4)).action == Confirm(8, pytest.approx(0.2))
    assert after(ev(4, 1, 4), ev(4, 3, 8, "confirm")).action == Admit(3, 8)
    hard = after(ev(4, 0, 4))
    assert (hard.rung, hard.action) == (5, Screen(4))
    assert after(ev(4, 0, 4), ev(5, 0, 4)).action == Drop("too_hard")
    easy = after(ev(4, 4, 4))
    assert (easy.rung, easy.action) == (3, Screen(4))
    assert after(ev(1, 4, 4), ev(0, 4, 4), start=1).action == Drop("too_easy")
    assert after(ev(4, 4, 4), ev(3, 0, 4)).action == Drop("between_rungs")
    assert after(ev(4, 4, 4), ev(3, 4, 4), ev(2, 4, 4)).action == Drop("refinements_exhausted")
    assert after(ev(4, 2, 4), ev(4, 0, 8, "confirm")).rung == 5
    assert after(ev(4, 2, 4), ev(4, 6, 8, "confirm"), config=HALF).rung == 3
    assert after(ev(4, 2, 4), ev(4, 4, 8, "confirm"), config=HALF).action == Admit(4, 8)


def test_a_screen_of_one_admits_nothing() -> None:
    one = CalibrationConfig.model_validate({"screen_n": 1})
    assert after(config=one).action == Screen(1)
    assert after(ev(4, 1, 1), config=one).action == Confirm(8, pytest.approx(0.25))
    assert after(ev(4, 1, 1), ev(4, 3, 8, "confirm"), config=one).action == Admit(3, 8)
    assert after(ev(4, 1, 1), ev(4, 8, 8, "confirm"), config=one).rung == 3
    assert after(ev(4, 0, 1), config=one).rung == 5
    book = ClassBook()
    book.add(("op", 4), 1, 1)
    book.add(("op", 4), 2, 2)
    book.add(("op", 4), 0, 1)
    assert (book.learnable["op", 4], book.screened["op", 4]) == (1, 3)


def test_screening_samples_never_count_for_admission() -> None:
    assert after(ev(4, 3, 4), ev(4, 0, 8, "confirm"), ev(5, 0, 4)).action == Drop("too_hard")


def test_lost_rollouts_are_asked_for_again() -> None:
    assert after(ev(4, 0, 3)).action == Screen(1)
    assert after(ev(4, 1, 4), ev(4, 1, 5, "confirm")).action == Confirm(3, pytest.approx(0.2))


def test_another_policys_evaluation_is_ignored() -> None:
    assert after(ev(4, 1, 4, policy="pi1"), ev(4, 4, 8, "confirm", policy="pi1")).action == Screen(4)


def test_a_rung_that_the_task_lacks_starts_at_its_neighbour() -> None:
    assert calibrate([], (0, 2), 4, PI0, CONFIG).rung == 2


def admitted_share(p: float, trials: int = 3000) -> float:
    rng = random.Random(1)
    admitted = 0
    for _ in range(trials):
        done: list[PolicyEvaluation] = []
        while not isinstance((state := calibrate(done, (5,), 5, PI0, CONFIG)).action, Admit | Drop):
            assert isinstance(state.action, Screen | Confirm)
            stage: Literal["screen", "confirm"] = "screen" if isinstance(state.action, Screen) else "confirm"
            done.append(ev(5, sum(rng.random() < p for _ in range(state.action.n)), state.action.n, stage))
        admitted += isinstance(state.action, Admit)
    return admitted / trials


def test_a_hopeless_task_is_rarely_admitted_and_a_learnable_one_mostly() -> None:
    assert admitted_share(0.02) < 0.03
    assert admitted_share(0.5) > 0.8


def spent(use_book: bool, seed: int) -> tuple[int, int]:
    """Rollouts on the hopeless class and learnable tasks found, with a budget of 400 over a mixed queue."""
    rng = random.Random(seed)
    rate = {"good": 0.3, "bad": 0.0}
    queue = [("good" if i % 2 else "bad", i) for i in range(400)]
    book, empty = ClassBook(), ClassBook()
    left, on_bad, found = 400, 0, 0
    while left >= 4:
        waiting = [Waiting(f"{c}-{i}", (c, 4), Screen(4)) for c, i in queue[:64]]
        for task, n in allocate(waiting, book if use_book else empty, min(32, left), seed):
            cls = task.split("-")[0]
            k = sum(rng.random() < rate[cls] for _ in range(n))
            queue.remove((cls, int(task.split("-")[1])))
            book.add((cls, 4), k, n)
            left -= n
            on_bad += n if cls == "bad" else 0
            found += 0 < k < n
    return on_bad, found


def test_a_hopeless_class_costs_less_than_under_uniform_allocation() -> None:
    by_posterior = [spent(True, s) for s in range(5)]
    uniform = [spent(False, s) for s in range(5)]
    assert sum(b for b, _ in by_posterior) < 0.6 * sum(b for b, _ in uniform)
    assert sum(f for _, f in by_posterior) > 1.2 * sum(f for _, f in uniform)


def test_allocation_keeps_the_budget_serves_confirmations_first_and_repeats_itself() -> None:
    waiting = [Waiting(f"t{i}", ("op", 4), Screen(4)) for i in range(20)] + [Waiting("c", ("op", 4), Confirm(8))]
    chosen = allocate(waiting, ClassBook(), 25, 0)
    assert chosen[0] == ("c", 8)
    assert sum(n for _, n in chosen) == 24
    assert chosen == allocate(waiting, ClassBook(), 25, 0)
    assert chosen != allocate(waiting, ClassBook(), 25, 1)


def test_the_confirmations_that_a_budget_pays_for_are_not_those_nearest_to_the_target() -> None:
    screens = {"rare": ev(4, 1, 8), "half": ev(4, 2, 4), "often": ev(4, 3, 4)}
    waiting = [Waiting(t, ("op", 4), after(e).action) for t, e in screens.items()]
    assert allocate(waiting, ClassBook(), 8, 0) == [("half", 8)]
    assert [t for t, _ in allocate(waiting, ClassBook(), 24, 0)] == ["half", "often", "rare"]


def test_screens_are_begun_that_no_budget_is_left_to_confirm() -> None:
    """Half of the tasks look learnable here, so a screen of 3 is expected to ask for 4 more."""
    book = ClassBook()
    for i in range(1000):
        book.add(("op", 4), i % 2, 3)
    waiting = [Waiting(f"t{i}", ("op", 4), Screen(3)) for i in range(20)]
    assert sum(n for _, n in allocate(waiting, book, 30, 0)) == 30
    assert sum(n for _, n in allocate(waiting, book, 30, 0, left=30, confirm_n=8)) == 12
    assert allocate(waiting, book, 30, 0, left=6, confirm_n=8) == []
    passed = [*waiting, *(Waiting(f"c{i}", ("op", 4), Confirm(8)) for i in range(3))]
    chosen = allocate(passed, book, 16, 0, left=30, confirm_n=8)  # the third waits, and what it needs stays there
    assert [t for t, _ in chosen] == ["c0", "c1"]
    assert sum(n for t, n in allocate(passed, book, 30, 0, left=32, confirm_n=8) if t.startswith("t")) == 3


def test_saturation_needs_a_streak_and_ignores_lost_groups() -> None:
    won, lost, mixed = [True] * 4, [False] * 4, [True, False]
    assert saturated([mixed, won, won], 2) == 1
    assert saturated([won, [], won], 2) == 1
    assert saturated([lost, lost, lost], 3) == -1
    assert saturated([won], 2) == saturated([won, lost], 2) == saturated([], 1) == 0
    assert (next_rung(RUNGS, 4, 1), next_rung(RUNGS, 4, -1), next_rung(RUNGS, 0, 1), next_rung(RUNGS, 5, -1)) == (
        3,
        5,
        None,
        None,
    )


def test_weights_favour_the_frontier() -> None:
    assert [step_weight(*x) for x in ((0, 0), (0, 4), (4, 4), (1, 4))] == [0.5, 0.15, 0.05, 1.0]
    counts = {"a": 0, "b": 0, "c": 0}
    for seed in range(300):
        for task in pick({"a": 1.0, "b": 0.15, "c": 0.0}, 1, seed):
            counts[task] += 1
    assert counts["a"] > 220
    assert counts["b"] > 10
    assert counts["c"] == 0
