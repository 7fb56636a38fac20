"""Graded rollouts per CPU-minute without the cost of sampling, and a grade against bare pytest of the same tests.

    python benchmarks/rollouts.py --tasks 3 --rounds 6 --out docs/results/rollouts

Rollouts: a real Leaf run in a real box through `RolloutPool`, whose model is a script: an Edit call with the gold line or
with a wrong one (another text for each rollout, so that no grade is taken from the store), and a word that it is done. The
patch is graded in a box of its own.

A grade: `Grader.grade` of the gold patch, against `python -m pytest` of the same test ids on the host, on a copy of the tree
with that patch, without a box, no bytecode left from before; both in turn, in CPU seconds of the whole process tree. Each pair
of neighbours gives one ratio, and the table their median and quartiles.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import by_repository, cpu, repository_options

from frognano.harness.base import Budget
from frognano.harness.leaf.agent import Leaf
from frognano.loop.session import cache_folder
from frognano.models.base import Completion, Conversation, Sampling
from frognano.records import Task, ToolCall
from frognano.rollouts.pool import RolloutPool, Wanted
from frognano.rollouts.rollout import Judge, Setting
from frognano.runs.store import RunStore
from frognano.sandbox.base import Limits
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.taskpilot.sources.mutation import Mutation
from frognano.taskpilot.sources.mutation_config import MutationConfig
from frognano.taskpilot.workshop import Prepared, Workshop
from frognano.tasks.grading import Grader, GradingConfig, build_judged_tree
from frognano.tasks.repository import load_repositories
from frognano.tasks.snapshot import fetch_snapshot
from frognano.tasks.trees import Trees
from frognano.tasks.validation_config import ValidationConfig

LIMITS = Limits.model_validate({"memory_mb": 512, "disk_mb": 64, "cpu_seconds": 20.0, "wall_seconds": 900.0})


@dataclass
class Script:
    """A model that has its two replies written down. Even rollouts repair, odd ones do not."""

    mutation: Mutation
    number: int
    policy: str = "script"
    asked: int = 0

    async def complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        self.asked += 1
        if self.asked > 1:
            return Completion("Done.", "Done.", (), "stop", 2)
        m, mark = self.mutation, f"  # {self.number}"
        new = m.before_line if self.number % 2 == 0 else m.after_line
        arguments = {"file_path": f"/repo/{m.file}", "old_string": m.after_line, "new_string": new + mark}
        return Completion("", "", (ToolCall(id="1", name="Edit", arguments=arguments),), "stop", 40)

    def close(self) -> None: ...


async def make_tasks(workshop: Workshop, name: str, count: int) -> tuple[Prepared, list[tuple[Task, Mutation]]]:
    prepared = await workshop.prepare(await fetch_snapshot(load_repositories()[name], workshop.cache))
    made: list[tuple[Task, Mutation]] = []
    for proposal in workshop.proposals([prepared], "all", 0.2, 5, MutationConfig(unique_line=True)):
        mutation = proposal.mutation
        if mutation.after_line.rstrip().endswith((",", "(", "[", "{", "\\", ":")) or not mutation.after_line.strip():
            continue  # where a comment behind the line, which makes each patch another one, could change it
        task = await workshop.make(proposal, 10**6)
        if isinstance(task, Task):
            made.append((task, mutation))
        if len(made) == count:
            break
    await workshop.close()
    return prepared, made


async def graded_rollouts(
    place: Path,
    boxes: BubblewrapSandboxes,
    trees: Trees,
    tasks: list[tuple[Task, Mutation]],
    each: int,
    concurrency: int,
) -> dict[str, Any]:
    with RunStore.create(place, {}) as store:
        judge = Judge(Grader(boxes, trees, GradingConfig()), store)
        setting = Setting(Leaf(), Sampling(), Budget(max_turns=2), LIMITS)
        pool = RolloutPool(store, setting, boxes, trees, judge, concurrency=concurrency, seed=0)
        for task, _ in tasks:
            await trees.solver(task)
        by_name = {t.id: m for t, m in tasks}
        numbers = iter(range(10**9))
        wanted = [Wanted(t, "benchmark", i) for t, _ in tasks for i in range(each)]

        def model(session: str, seed: int) -> Script:
            task_id = next(t for t in by_name if t in session)
            return Script(by_name[task_id], next(numbers))

        a = cpu()
        rows = await pool.run(wanted, "script", model)
        spent = cpu() - a
    verdicts = [r.status.value if r else "lost" for r in rows]
    return {
        "rollouts": len(rows),
        "cpu_seconds": spent,
        "verdicts": {v: verdicts.count(v) for v in sorted(set(verdicts))},
    }


def bare(tree: Path, venv: Path, task: Task) -> float:
    """CPU seconds of pytest on the host, fail-to-pass and pass-to-pass in one process; it must pass."""
    env = {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{tree / 'src'}:{tree}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    argv = [venv / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *task.f2p, *task.p2p]
    a = cpu()
    done = subprocess.run(argv, cwd=tree, env=env, capture_output=True)
    spent = cpu() - a
    if done.returncode:
        raise SystemExit(f"pytest on the host fails: {done.stdout[-500:].decode(errors='replace')}")
    return spent


async def grades(
    boxes: BubblewrapSandboxes, trees: Trees, prepared: Prepared, tasks: list[tuple[Task, Mutation]], rounds: int
) -> list[dict[str, Any]]:
    """For each task its pairs of CPU seconds, and how many tests they ran."""
    grader = Grader(boxes, trees, GradingConfig())
    found = []
    for task, _ in tasks:
        ours, host = [], []
        base, hidden = await trees.solver(task), await trees.hidden(task)
        await grader.grade(task, task.gold_patch)  # the first box of a tree packs it
        with tempfile.TemporaryDirectory(dir=boxes.scratch) as scratch:
            tree = Path(scratch) / "repo"
            build_judged_tree(task, base, hidden, task.gold_patch, tree)
            for _ in range(rounds):
                a = cpu()
                verdict = await grader.grade(task, task.gold_patch)
                ours.append(cpu() - a)
                if not verdict.resolved:
                    raise SystemExit(f"gold is not paid: {verdict.evidence}")
                host.append(bare(tree, prepared.venv, task))
        tests = len(task.f2p) + len(task.p2p)
        found.append({"task": task.id, "tests": tests, "grade": ours, "bare": host})
    return found


async def measure(names: list[str], tasks: int, each: int, rounds: int, concurrency: int) -> dict[str, Any]:
    boxes = BubblewrapSandboxes()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=boxes.scratch) as scratch:
        place = Path(scratch)
        place.chmod(0o755)
        workshop = Workshop(place / "tasks", cache_folder(), boxes, ValidationConfig(max_p2p=30), "pocket", "benchmark")
        trees = Trees(place / "tasks", cache_folder(), boxes.scratch)
        for name in names:
            prepared, made = await make_tasks(workshop, name, tasks)
            found[name] = {
                "rollouts": await graded_rollouts(place / f"run-{name}", boxes, trees, made, each, concurrency),
                "grades": await grades(boxes, trees, prepared, made, rounds),
            }
            print(f"  {name} done", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, Any]) -> str:
    out = [
        "| repository | rollouts | verdicts | graded rollouts per CPU-minute | tasks × rounds | CPU-s of a grade "
        "| of bare pytest | ratio: median (quartiles) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    every: list[float] = []
    for name, f in found.items():
        r, tasks = f["rollouts"], f["grades"]
        pairs = [pair for t in tasks for pair in zip(t["grade"], t["bare"], strict=True)]
        ratios = [grade / host for grade, host in pairs]
        every += ratios
        ours, host = (statistics.median(side) for side in zip(*pairs, strict=True))
        verdicts = ", ".join(f"{n} {v}" for v, n in r["verdicts"].items())
        out.append(
            f"| {name} | {r['rollouts']} | {verdicts} | {60 * r['rollouts'] / r['cpu_seconds']:.1f} "
            f"| {len(tasks)} × {len(tasks[0]['grade'])} | {ours:.2f} | {host:.2f} | {spread(ratios)} |"
        )
    out.append(f"| all {len(every)} pairs | | | | | | | {spread(every)} |")
    return "\n".join(out)


def spread(ratios: list[float]) -> str:
    if len(ratios) < 2:
        return f"{ratios[0]:.2f}"
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = repository_options(__doc__, "sqlparse,boltons,more-itertools")
    parser.add_argument("--tasks", type=int, default=2, help="of each repository")
    parser.add_argument("--rollouts", type=int, default=8, help="of each task")
    parser.add_argument("--rounds", type=int, default=3, help="grades of each task's gold patch")
    parser.add_argument("--concurrency", type=int, default=4)
    asked = parser.parse_args()
    settings = asked.tasks, asked.rollouts, asked.rounds, asked.concurrency
    by_repository(
        asked, "Graded rollouts, and a grade beside bare pytest", lambda names: measure(names, *settings), table
    )


if __name__ == "__main__":
    main()
