"""One update on one recorded batch: FrogNano's trainer against TRL's GRPOTrainer, a fresh process each, interleaved.

    python benchmarks/trainer.py record runs/seeds/seed-1 batch.json      # from rollouts that a run has made
    python benchmarks/trainer.py run batch.json --repeats 3 --out docs/results/trainer

Both get the same pocket model in float32, its top 15 of 30 layers trainable, the same token ids, masks, sampling log-probs and
rewards, AdamW with the same numbers. TRL comes by `rollout_func` and is installed by scripts/peer.sh into a place of its own.
Before anything is measured the gradients are compared: if they differ, the comparison is void and the command fails.
What OUT.json holds of the same batch, settings and commit is not measured again: a command that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import HERE, earlier, peer, publish

TOLERANCE = 1e-3
"""Of the gradient's norm; float32 and two orders of summation give about 1e-5."""

TRAINERS: dict[str, list[str]] = {
    "FrogNano": [],
    "TRL, 8 rows": ["--rows", "8"],
    "TRL, 8 rows, checkpointing": ["--rows", "8", "--checkpointing"],
    "TRL, 8 rows, head at targets": ["--rows", "8", "--targets-only"],
    "TRL, 8 rows, checkpointing, head at targets": ["--rows", "8", "--checkpointing", "--targets-only"],
}
"""TRL's default is checkpointing on. `head at targets` is a patch that no user of it on a CPU has: see trainer_trl.py."""


def record(run: Path, out: Path, groups: int, size: int) -> None:
    """Groups with signal among the rollouts that confirmed tasks; of a run that has none yet, see `source` in the file."""
    from frognano.runs import RunStore

    with RunStore.open(run, read_only=True) as store:
        by_task: dict[Any, list[Any]] = {}
        for row in store.rollouts():
            if "/confirm" in row.key.purpose or "/train/" in row.key.purpose:
                by_task.setdefault((row.key.task_id, row.key.policy, row.key.purpose), []).append(row)
        chosen = [
            rows[:size] for rows in by_task.values() if 0 < sum(r.resolved for r in rows[:size]) < len(rows[:size])
        ]
        chosen = [rows for rows in chosen if len(rows) == size][:groups]
        source = "groups of the run, as they were trained on"
        if len(chosen) < groups:
            rows = [r for r in store.rollouts() if r.counts]
            if len(rows) < groups * size:
                sys.exit(f"error: {run} has {len(rows)} rollouts, {groups * size} are needed: let it run on")
            chosen = [rows[g * size : (g + 1) * size] for g in range(groups)]
            source = (
                "prompts and replies of the run, put together anew: 8 replies of other tasks a prompt, 2 of 8 solved"
            )
        held = []
        for rows in chosen:
            trajectories = [store.trajectory(r.trajectory_id) for r in rows]
            rewards = (
                [float(r.resolved) for r in rows] if source.startswith("groups") else [1.0, 1.0] + [0.0] * (size - 2)
            )
            made = [
                {
                    "ids": t.segments[0].ids,
                    "loss_mask": t.segments[0].loss_mask,
                    "logprobs": [round(x, 6) for x in t.segments[0].logprobs],
                    "reward": reward,
                }
                for t, reward in zip(trajectories, rewards, strict=True)
            ]
            held.append({"prompt_ids": trajectories[0].segments[0].prompt_ids, "rows": made})
        temperature = trajectories[0].temperature
    out.write_text(json.dumps({"source": source, "temperature": temperature, "groups": held}) + "\n")
    print(f"{out}: {len(held)} groups of {size}; {source}")


def small(batch: dict[str, Any]) -> dict[str, Any]:
    """Two groups of four with short prompts, for the comparison of gradients alone."""
    groups = [
        {
            "prompt_ids": g["prompt_ids"][-64:],
            "rows": sorted(g["rows"], key=lambda r: -r["reward"])[:3] + g["rows"][-1:],
        }
        for g in batch["groups"][:2]
    ]
    for g in groups:
        g["rows"] = [dict(r, reward=float(i == 0)) for i, r in enumerate(g["rows"])]
    return {**batch, "groups": groups}


def start(python: str, script: str, *arguments: object, threads: int = 1) -> dict[str, Any]:
    """What a worker printed last, in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, str(HERE / script), *map(str, arguments)], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"error: {script} failed: {done.stderr.strip()[-1500:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def table(measured: list[dict[str, Any]], trained: int, real: int) -> str:
    lines = [
        "| trainer | threads | runs | CPU-s: median (all) | trained tokens / CPU-s | tokens of the rows / CPU-s | wall s "
        "| peak MB | FrogNano is faster | FrogNano's share of the memory |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for m in measured:
        cells.setdefault((m["trainer"], m["threads"]), []).append(m)

    def middle(runs: list[dict[str, Any]], what: str = "cpu_seconds") -> float:
        return statistics.median(r[what] for r in runs)

    for (name, threads), runs in sorted(cells.items(), key=lambda x: (x[0][1], list(TRAINERS).index(x[0][0]))):
        cpu, peak = middle(runs), max(r["peak_mb"] for r in runs)
        ours, ratio = cells.get(("FrogNano", threads)), "|"
        if ours and name != "FrogNano":
            ratio = f"{cpu / middle(ours):.1f}× | {max(r['peak_mb'] for r in ours) / peak:.2f}×"
        every = ", ".join(f"{r['cpu_seconds']:.1f}" for r in runs)
        lines.append(
            f"| {name} | {threads} | {len(runs)} | {cpu:.1f} ({every}) | {trained / cpu:.1f} | {real / cpu:.0f} "
            f"| {middle(runs, 'wall_seconds'):.1f} | {peak:.0f} | {ratio} |"
        )
    return "\n".join(lines)


def run(given: argparse.Namespace) -> None:
    from frognano.models.pocket import ensure_pocket_model

    model, theirs = ensure_pocket_model(), peer("trl")
    batch = json.loads(given.batch.read_text())
    rows = [(g["prompt_ids"], r) for g in batch["groups"][: given.groups or None] for r in g["rows"]]
    trained, real = sum(sum(r["loss_mask"]) for _, r in rows), sum(len(p) + len(r["ids"]) for p, r in rows)
    settings = {"batch": str(given.batch), "groups": given.groups, "micro_batch_tokens": given.micro_batch_tokens}
    before = earlier(given.out)
    if before and before["settings"] != settings:
        sys.exit(f"error: {given.out} holds another measurement, {before['settings']}: name another file")
    gap = before.get("gradients") or gradients(batch, model, theirs, given.scratch)
    print(f"gradients differ by {gap['gradient_gap']:.1e} of their norm {gap['gradient_norm']:.3f}", file=sys.stderr)
    if not gap["gradient_gap"] < TOLERANCE:
        sys.exit("error: the two trainers compute different gradients: the comparison would be void")
    groups = len(batch["groups"][: given.groups or None])
    head = (
        f"{groups} groups, {len(rows)} rollouts, {trained} trained tokens, {real} tokens in the rows; {batch['source']}. "
        f"The gradients of both differ by {gap['gradient_gap']:.1e} of their norm (on a smaller batch cut from it).\n\n"
    )
    measured: list[dict[str, Any]] = before.get("measured", [])
    for repeat in range(given.repeats):
        for threads in given.threads:
            for name in given.trainers or TRAINERS:
                if sum((m["trainer"], m["threads"]) == (name, threads) for m in measured) > repeat:
                    continue
                ours = name == "FrogNano"
                python, script = (sys.executable, "trainer_ours.py") if ours else (theirs, "trainer_trl.py")
                extra = [*TRAINERS[name], "--groups", given.groups, "--threads", threads]
                extra += ["--micro-batch-tokens", given.micro_batch_tokens] if ours else []
                numbers = start(python, script, given.batch, model, *extra, threads=threads)
                measured.append({"trainer": name, "threads": threads, **numbers})
                said = f"{numbers['cpu_seconds']:.1f} CPU-s, {numbers['peak_mb']:.0f} MB"
                print(f"{name}, {threads}: {said}", file=sys.stderr, flush=True)
                publish(
                    *(given.out, given.machine, "Trainer, side by side with TRL's GRPOTrainer"),
                    head + table(measured, trained, real),
                    [],
                    settings=settings,
                    gradients=gap,
                    measured=measured,
                )
    print(f"\n{head}{table(measured, trained, real)}")


def gradients(batch: dict[str, Any], model: Path, theirs: str, scratch: Path | None) -> dict[str, Any]:
    """How far apart the two gradients are, on a small batch."""
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        cut, file = Path(place) / "small.json", Path(place) / "gradients.pt"
        cut.write_text(json.dumps(small(batch)))
        start(theirs, "trainer_trl.py", cut, model, "--rows", 4, "--gradients", file)
        return start(sys.executable, "trainer_ours.py", cut, model, "--compare", file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("run", type=Path)
    recorder.add_argument("batch", type=Path)
    recorder.add_argument("--groups", type=int, default=6)
    recorder.add_argument("--size", type=int, default=8)
    runner = commands.add_parser("run")
    runner.add_argument("batch", type=Path)
    runner.add_argument("--out", type=Path)
    runner.add_argument("--machine", default="")
    runner.add_argument("--groups", type=int, default=0, help="take the first so many of the batch; 0: all")
    runner.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    runner.add_argument("--repeats", type=int, default=1)
    runner.add_argument("--trainers", nargs="+", choices=list(TRAINERS))
    runner.add_argument("--micro-batch-tokens", type=int, default=3000, help="of FrogNano, as in recipes/pocket.toml")
    runner.add_argument("--scratch", type=Path, help="where the gradients that are compared go, 200 MB")
    given = parser.parse_args()
    if given.what == "record":
        record(given.run, given.batch, given.groups, given.size)
    else:
        run(given)


if __name__ == "__main__":
    main()
