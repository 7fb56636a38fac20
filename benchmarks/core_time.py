"""Where the time of a run went: what used the cores, of one update and of the phases around it, as the run itself recorded it.

python benchmarks/core_time.py runs/pocket --out docs/results/profile --machine "2 cores, x86-64, AVX2"
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from pathlib import Path

from common import commit

from frognano.analysis.profile import HEAD, STAGES, profile, table, updates
from frognano.runs import RunStore


def page(parts: list, said: dict) -> str:
    rows = [HEAD, ("---",) * len(HEAD), *table(parts)]
    out = [
        "# What used the cores\n",
        f"Command: `{said['command']}`. Machine: {said['machine']}. Run: {said['run']}.\n",
    ]
    out += ["| " + " | ".join(row) + " |" for row in rows]
    out += ["\n| stage | holds |", "| --- | --- |", *(f"| {name} | {what} |" for name, what in STAGES.items())]
    out.append(
        "\nCPU seconds add up to cores times wall seconds; wall seconds overlap (`src/frognano/loop/profile.py`)."
    )
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--iteration", type=int, help="of this one alone, as when the machine was quiet in it")
    parser.add_argument("--out", type=Path, help="without an ending, e.g. docs/results/profile")
    parser.add_argument("--machine", default="not said")
    given = parser.parse_args()
    with RunStore.open(given.run, read_only=True) as store:
        parts, each, config = profile(store, given.iteration), updates(store, given.iteration), store.config
    if not parts:
        sys.exit(f"{given.run} holds no profile: it was made before runs recorded one")
    said = {
        "command": shlex.join(["python", "benchmarks/core_time.py", given.run.name, *sys.argv[2:]]),
        "machine": given.machine,
        "run": config["run"]["name"],
        "python": platform.python_version(),
        "commit": commit(),
    }
    print(page(parts, said))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        raw = {**said, "parts": [{"name": p.name, "count": p.count, **p.values} for p in parts], "updates": each}
        given.out.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
        given.out.with_suffix(".md").write_text(page(parts, said))


if __name__ == "__main__":
    main()
