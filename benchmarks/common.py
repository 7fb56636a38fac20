"""What benchmarks share: CPU of a process tree, options, a machine's description, the raw file.

It takes the standard library alone, since scripts of other projects' environments import it too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def cpu() -> float:
    """CPU seconds of this process and of all children that have ended (boxes count once they are closed)."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def peer(name: str) -> str:
    """The Python of another project's environment, which scripts/peer.sh makes on the first call."""
    script, env = HERE.parent / "scripts/peer.sh", {"VENV": sys.prefix, **os.environ}
    made = subprocess.run(["bash", str(script), name], stdout=subprocess.PIPE, text=True, env=env)
    if made.returncode:
        raise SystemExit(f"{name} could not be installed, see above: let uv and pip reach a package index")
    return made.stdout.strip()


def earlier(out: Path | None) -> dict[str, Any]:
    """What a benchmark with --add has found before, in parts; a part of another commit would not be comparable.

    Raises SystemExit where the file says that it was measured by other code.
    """
    if out is None or not out.with_suffix(".json").exists():
        return {}
    held: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
    if held["commit"] != commit():
        raise SystemExit(f"{out} was measured at commit {held['commit'][:12]}: measure it anew, without --add")
    return held


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()


def publish(out: Path | None, machine: str, title: str, table: str, parts: list[str], **found: Any) -> None:
    """Write the table to OUT.md, and what was measured, with command, machine, versions and commit, to
    OUT.json. ``parts``: the commands of earlier parts."""
    if out is None:
        return
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    machine = machine or f"{platform.machine()}, {os.cpu_count()} cores"
    head = {
        "commands": [*parts, command],
        "machine": machine,
        "commit": commit(),
        "python": platform.python_version(),
    }
    out.with_suffix(".json").write_text(json.dumps({**head, **found}, indent=1) + "\n")
    commands = "".join(f"    {c}\n" for c in head["commands"])
    out.with_suffix(".md").write_text(
        f"# {title}\n\n{commands}\nMachine: {machine}. CPU seconds of the whole process tree, compared in turn.\n\n{table}\n"
    )


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's own text."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def repository_options(doc: str | None, default: str, known: str = "") -> argparse.ArgumentParser:
    """Those of a benchmark that measures repository by repository: which ones, and where its results go."""
    parser = options(doc)
    parser.add_argument("--repositories", default=default, help=known or None)
    parser.add_argument("--machine", default="")
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    parser.add_argument("--add", action="store_true", help="to the repositories that OUT.json holds: measured in parts")
    return parser


def by_repository(
    asked: argparse.Namespace,
    title: str,
    measure: Callable[[list[str]], Coroutine[Any, Any, dict[str, Any]]],
    table: Callable[[dict[str, Any]], str],
    **more: Any,
) -> None:
    """Measure the repositories that `repository_options` were given, print the table of all parts and publish it."""
    before = earlier(asked.out) if asked.add else {}
    found = before.get("found", {}) | asyncio.run(measure(asked.repositories.split(",")))
    print(table(found))
    publish(asked.out, asked.machine, title, table(found), before.get("commands", []), **more, found=found)


def update_options(doc: str | None) -> argparse.ArgumentParser:
    """Those of one update of one trainer on a recorded batch."""
    parser = options(doc)
    parser.add_argument("batch", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--groups", type=int, default=0, help="take the first so many; 0: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=15)
    return parser


def peak_mb() -> float:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def say_update(spent: Mapping[str, float], loaded: float, numbers: Mapping[str, float], **versions: str) -> None:
    """What an update cost, as the one line that `trainer.py` reads; `loaded`: MB before it."""
    print(json.dumps({**spent, "loaded_mb": loaded, "peak_mb": peak_mb(), **numbers, "versions": versions}))
