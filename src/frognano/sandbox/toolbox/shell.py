"""Bash: one command in a fresh shell, its output and exit code as text."""

from __future__ import annotations

import tempfile
from typing import Any

from .process import Processes

OUTPUT_CHARS = 30_000
DEFAULT_SECONDS = 120.0
_ARGUMENT_BYTES = 100_000  # the kernel refuses a single argument of 128 KiB


def bash(
    config: dict[str, Any], processes: Processes, command: str, description: str = "", timeout: float = DEFAULT_SECONDS
) -> tuple[bool, str]:
    """Run it. stdout and stderr share one pipe, so that their order is kept; input is empty."""
    encoded = command.encode("utf-8")
    argv = ["/bin/bash", "-c", command]
    if len(encoded) > _ARGUMENT_BYTES:
        fd, path = tempfile.mkstemp(prefix="command-", suffix=".sh", dir="/tmp")
        with open(fd, "wb") as f:
            f.write(encoded)
        argv = ["/bin/bash", path]
    seconds = min(float(timeout), config["wall_seconds"])
    done = processes.run(argv, config["repo"], config["env"], seconds, config["output_bytes"], merge=True)
    text = _cut(done["stdout"])
    if done["reason"]:
        spent = f"{config['cpu_seconds']:g} s of CPU time" if done["reason"] == "cpu" else f"{done['seconds']:.3g} s"
        ending = f"[killed after {spent}, with everything it started]"
    elif done["exit_code"] is None:
        ending = "[killed]"
    elif done["exit_code"] < 0:
        ending = f"[killed by signal {-done['exit_code']}]"
    else:
        ending = f"[exit code {done['exit_code']}]"
    newline = "\n" if text and not text.endswith("\n") else ""
    return done["exit_code"] == 0, f"{text}{newline}{ending}"


def _cut(output: bytes) -> str:
    text = output.decode("utf-8", "backslashreplace").replace("\0", "\\0")
    if len(text) <= OUTPUT_CHARS:
        return text
    where = ""
    try:
        fd, path = tempfile.mkstemp(prefix="output-", suffix=".txt", dir="/tmp")
        with open(fd, "wb") as f:
            f.write(output)
        where = f"; all of it is in {path}"
    except OSError:  # the disk of the box is full: the cut text must do
        pass
    half = OUTPUT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut{where} ...]\n{text[-half:]}"
