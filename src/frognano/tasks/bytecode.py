"""Bytecode: the files of a clean tree, compiled once per environment and believed by their content alone.

Nothing of the repository is run to make it. Boxes get it read-only; `runner/loaders.py` looks up a file by a hash of its path
and its bytes, so that a changed file never meets the code of what it was.
"""

from __future__ import annotations

import json
from pathlib import Path

from frognano.records import Environment
from frognano.sandbox.base import BoxKilled, BoxSpec, Limits, Sandboxes
from frognano.sandbox.scratch import temporary
from frognano.tasks.errors import TaskError
from frognano.tasks.snapshot import Snapshot, is_test_path, publish
from frognano.tasks.suite import RUNNER, RUNNER_AT

BYTECODE_AT = "/frognano/bytecode"
_FORMAT = "1"
"""Part of every folder's name: raise it when bytecode is found or made differently."""
_OUT = "/tmp/bytecode"
_LIMITS = Limits.model_validate({"cpu_seconds": 600.0, "wall_seconds": 3000.0})


def bytecode(tree: str, environment_key: str, cache: Path) -> dict[str, Path]:
    """What to bind read-only into a box; empty when this clean tree was not compiled on this machine."""
    place = _place(tree, environment_key, cache)
    return {BYTECODE_AT: place} if place.exists() else {}


async def compile_tree(
    snapshot: Snapshot, environment: Environment, venv: Path, sandboxes: Sandboxes, cache: Path
) -> dict[str, Path]:
    """Compile the tree in a box unless it was done before; what to bind. Tests with their assertions rewritten too."""
    place = _place(snapshot.tree, environment.key, cache)
    if not place.exists():
        names = sorted(p.relative_to(snapshot.root).as_posix() for p in snapshot.root.rglob("*.py") if p.is_file())
        told = "".join(json.dumps([n, _is_test(snapshot, n)]) + "\n" for n in names)
        try:
            async with sandboxes.open(BoxSpec(snapshot.root, venv, _LIMITS, RUNNER)) as box:
                done = await box.exec(["python", "-s", f"{RUNNER_AT}/compiler.py", _OUT], stdin=told.encode())
                data = await box.read_bytes(_OUT) if done.exit_code == 0 else b""
        except BoxKilled as error:
            raise TaskError(
                f"repository {snapshot.repository.name}: it cannot be compiled in a box: {error}"
            ) from error
        if not data:
            said = done.stderr[-300:].decode(errors="replace")
            raise TaskError(f"repository {snapshot.repository.name}: its files cannot be compiled: {said}")
        _write(data, place)
    return {BYTECODE_AT: place}


def _place(tree: str, environment_key: str, cache: Path) -> Path:
    return cache / "bytecode" / f"{_FORMAT}-{tree[:24]}-{environment_key}"


def _is_test(snapshot: Snapshot, name: str) -> bool:
    """Whether pytest may rewrite it: by its name, or since it is given on the command line."""
    return is_test_path(name) or any(
        name == t or name.startswith(t.rstrip("/") + "/") for t in snapshot.repository.tests
    )


def _write(data: bytes, place: Path) -> None:
    head, _, body = data.partition(b"\n")
    place.parent.mkdir(parents=True, exist_ok=True)
    with temporary(place.parent) as scratch:
        fresh = scratch / "bytecode"
        fresh.mkdir()
        offset = 0
        for name, size in json.loads(head).items():
            (fresh / name).write_bytes(body[offset : offset + size])
            offset += size
        fresh.chmod(0o755)
        publish(fresh, place)
