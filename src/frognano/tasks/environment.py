"""Environment: the virtual environment that tests run in, built once per lock and addressed by content.

The package under test is never installed: tests import the checkout. Only its name and version are written into the
environment, as a minimal dist-info, since many packages ask `importlib.metadata` for their own version.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from frognano.records import Environment, Origin
from frognano.sandbox.base import BoxSpec, Sandboxes, require_not_killed
from frognano.sandbox.scratch import temporary
from frognano.tasks.errors import TaskError
from frognano.tasks.snapshot import Snapshot, publish
from frognano.tasks.suite import RUNNER, run_probe

RECIPE = "1"
"""Part of every key: raise it when environments are built differently."""

COVERAGE = "coverage==7.17.5"
"""What says which test runs which line. In every environment, so that it cannot change what tests see."""


async def build_environment(snapshot: Snapshot, cache: Path) -> tuple[Environment, Path]:
    """The environment of a repository, resolved to a full lock, and its folder. Built at most once per cache."""
    requirements = tuple(sorted({*snapshot.repository.requirements, COVERAGE}))
    python = platform.python_version()
    alias = cache / "environments" / f"by-requirements-{_key(python, requirements, snapshot.origin)}.json"
    if alias.exists():
        environment = Environment.model_validate_json(alias.read_text())
        return environment, await restore_environment(environment, snapshot.origin, cache)
    lock, built = await asyncio.to_thread(_resolve, requirements, snapshot.origin, python, cache)
    environment = Environment(key=built.name, python=python, lock=lock)
    with temporary(alias.parent) as scratch:
        (scratch / alias.name).write_text(environment.model_dump_json())
        (scratch / alias.name).replace(alias)
    return environment, built


async def restore_environment(environment: Environment, origin: Origin, cache: Path) -> Path:
    """The folder of a locked environment; built from the lock when this machine does not have it yet."""
    place = cache / "environments" / environment.key
    if (place / "bin/python").exists():
        return place
    if environment.python.split(".")[:2] != platform.python_version().split(".")[:2]:
        raise TaskError(f"{origin.name}: made for Python {environment.python}, this is {platform.python_version()}")
    _, built = await asyncio.to_thread(_resolve, environment.lock, origin, environment.python, cache)
    if built.name != environment.key:
        raise TaskError(f"{origin.name}: its lock builds {built.name}, not {environment.key}; validate the task anew")
    return built


def _key(python: str, lock: Sequence[str], origin: Origin) -> str:
    parts = [RECIPE, python, origin.name, origin.version, *lock]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _resolve(requirements: Sequence[str], origin: Origin, python: str, cache: Path) -> tuple[tuple[str, ...], Path]:
    folder = cache / "environments"
    folder.mkdir(parents=True, exist_ok=True)
    with temporary(folder) as scratch:
        venv = scratch / "venv"
        _uv(cache, "venv", "-q", "--relocatable", "--python", sys.executable, str(venv))
        _uv(cache, "pip", "install", "-q", "--python", str(venv / "bin/python"), "--compile-bytecode", *requirements)
        frozen = _uv(cache, "pip", "freeze", "--python", str(venv / "bin/python"))
        lock = tuple(sorted(line for line in frozen.splitlines() if "==" in line))
        if any(line.split("==")[0].lower() == origin.name.lower() for line in lock):
            raise TaskError(f"{origin.name} would be tested as an installed copy: its requirements pull it in")
        _write_metadata(venv, origin)
        place = folder / _key(python, lock, origin)
        publish(venv, place)
    return lock, place


def _uv(cache: Path, *args: str) -> str:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if uv is None:
        raise TaskError("uv is not installed: pip install 'frognano[tasks]'")
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT")}
    env["UV_CACHE_DIR"] = str(cache / "uv")
    done = subprocess.run([uv, *args], env=env, capture_output=True, text=True, timeout=900)
    if done.returncode:
        require_not_killed(f"uv {args[0]}", done.returncode)
        raise TaskError(f"uv {args[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _write_metadata(venv: Path, origin: Origin) -> None:
    site = next((venv / "lib").glob("python3*/site-packages"))
    name = re.sub(r"[-_.]+", "_", origin.name)
    info = site / f"{name}-{origin.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {origin.name}\nVersion: {origin.version}\n")
    (info / "INSTALLER").write_text("frognano\n")


async def assert_checkout(snapshot: Snapshot, venv: Path, sandboxes: Sandboxes) -> None:
    """TaskError unless the package that tests import is the checkout's: else doing nothing would pay."""
    module = snapshot.repository.module
    async with sandboxes.open(BoxSpec(snapshot.root, venv, read_only=RUNNER)) as box:
        answer = await run_probe(box, module)
    where = json.loads(answer).get("file") if answer.startswith("{") else None
    if where is None:
        raise TaskError(f"{module} cannot be imported from its checkout: {answer.strip()[-300:]}")
    if not where.startswith("/repo/"):
        raise TaskError(f"tests would import {module} from {where}, not from the checkout; uninstall it there")
