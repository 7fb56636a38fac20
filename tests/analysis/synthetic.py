"""A run as the loop would leave it, made up: enough of everything for the report to show."""

from __future__ import annotations

import math
import random
from pathlib import Path

from frognano.records import ExitReason, Status, Turn
from frognano.runs import RolloutKey, RunStore
from runs import made

REPOSITORIES = ("toolz", "inflection", "humanize", "voluptuous", "xmltodict")
PATCH = b"""diff --git a/frogs/core.py b/frogs/core.py
--- a/frogs/core.py
+++ b/frogs/core.py
@@ -3,3 +3,3 @@ def chunk(items, size):
     for start in range(0, len(items), size):
-        yield items[start : start + size + 1]
+        yield items[start : start + size]  # <b>not bold</b> & safe
"""


def build(path: Path, tasks: int = 24, updates: int = 30) -> RunStore:
    source = random.Random(5)
    store = RunStore.create(
        path, {"name": "pocket <3 iterations>", "seed": 1, "model": {"name": "SmolLM2-135M-Instruct"}}
    )

    def rollout(key: RolloutKey, p: float) -> None:
        number = len(store.rollouts())
        resolved = source.random() < p
        status = (
            Status.RESOLVED if resolved else source.choice([Status.NOT_RESOLVED, Status.NO_PATCH, Status.PATCH_FAILED])
        )
        if source.random() < 0.01:
            status = Status.INFRASTRUCTURE_ERROR
        exit_reason = (
            ExitReason.AGENT if resolved else source.choice([ExitReason.AGENT, ExitReason.MAX_TURNS, ExitReason.STUCK])
        )
        t = made.trajectory(f"t{number}", key.task_id, key.policy)
        turn = t.turns[0].model_copy(update={"raw": '<edit path="frogs/core.py">\n- x\n+ y\n</edit>'})
        last = Turn(
            raw="The loop no longer yields one item too many. " * 3, text="", finish="stop", generated_tokens=30
        )
        patch = b"" if status is Status.NO_PATCH else PATCH
        t = t.model_copy(update={"exit_reason": exit_reason, "patch": patch, "rung": key.rung, "turns": (turn, last)})
        store.put_rollout(key, t, made.verdict(status))

    for n in range(tasks):
        task = made.task(f"heldout{n:02}", f"function_{n % 9}")
        store.put_task(
            task.model_copy(update={"origin": task.origin.model_copy(update={"name": REPOSITORIES[n % 5]})}), "heldout"
        )
    for policy, p in (("pi0", 0.07), ("pi1", 0.2), ("pi2", 0.33), ("pi3", 0.45)):
        for task in store.tasks("heldout"):
            for rung in (0, 1):
                rollout(RolloutKey(task.id, rung, policy, "heldout", 0), p * (0.3 + 0.7 * rung))
    operators = ("comparison", "boundary", "arithmetic", "dropped_statement", "swapped_arguments")
    for iteration in (1, 2, 3):
        for n in range(12):
            task = made.task(f"iter{iteration}task{n:02}", f"train_{n}_with_a_rather_long_name")
            lineage = task.lineage.model_copy(update={"operator": operators[n % 5]})
            p = source.betavariate(0.6, 1.2)
            for purpose, rung in (("screen", 0), ("confirm", 1)):
                for i in range(6):
                    rollout(
                        RolloutKey(task.id, rung, f"pi{iteration - 1}", f"iter{iteration}/{purpose}", i),
                        min(1, p * (1 + rung)),
                    )
            store.put_task(task.model_copy(update={"lineage": lineage}), f"iter{iteration}")
            store.decide(f"iter{iteration}/{n}", task.id, "admit" if n % 4 else "refine", {"p": p, "moved": "up"})
        store.finish(f"phase/iter{iteration}/pilot", {"seconds": 150 + 10 * iteration})
        store.finish(f"phase/iter{iteration}/train", 210.5)
    for n in range(37):
        store.reject(
            f"toolz:{n}", source.choice(["no_f2p", "unstable", "does_not_import", "too_many_failures"]), {"tests": n}
        )
    for step in range(1, updates + 1):
        x = step / updates
        store.log(
            "train",
            step,
            {
                "iteration": 1 + (step - 1) * 3 // updates,
                "solve_rate": 0.3 + 0.2 * x + source.gauss(0, 0.04),
                "reward": 0.3 + 0.2 * x,
                "valid_edit": 0.5 + 0.4 * x,
                "entropy": math.nan if step == 4 else 0.9 - 0.3 * x + source.gauss(0, 0.02),
                "mean_abs_diff": 3e-4 + source.random() * 1e-4,
                "max_abs_diff": 0.1 + 0.1 * source.random(),
                "max_rho": 1.2 + source.random(),
                "masked_pos": 0.01 * source.random(),
                "masked_neg": 0.02 * source.random(),
                "grad_norm": 0.6 + source.random(),
                "groups": 8,
                "groups_kept": 4 + step % 3,
                "groups_all0": 2 - step % 2,
                "groups_all1": 1,
                "sample_seconds": 14 + source.random(),
                "train_seconds": 6 + source.random(),
                "grade_seconds": 2.0,
                "truncated": 0.1 * source.random(),
                "tool_errors": 0.3 - 0.2 * x,
                "turns": 2.4 - x,
                "length": 80 - 20 * x,
            },
        )
        if step % 5 == 0:
            store.log("valid", step, {"solve_rate": 0.1 + 0.3 * x, "n": 40})
    return store


if __name__ == "__main__":
    import sys

    from frognano.analysis.report import write_report

    with build(Path(sys.argv[1])) as built:
        print(write_report(built))
