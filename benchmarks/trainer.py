"""One update on one recorded batch: FrogNano's trainer against TRL's GRPOTrainer, a fresh process each, interleaved.

    python benchmarks/trainer.py record runs/seeds/seed-1 batch.json      # from rollouts that a run has made
    python benchmarks/trainer.py run batch.json --out docs/results/trainer.json

Both get the same pocket model in float32, its top 15 of 30 layers trainable, the same token ids, masks, sampling log-probs and
rewards, AdamW with the same numbers. TRL comes by `rollout_func` and is installed by scripts/peer.sh into a place of its own.
Before anything is measured the gradients are compared: if they differ, the comparison is void and the command fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
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
        "| trainer | threads | CPU-s | trained tokens / CPU-s | all tokens of the rows / CPU-s | peak MB "
        "| FrogNano is faster | FrogNano needs of its memory |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    cells: dict[tuple[str, int], tuple[float, float]] = {}
    for m in measured:
        key = (m["trainer"], m["threads"])
        same = [x for x in measured if (x["trainer"], x["threads"]) == key]
        cells[key] = (statistics.median(x["cpu_seconds"] for x in same), max(x["peak_mb"] for x in same))
    for (name, threads), (cpu, peak) in sorted(cells.items(), key=lambda x: x[0][1]):
        ours = cells.get(("FrogNano", threads))
        ratio = f"{cpu / ours[0]:.1f}× | {ours[1] / peak:.2f}×" if ours and name != "FrogNano" else "|"
        lines.append(
            f"| {name} | {threads} | {cpu:.1f} | {trained / cpu:.1f} | {real / cpu:.0f} | {peak:.0f} | {ratio} |"
        )
    return "\n".join(lines)


def run(given: argparse.Namespace) -> None:
    from frognano.models.pocket import ensure_pocket_model

    model = ensure_pocket_model()
    trl = subprocess.run(["bash", str(HERE.parent / "scripts/peer.sh"), "trl"], stdout=subprocess.PIPE, text=True)
    if trl.returncode:
        sys.exit("error: TRL could not be installed, see above")
    theirs = trl.stdout.strip()
    batch = json.loads(given.batch.read_text())
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        cut, file = Path(scratch) / "small.json", Path(scratch) / "gradients.pt"
        cut.write_text(json.dumps(small(batch)))
        start(theirs, "trainer_trl.py", cut, model, "--rows", 4, "--gradients", file)
        gap = start(sys.executable, "trainer_ours.py", cut, model, "--compare", file)
    print(f"gradients differ by {gap['gradient_gap']:.1e} of their norm {gap['gradient_norm']:.3f}", flush=True)
    if not gap["gradient_gap"] < TOLERANCE:
        sys.exit("error: the two trainers compute different gradients: the comparison would be void")
    rows = [(g["prompt_ids"], r) for g in batch["groups"][: given.groups or None] for r in g["rows"]]
    trained, real = sum(sum(r["loss_mask"]) for _, r in rows), sum(len(p) + len(r["ids"]) for p, r in rows)
    measured: list[dict[str, Any]] = []
    said = {
        "command": " ".join(sys.argv),
        "machine": given.machine or f"{platform.machine()}, {os.cpu_count()} cores",
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip(),
        "batch": {"source": batch["source"], "rows": len(rows), "trained_tokens": trained, "tokens": real},
        "gradients": gap,
        "measured": measured,
    }
    for _ in range(given.repeats):
        for threads in given.threads:
            for name in given.trainers or TRAINERS:
                ours = name == "FrogNano"
                python, script = (sys.executable, "trainer_ours.py") if ours else (theirs, "trainer_trl.py")
                extra = [*TRAINERS[name], "--groups", given.groups, "--threads", threads]
                extra += ["--micro-batch-tokens", given.micro_batch_tokens] if ours else []
                numbers = start(python, script, given.batch, model, *extra, threads=threads)
                measured.append({"trainer": name, "threads": threads, **numbers})
                print(
                    f"{name}, {threads}: {numbers['cpu_seconds']:.1f} CPU-s, {numbers['peak_mb']:.0f} MB",
                    file=sys.stderr,
                )
                if given.out:
                    given.out.parent.mkdir(parents=True, exist_ok=True)
                    given.out.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{len(rows)} rollouts, {trained} trained tokens, {real} tokens in the rows; {batch['source']}\n")
    print(table(measured, trained, real))


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
