"""What benchmarks share: CPU of a process tree, a machine's description, the raw file."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def cpu() -> float:
    """CPU seconds of this process and of all children that have ended (boxes count once they are closed)."""
    return sum(
        r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def raw(out: Path | None, machine: str, **found: Any) -> None:
    """Write what was measured, with command, machine, versions and commit."""
    if out is None:
        return
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()
    head = {
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
        "machine": machine or platform.machine(),
        "commit": commit,
        "python": platform.python_version(),
    }
    out.write_text(json.dumps({**head, **found}, indent=1) + "\n")
