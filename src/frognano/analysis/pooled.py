"""What several runs say together: rates clustered by function and by repository, and what of a gain is format, what skill."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from frognano.analysis.data import HELDOUT
from frognano.analysis.intervals import Interval, Trial, cluster_difference, cluster_rate
from frognano.records import Task
from frognano.runs import RolloutRow, RunStore
from frognano.runs.rows import BASE

TRAINING = ("screen", "confirm", "train")
SERIES = ("pilot", "train", "valid", "cost")


class Measured(NamedTuple):
    """A rollout with its task. Task ids differ between runs, so that those of several can be pooled."""

    row: RolloutRow
    task: Task

    def trial(self, by_repository: bool = False) -> Trial:
        cluster = self.task.origin.name if by_repository else self.task.group
        return Trial(self.row.key.task_id, cluster, self.row.resolved)


@dataclass(frozen=True)
class Run:
    """What the tables need of one run."""

    name: str
    policies: tuple[str, ...]
    """π0, π1, … as far as it came."""
    heldout: tuple[Measured, ...]
    recall: tuple[Measured, ...]
    tokens_before: tuple[int, ...]
    """Generated for calibration and training before each of the policies was there."""
    training: dict[str, tuple[int, int, int]]
    """Stage to (rollouts, solved, generated tokens): screen, confirm, train."""
    updates: int
    groups: int
    groups_kept: int
    admitted: int
    metrics: dict[str, list[tuple[int, dict[str, float]]]]
    """Series to its rows (step, values): those of `SERIES`, as the run logged them."""

    @property
    def last(self) -> str:
        return self.policies[-1]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, _, tokens in self.training.values())

    @property
    def rollouts(self) -> int:
        return sum(n for n, _, _ in self.training.values())

    @property
    def top(self) -> int:
        return max((m.row.key.rung for m in self.heldout), default=0)

    def at(self, policy: str, rung: int | None = None) -> list[Measured]:
        wanted = self.top if rung is None else rung
        return [m for m in self.heldout if (m.row.key.policy, m.row.key.rung) == (policy, wanted)]


def read_run(store: RunStore, name: str) -> Run:
    tasks = {t.id: t for t in store.tasks()}
    rows = [r for r in store.rollouts() if r.counts]
    stages: dict[str, list[int]] = {stage: [0, 0, 0] for stage in TRAINING}
    by_iteration: Counter[int] = Counter()
    for r in rows:
        parts = r.key.purpose.split("/")
        if parts[0].startswith("iter"):
            by_iteration[int(parts[0].removeprefix("iter"))] += r.generated_tokens
            held = stages[parts[1]]
            held[0], held[1], held[2] = held[0] + 1, held[1] + r.resolved, held[2] + r.generated_tokens
    metrics = {series: store.metrics(series) for series in SERIES}
    train = [values for _, values in metrics["train"]]
    policies = (BASE, *map(str, store.steps("policies/").values()))
    return Run(
        name=name,
        policies=policies,
        tokens_before=tuple(
            sum(n for iteration, n in by_iteration.items() if iteration <= i) for i in range(len(policies))
        ),
        heldout=tuple(Measured(r, tasks[r.key.task_id]) for r in rows if r.key.purpose == HELDOUT),
        recall=tuple(Measured(r, tasks[r.key.task_id]) for r in rows if r.key.purpose.startswith("recall/")),
        training={stage: (n, k, tokens) for stage, (n, k, tokens) in stages.items()},
        updates=len(train),
        groups=int(sum(v["groups_kept"] + v.get("groups_all0", 0) + v.get("groups_all1", 0) for v in train)),
        groups_kept=int(sum(v["groups_kept"] for v in train)),
        admitted=sum(d.action == "admit" for d in store.decisions()),
        metrics=metrics,
    )


class Rate(NamedTuple):
    solved: int
    trials: int
    by_function: Interval
    by_repository: Interval


def rate(measured: Sequence[Measured]) -> Rate:
    by_function = cluster_rate([m.trial() for m in measured])
    by_repository = cluster_rate([m.trial(by_repository=True) for m in measured])
    return Rate(sum(m.row.resolved for m in measured), len(measured), by_function, by_repository)


def gain(before: Sequence[Measured], after: Sequence[Measured], by_repository: bool = False) -> Interval:
    """Paired by task: those that both were tried on."""
    both = {m.row.key.task_id for m in before} & {m.row.key.task_id for m in after}
    kept = [[m.trial(by_repository) for m in side if m.row.key.task_id in both] for side in (before, after)]
    return cluster_difference(*kept)


class Parts(NamedTuple):
    """A gain in solved runs = what more valid edits bring + what more of them right bring; half of the mixed term each:
    Δ(v·s) = Δv·(s0 + s1)/2 + Δs·(v0 + v1)/2, with v the share of valid edits and s what of them is solved."""

    called: tuple[float, float]
    valid_call: tuple[float, float]
    valid_edit: tuple[float, float]
    solved_given_edit: tuple[float, float]
    format: float
    skill: float


def parts(before: Sequence[Measured], after: Sequence[Measured]) -> Parts:
    def share(side: Sequence[Measured], holds: Callable[[RolloutRow], bool]) -> float:
        return sum(holds(m.row) for m in side) / max(1, len(side))

    def both(holds: Callable[[RolloutRow], bool]) -> tuple[float, float]:
        return share(before, holds), share(after, holds)

    v0, v1 = both(lambda r: r.valid_edit)
    w0, w1 = both(lambda r: r.resolved and r.valid_edit)
    s0, s1 = w0 / v0 if v0 else 0.0, w1 / v1 if v1 else 0.0
    called = both(lambda r: r.fresh["calls"] > 0)
    valid = both(lambda r: r.fresh["calls"] > r.fresh["failed_calls"])
    return Parts(called, valid, (v0, v1), (s0, s1), (v1 - v0) * (s0 + s1) / 2, (s1 - s0) * (v0 + v1) / 2)


def counted(measured: Iterable[Measured], key: Callable[[Measured], str]) -> dict[str, tuple[int, int]]:
    """Key to (solved, trials)."""
    solved, trials = Counter[str](), Counter[str]()
    for m in measured:
        trials[key(m)] += 1
        solved[key(m)] += m.row.resolved
    return {name: (solved[name], n) for name, n in sorted(trials.items())}


def recalled(runs: Iterable[Run]) -> dict[int, dict[str, list[Measured]]]:
    """Iteration to role (`π0`, `own`, `last`) to the rollouts of its tasks. The last iteration's own policy is the last."""
    out: dict[int, dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for m in run.recall:
            iteration = int(m.row.key.purpose.split("/")[1])
            roles = {"π0": run.policies[0], "own": run.policies[iteration], "last": run.last}
            for role, policy in roles.items():
                if m.row.key.policy == policy:
                    out[iteration][role].append(m)
    return {i: dict(roles) for i, roles in sorted(out.items())}
