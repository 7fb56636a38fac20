"""Bash: one command in a fresh shell, its output and exit code as text."""

from __future__ import annotations

import contextlib
import itertools
import os

from .process import Processes

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from typing import Any

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
        argv = ["/bin/bash", _save("command", encoded)]
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
    with contextlib.suppress(OSError):  # the disk of the box is full: the cut text must do
        where = f"; all of it is in {_save('output', output)}"
    half = OUTPUT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut{where} ...]\n{text[-half:]}"


def _save(kind: str, data: bytes) -> str:
    """A new file in /tmp, short to name."""
    for i in itertools.count(1):
        path = f"/tmp/{kind}-{i}.txt"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with open(fd, "wb") as f:
            f.write(data)
        return path
    raise AssertionError
