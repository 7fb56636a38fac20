"""What must hold of a finished run, and of two runs of one recipe and secret, one of which was killed again and again."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from frognano.rl.checkpoint import load_weights
from frognano.runs import RunStore
from frognano.runs.rows import RolloutKey


def own_rules(run: Path, *, finished: bool = True) -> list[str]:
    """Which of the run store's own promises are broken. Of one that stopped in the middle, less is asked: what a kill left
    goes at the next opening, and not all that the journal asks for is there yet."""
    problems = []
    with closing(sqlite3.connect(f"file:{run / 'index.sqlite'}?mode=ro", uri=True)) as db:
        if (said := db.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            problems.append(f"{run.name}: the index is damaged: {said}")
        kept = db.execute("SELECT series, step, vals FROM metrics ORDER BY rowid").fetchall()
    if not finished:
        with RunStore.open(run):
            pass
    told = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if told != [{"series": series, "step": step, "values": json.loads(values)} for series, step, values in kept]:
        problems.append(f"{run.name}: metrics.jsonl is not what the index holds")
    with RunStore.open(run, read_only=True) as store:
        rows = store.rollouts()
        count = Counter(row.key for row in rows)
        problems += [f"{run.name}: {key} is there {n} times" for key, n in count.items() if n > 1]
        problems += [
            f"{run.name}: {key} is named by the journal and lost"
            for key in _named(store)
            if finished and key not in count
        ]
        problems += [
            f"{run.name}: {r.candidate_id} was given up" for r in store.rejections() if r.reason.startswith("infra")
        ]
        files = {f.name.removesuffix(".json.gz") for f in (run / "trajectories").iterdir()}
        if files != {row.trajectory_id for row in rows} or len(files) != len(rows):
            problems.append(f"{run.name}: {len(files)} trajectory files, {len(rows)} rows")
        for row in rows:
            held = store.trajectory(row.trajectory_id)
            if (held.policy, held.task_id, held.rung) != (row.key.policy, row.key.task_id, row.key.rung):
                problems.append(f"{run.name}: the file of {row.key} holds another rollout")
    return problems


def _named(store: RunStore) -> Iterator[RolloutKey]:
    """Every rollout that the journal says was trained on, or that measured a policy."""
    train, measured = store.config["train"], store.config["eval"]
    policies = ["base", *store.steps("policies/").values()]
    for iteration in range(1, train["iterations"] + 1):
        for step, value in store.steps(f"iter{iteration}/").items():
            _, kind, update = (*step.split("/"), "")[:3]
            before = int(update) - 1 if update.isdigit() else 0
            policy = policies[iteration - 1] if not before else f"i{iteration}u{before}"
            if kind == "pilot":
                for task, rung, _, _, confirmed in value:
                    for start, n in confirmed:
                        purpose = f"iter{iteration}/confirm"
                        yield from (RolloutKey(task, rung, policy, purpose, start + i) for i in range(n))
            elif kind == "batch":
                for task, rung in value:
                    purpose = f"iter{iteration}/train/{update}"
                    yield from (RolloutKey(task, rung, policy, purpose, i) for i in range(train["group_size"]))
    for purpose, samples in (("heldout", measured["samples"]), ("valid", measured["valid_samples"])):
        for task in store.tasks(purpose):
            for policy in dict.fromkeys(policies):
                if purpose == "heldout" or policy == "base":
                    yield from (RolloutKey(task.id, task.rung, policy, purpose, i) for i in range(samples))


def compare(whole: Path, killed: Path, *, exact: bool) -> tuple[dict[str, str], list[str]]:
    """(what is equal and how far, what had to be equal and is not)."""
    with RunStore.open(whole, read_only=True) as a, RunStore.open(killed, read_only=True) as b:
        must: dict[str, tuple[Any, Any]] = {}
        for purpose in a.task_purposes():
            must[f"task ids of {purpose}"] = tuple([t.id for t in s.tasks(purpose)] for s in (a, b))
        must["rejected candidates"] = tuple([(r.candidate_id, r.reason) for r in s.rejections()] for s in (a, b))
        drawn = {
            "updates": tuple(sum("/update/" in k for k in s.steps()) for s in (a, b)),
            "journal": tuple({k: v for k, v in s.steps().items() if not k.startswith("phase/")} for s in (a, b)),
            "decisions of the pilot": tuple([(d.task_id, d.action, d.detail) for d in s.decisions()] for s in (a, b)),
            "rollout keys": tuple({r.key for r in s.rollouts()} for s in (a, b)),
            "verdicts": tuple({r.key: r.status for r in s.rollouts()} for s in (a, b)),
            "training metrics": tuple(_timeless(s) for s in (a, b)),
        }
        (must if exact else drawn).update(drawn)
        tokens, logprobs, most, common = _sampled(a, b)
        weights, delta, names = _weights(whole, killed)
        problems = [f"{what}: {x!s:.300} and {y!s:.300}" for what, (x, y) in must.items() if x != y]
        if exact and (tokens < common or logprobs < common):
            problems.append(f"{common - tokens} rollouts have other tokens, {common - logprobs} other log-probs")
        if exact and weights < len(names):
            problems.append(f"weights of {len(names) - weights} policies differ, by up to {delta:g}")
        every = must | drawn
        said = {what: f"{'equal' if x == y else 'not equal'} ({_size(x)})" for what, (x, y) in every.items()}
        said["sampled tokens"] = f"equal in {tokens} of {common} rollouts"
        said["log-probs"] = f"bit-equal in {logprobs} of {common}, largest difference {most:g}"
        said["weights"] = (
            f"bit-equal in {weights} of {len(names)} checkpoints ({', '.join(names)}), largest difference {delta:g}"
        )
        return said, problems


def _size(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{len(value)}"


def _timeless(store: RunStore) -> list[tuple[int, dict[str, float]]]:
    return [(n, {k: v for k, v in values.items() if not k.endswith("seconds")}) for n, values in store.metrics("train")]


def _sampled(a: RunStore, b: RunStore) -> tuple[int, int, float, int]:
    """(rollouts with equal tokens, with equal log-probs too, largest difference of a log-prob, rollouts in both)."""
    other = {r.key: r.trajectory_id for r in b.rollouts()}
    tokens = logprobs = common = 0
    most = 0.0
    for row in a.rollouts():
        if row.key not in other:
            continue
        common += 1
        one, two = (s.trajectory(i).segments for s, i in ((a, row.trajectory_id), (b, other[row.key])))
        if [s.ids for s in one] != [s.ids for s in two]:
            continue
        tokens += 1
        pairs = [(p, q) for s, t in zip(one, two, strict=True) for p, q in zip(s.logprobs, t.logprobs, strict=True)]
        logprobs += all(p == q for p, q in pairs)
        most = max([most, *(abs(p - q) for p, q in pairs)])
    return tokens, logprobs, most, common


def _weights(whole: Path, killed: Path) -> tuple[int, float, list[str]]:
    names = sorted({f.name for run in (whole, killed) for f in (run / "checkpoints").iterdir()})
    same, most = 0, 0.0
    for name in names:
        places = [run / "checkpoints" / name for run in (whole, killed)]
        if not all(p.is_dir() for p in places):
            continue
        one, two = map(load_weights, places)
        same += one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
        most = max([most, *(float((one[k] - two[k]).abs().max()) for k in one)])
    return same, most, names
