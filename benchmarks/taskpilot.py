"""TaskPilot's validation against SWE-smith's, in the same boxes, in CPU seconds of the whole process tree.

    python benchmarks/taskpilot.py --count 12 --out docs/results/taskpilot

1. The same mutants, those of SWE-smith's procedural generator, are judged twice, one after the other: by its own keep rule (a
   fresh box, `git apply`, cold `pytest` of the whole suite as its harness calls it, its log parser, at least one test that the
   bug breaks) and by ours (`validate`: three runs, chosen tests, warm boxes). Do the verdicts agree, what does each cost?
2. Our own candidates, from proposal to the written task, once warm as in a run and once cold: a fresh box for each, nothing
   compiled beforehand. Are fail-to-pass, pass-to-pass and reasons the same?

Its docker images are not to be had here, so its container is our box. Its time limit of 90 wall seconds is left out: a busy
machine would only lose it tasks.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import HERE, by_repository, cpu, peer, repository_options

from frognano.loop.session import cache_folder
from frognano.records import Task
from frognano.sandbox.base import BoxKilled, BoxSpec
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.taskpilot.sources.mutation_config import MutationConfig
from frognano.taskpilot.workshop import Prepared, Workshop
from frognano.tasks.git import apply_patch
from frognano.tasks.repository import load_repositories
from frognano.tasks.snapshot import fetch_snapshot
from frognano.tasks.trees import put
from frognano.tasks.validation import Candidate, Validated, validate
from frognano.tasks.validation_config import ValidationConfig

PROFILES = {
    "sqlparse": "andialbrecht__sqlparse.e57923b3",
    "boltons": "mahmoud__boltons.3bfcfdd0",
    "funcy": "Suor__funcy.207a7810",
    "voluptuous": "alecthomas__voluptuous.a7a55f83",
}
"""Our repository to the profile of SWE-smith whose log parser and test command are used."""
PYTEST = ["python", "-m", "pytest", "--disable-warnings", "--color=no", "--tb=no", "--verbose"]


def swesmith(*arguments: str) -> Any:
    command = [peer("swesmith"), str(HERE / "peers/swesmith_peer.py"), *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def mutated(prepared: Prepared, patch: bytes) -> Candidate | None:
    """A patch of SWE-smith as a candidate of ours: the new bytes, and the tests that run one of the lines it touches."""
    names = set(re.findall(rb"^\+\+\+ b/(.+)$", patch, re.M))
    if len(names) != 1:
        return None
    name = names.pop().decode()
    clean = (prepared.snapshot.root / name).read_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "repo"
        tree.mkdir()
        put(tree, name, clean, 0o644)
        try:
            apply_patch(patch, tree)
        except Exception:  # its patches of files without a final newline, or with CRLF, do not apply (see synthesis)
            return None
        content = (tree / name).read_bytes()
    touched = [n for start, removed in _old_lines(patch) for n in range(start, start + removed)]
    covering: dict[str, None] = {}
    for line in touched:
        covering |= dict.fromkeys(prepared.baseline.covering(name, line, line))
    return Candidate(name, content, tuple(covering))


def _old_lines(patch: bytes) -> list[tuple[int, int]]:
    """(line of the old file, how many) for each run of removed lines; an insertion counts for the line before it."""
    out, at = [], 0
    for line in patch.splitlines():
        if found := re.match(rb"@@ -(\d+)", line):
            at = int(found[1])
        elif at and line[:1] == b"-" and not line.startswith(b"---"):
            out.append((at, 1))
            at += 1
        elif at and line[:1] == b"+":
            out.append((max(1, at - 1), 1))
        elif at and line[:1] == b" ":
            at += 1
    return out


async def cold_suite(boxes: BubblewrapSandboxes, prepared: Prepared, config: ValidationConfig, patch: bytes) -> bytes:
    """What its harness does: a fresh container, the patch, the whole suite; the log."""
    tests = prepared.snapshot.repository.tests
    env = {"PYTHONPATH": "/repo/src:/repo", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        async with boxes.open(BoxSpec(prepared.snapshot.root, prepared.venv, config.limits)) as box:
            if patch:
                done = await box.exec(["git", "apply", "-"], stdin=patch)
                if done.exit_code != 0:
                    return b">>>>> Patch Apply Failed"
            done = await box.exec([*PYTEST, *tests], env=env, timeout=900)
            return done.stdout
    except BoxKilled:
        return b""


async def same_mutants(
    boxes: BubblewrapSandboxes, workshop: Workshop, prepared: Prepared, count: int, seed: int
) -> dict[str, Any]:
    profile = PROFILES[prepared.name]
    a = cpu()
    patches = swesmith("generate", profile, str(prepared.snapshot.root), str(count), str(seed))
    spent = {"swesmith generate": cpu() - a, "swesmith clean run": 0.0, "swesmith": 0.0, "ours": 0.0}
    ours: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        logs = Path(scratch)
        a = cpu()
        (logs / "clean").write_bytes(await cold_suite(boxes, prepared, workshop.config, b""))
        spent["swesmith clean run"] = cpu() - a
        for n, made in enumerate(patches):
            patch = made["patch"].encode()
            a = cpu()
            (logs / f"{n}.bug").write_bytes(await cold_suite(boxes, prepared, workshop.config, patch))
            b = cpu()
            candidate = mutated(prepared, patch)
            if candidate is None:
                ours[str(n)] = "patch does not apply"
            else:
                out = await validate(
                    *(candidate, prepared.snapshot, prepared.environment, prepared.venv, boxes, prepared.baseline),
                    workshop.config,
                    bound=prepared.bound,
                    bench=workshop.bench,
                )
                ours[str(n)] = "valid" if isinstance(out, Validated) else out.reason.value
            spent["swesmith"] += b - a
            spent["ours"] += cpu() - b
            print(f"  {prepared.name} {n} {made['name']}: ours {ours[str(n)]}", file=sys.stderr, flush=True)
        a = cpu()
        await workshop.close()
        spent["ours"] += cpu() - a
        a = cpu()
        reports = swesmith("judge", profile, scratch)
        spent["swesmith"] += cpu() - a
    theirs = {n: bool(r["FAIL_TO_PASS"]) for n, r in reports.items()}
    pairs = [
        {
            "name": patches[int(n)]["name"],
            "ours": ours[n],
            "swesmith": theirs[n],
            "f2p": len(reports[n]["FAIL_TO_PASS"]),
        }
        for n in sorted(theirs, key=int)
    ]
    return {"spent": spent, "pairs": pairs}


def plain(made: object) -> object:
    if isinstance(made, Task):
        return made.f2p, made.p2p, made.p2p_excluded, made.gold_patch, made.base
    return made.reason  # type: ignore[attr-defined]


async def own_candidates(
    boxes: BubblewrapSandboxes, workshop: Workshop, cold: Workshop, prepared: Prepared, count: int, seed: int
) -> dict[str, Any]:
    a = cpu()
    stream = workshop.proposals([prepared], "all", 0.2, seed, MutationConfig())
    proposals = [p for p, _ in zip(stream, range(count), strict=False)]
    spent = {"propose": cpu() - a, "warm": 0.0, "cold": 0.0}
    tasks, differ = 0, []
    bare = Prepared(prepared.snapshot, prepared.environment, prepared.venv, prepared.baseline)
    for proposal in proposals:
        a = cpu()
        made = await workshop.make(proposal, 10**6)
        b = cpu()
        again = await cold.make(type(proposal)(bare, proposal.mutation, proposal.id), 10**6)
        c = cpu()
        spent["warm"] += b - a
        spent["cold"] += c - b
        tasks += isinstance(made, Task)
        if plain(made) != plain(again):
            differ.append(proposal.id)
    a = cpu()
    await workshop.close()
    spent["warm"] += cpu() - a
    return {"spent": spent, "candidates": len(proposals), "tasks": tasks, "differ": differ}


async def measure(names: list[str], count: int, seed: int) -> dict[str, Any]:
    boxes = BubblewrapSandboxes()
    config = ValidationConfig(max_p2p=30)  # as recipes/pocket.toml
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=boxes.scratch) as scratch:
        workshop = Workshop(Path(scratch) / "warm", cache_folder(), boxes, config, "pocket", "benchmark")
        cold = Workshop(Path(scratch) / "cold", cache_folder(), boxes, config, "pocket", "benchmark")
        cold.bench = None
        for name in names:
            prepared = await workshop.prepare(await fetch_snapshot(load_repositories()[name], workshop.cache))
            await cold_suite(boxes, prepared, config, b"")  # the first box of a tree packs it
            found[name] = {
                "same": await same_mutants(boxes, workshop, prepared, count, seed),
                "own": await own_candidates(boxes, workshop, cold, prepared, count, seed),
            }
    return found


def table(found: dict[str, Any]) -> str:
    out = [
        "Mutants of SWE-smith's procedural generator, judged by both:\n",
        "| repository | mutants | kept: SWE-smith | ours | agree | CPU-s a mutant: SWE-smith | ours "
        "| valid per CPU-minute: SWE-smith | ours | × |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, f in found.items():
        spent, pairs = f["same"]["spent"], f["same"]["pairs"]
        n, kept, mine = len(pairs), sum(p["swesmith"] for p in pairs), sum(p["ours"] == "valid" for p in pairs)
        agree = sum((p["ours"] == "valid") == p["swesmith"] for p in pairs)
        rate, own = 60 * kept / spent["swesmith"], 60 * mine / spent["ours"]
        out.append(
            f"| {name} | {n} | {kept} | {mine} | {agree}/{n} | {spent['swesmith'] / n:.2f} | {spent['ours'] / n:.2f} "
            f"| {rate:.1f} | {own:.1f} | {own / rate:.1f} |"
        )
    reasons = [
        f"{name} {p['name']}: SWE-smith {'keeps it' if p['swesmith'] else 'drops it'} ({p['f2p']} broken), ours: {p['ours']}"
        for name, f in found.items()
        for p in f["same"]["pairs"]
        if (p["ours"] == "valid") != p["swesmith"]
    ]
    once = ", ".join(
        f"{name} {f['same']['spent']['swesmith clean run']:.1f} and {f['same']['spent']['swesmith generate']:.1f}"
        for name, f in found.items()
    )
    out += [
        "",
        "Where they differ: " + ("; ".join(reasons) or "nowhere") + ".",
        "",
        f"Left out, since a repository costs it once: SWE-smith's clean run and its generator ({once} CPU-s), our clean runs "
        "(three, and one with coverage; they come from the cache).",
        "",
        "Our own candidates, up to the written task:\n",
    ]
    out += [
        "| repository | candidates | tasks | CPU-s a task: warm | cold | × | verdicts that differ | CPU-s to propose, once |"
    ]
    out += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, f in found.items():
        own = f["own"]
        warm, cold = (own["spent"][k] / max(1, own["tasks"]) for k in ("warm", "cold"))
        out.append(
            f"| {name} | {own['candidates']} | {own['tasks']} | {warm:.2f} | {cold:.2f} | {cold / warm:.1f} "
            f"| {len(own['differ'])} | {own['spent']['propose']:.1f} |"
        )
    return "\n".join(out)


def main() -> None:
    parser = repository_options(__doc__, "sqlparse,boltons", f"of {', '.join(PROFILES)}")
    parser.add_argument("--count", type=int, default=12, help="candidates of each kind and repository")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    peer("swesmith")
    versions = {"swesmith": "0.0.9", "swebench": "4.1.0"}
    title = "TaskPilot's validation beside SWE-smith's"
    by_repository(asked, title, lambda names: measure(names, asked.count, asked.seed), table, versions=versions)


if __name__ == "__main__":
    main()
