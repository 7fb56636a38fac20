"""Several runs together must not hide one that failed, count a task twice, or call a gain of format one of skill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from frognano.analysis.experiment import write_summary
from frognano.analysis.pooled import Measured, gain, parts, rate, read_run, recalled
from frognano.errors import FrogNanoError
from frognano.records import Status
from frognano.runs import RolloutKey, RolloutRow, RunStore
from frognano.runs.fork import FORK, fork_run
from runs import made

CALLS = {"calls": 1, "failed_calls": 0}


def build(path: Path, prefix: str, solved: dict[str, list[bool]]) -> Path:
    """A run whose policies solved the first, second … held-out task; two tasks a function, two repositories."""
    with RunStore.create(path, {"run": {"seed": 0}}) as store:
        for policy, outcomes in solved.items():
            for n, ok in enumerate(outcomes):
                task = made.task(f"{prefix}task000{n}", f"f{n // 2}")
                task = task.model_copy(update={"origin": task.origin.model_copy(update={"name": f"repo{n % 2}"})})
                store.put_task(task, "heldout")
                put(store, RolloutKey(task.id, 1, policy, "heldout", 0), ok)
        store.finish("secret", prefix)
        store.finish("fixed/heldout", [f"{prefix}task000{n}" for n in range(4)])
        store.finish("policies/1", "i1u2")
    return path


def put(store: RunStore, key: RolloutKey, ok: bool) -> None:
    name = f"{key.policy}-{key.purpose}-{key.task_id}-{key.index}".replace("/", "-")
    held = made.trajectory(name, key.task_id, key.policy).model_copy(update={"rung": key.rung})
    store.put_rollout(key, held, made.verdict(Status.RESOLVED if ok else Status.NOT_RESOLVED), CALLS)


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    first = build(tmp_path / "a" / "seed-0", "a", {"base": [False] * 4, "i1u2": [True, True, False, False]})
    return [first, build(tmp_path / "a" / "seed-1", "b", {"base": [True, *[False] * 3], "i1u2": [True] * 4})]


def measured(paths: list[Path], which: int) -> list[Measured]:
    out: list[Measured] = []
    for path in paths:
        with RunStore.open(path, read_only=True) as store:
            run = read_run(store, path.name)
        out += run.at(run.policies[which])
    return out


def test_pooled_rates_count_every_task_of_every_seed_once(two: list[Path]) -> None:
    before, after = measured(two, 0), measured(two, -1)
    assert (rate(before).solved, rate(before).trials) == (1, 8)
    assert (rate(after).solved, rate(after).trials) == (6, 8)
    assert gain(before, after).estimate == pytest.approx(5 / 8)
    assert {m.trial(by_repository=True).cluster for m in after} == {"repo0", "repo1"}
    assert len({m.trial().cluster for m in after}) == 4


def test_format_and_skill_add_up_to_the_gain(two: list[Path]) -> None:
    before, after = measured(two, 0), measured(two, -1)
    cut = [m._replace(row=_without_edit(m)) if i % 2 and not m.row.resolved else m for i, m in enumerate(before)]
    p = parts(cut, after)
    assert p.format > 0
    assert p.format + p.skill == pytest.approx(5 / 8)
    assert parts(after, after).format == parts(after, after).skill == 0


def _without_edit(m: Measured) -> RolloutRow:
    return replace(m.row, valid_edit=False)


def test_forgetting_shows_when_the_last_policy_fails_what_its_own_iteration_solved(two: list[Path]) -> None:
    with RunStore.open(two[0]) as store:
        store.finish("policies/2", "i2u2")
        for policy, ok in (("base", False), ("i1u2", True), ("i2u2", False)):
            put(store, RolloutKey("atask0000", 1, policy, "recall/1", 0), ok)
        roles = recalled([read_run(store, "x")])[1]
    assert {role: [m.row.resolved for m in held] for role, held in roles.items()} == {
        "π0": [False],
        "own": [True],
        "last": [False],
    }


def test_the_tables_name_runs_that_are_missing(two: list[Path], tmp_path: Path) -> None:
    folders = {"a/seed-0": two[0], "a/seed-1": two[1], "a/seed-2": tmp_path / "a" / "seed-2"}
    with pytest.raises(FrogNanoError, match="out is not there"):
        write_summary(tmp_path / "out", folders, "x.toml")
    (tmp_path / "out").mkdir()
    page = write_summary(tmp_path / "out", folders, "x.toml").read_text()
    assert "Not all runs are done" in page
    assert "a/seed-2" in page
    assert "6/8 = 75.0 %" in page
    assert "as far as they came" not in page


def test_a_run_that_has_not_ended_is_not_shown_as_one_that_has(two: list[Path], tmp_path: Path) -> None:
    folders = {"a/seed-0": two[0], "a/seed-1": two[1]}
    (tmp_path / "out").mkdir()
    page = write_summary(tmp_path / "out", folders, "x.toml", unfinished={"a/seed-1"}).read_text()
    assert "**Shown as far as they came**: a/seed-1." in page


def test_arms_differ_by_the_luck_of_their_seeds(two: list[Path], tmp_path: Path) -> None:
    """Three policies of one recipe lie points apart: the differences of the single seeds and what they say together."""
    others = []
    for path, prefix, solved in zip(two, "ab", ([True, False, False, False], [True, True, False, False]), strict=True):
        others.append(build(tmp_path / "o" / path.name, prefix, {"base": [False] * 4, "i1u2": solved}))
    folders = {f"a/{p.name}": p for p in two} | {f"o/{p.name}": p for p in others}
    lines = write_summary(tmp_path, folders, "x.toml").read_text().splitlines()
    of = {row[1].strip(): row[4].strip() for row in (line.split("|") for line in lines) if len(row) == 11}
    assert of["a"] == "50.0, 100.0"
    assert of["o"] == "-25.0, -50.0: -37.5 ± 158.8"  # 12.706 · 17.68 / √2


def test_the_numbers_beside_the_tables_give_the_same_rates(two: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    out = write_summary(tmp_path / "out", {"a/seed-0": two[0], "a/seed-1": two[1]}, "x.toml").with_suffix(".json")
    said = json.loads(out.read_text())
    rows = [dict(zip(said["columns"], row, strict=True)) for run in said["arms"]["a"] for row in run["rollouts"]]
    solved = [r["resolved"] for r in rows if r["policy"] == "i1u2" and r["purpose"] == "heldout"]
    assert (sum(solved), len(solved)) == (6, 8)
    run = said["arms"]["a"][0]
    assert {run["tasks"][row[0]]["repository"] for row in run["rollouts"]} == {"repo0", "repo1"}
    assert len(out.read_text().splitlines()) < 3 * len(rows) + 80  # a line a rollout, or a diff of it says nothing


def test_arms_without_a_common_task_are_not_compared(two: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    page = write_summary(tmp_path / "out", {"a/seed-0": two[0], "b/seed-0": two[1]}, "x.toml").read_text()
    assert "+nan" not in page
    assert "| b | 4/4 = 100.0 % (51.0–100.0) | — | — |" in page


def test_a_fork_has_what_was_made_before_training_and_nothing_after(two: list[Path], tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    for task in ("atask0000", "atask0001", "atask0002", "atask0003"):
        (two[0] / "tasks" / task).mkdir()
    (tmp_path / "fork.tmp").mkdir()  # what a killed process left
    kept = {"steps": ("secret", "fixed/"), "tasks": ("heldout",), "rollouts": (("heldout", "base"),)}
    fork_run(two[0], fork, {"run": {"seed": 1}}, **kept)
    with RunStore.open(fork, {"run": {"seed": 1}}) as store:
        assert store.steps().keys() == {"secret", "fixed/heldout", FORK}
        name = store.done(FORK)
        assert [t.id for t in store.tasks()] == ["atask0000", "atask0001", "atask0002", "atask0003"]
        rows = store.rollouts()
        assert {r.key.policy for r in rows} == {"base"}
        assert all(store.trajectory(r.trajectory_id).task_id == r.key.task_id for r in rows)
        store.finish("policies/1", "mine")
    fork_run(two[0], fork, {"run": {"seed": 1}}, **kept)  # again: it is left as it is
    with RunStore.open(fork, read_only=True) as store:
        assert (store.done("policies/1"), store.done(FORK)) == ("mine", name)
    fork_run(two[0], tmp_path / "other", {"run": {"seed": 1}}, **kept)
    with RunStore.open(tmp_path / "other", read_only=True) as store:
        assert store.done(FORK) != name  # or a tracker would take both for one run
    with RunStore.open(two[0], read_only=True) as store:
        assert store.done("policies/1") == "i1u2"
        assert len(store.rollouts()) == 8
