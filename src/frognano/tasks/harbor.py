"""Harbor: a task as a directory that Harbor runs too (schema 1.4), with the whole record in ``frognano.json``.

    task.toml  instruction.md  environment/{Dockerfile,repo.tar.gz}  tests/  solution/  frognano.json

The solver is given ``environment/`` and the instruction, never ``tests/``, ``solution/`` or the record.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from frognano.records import Task
from frognano.runs.files import write_atomically
from frognano.tasks.errors import TaskError
from frognano.tasks.git import object_id, tree_of
from frognano.tasks.suite import RUNNER, RUNNER_AT, plugins_of

REPO_ARCHIVE = "environment/repo.tar.gz"
HIDDEN = "tests/hidden.tar.gz"
RECORD = "frognano.json"

_DOCKERFILE = """\
FROM python:{python}-slim
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir {lock}
RUN python -c "import pathlib, sysconfig; \\
d = pathlib.Path(sysconfig.get_path('purelib'), '{info}.dist-info'); d.mkdir(); \\
(d / 'METADATA').write_text('Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n')"
ADD repo.tar.gz /repo
WORKDIR /repo
RUN git init -q -b main && git add -A -f && \\
    git -c user.name=frognano -c user.email=frognano@localhost commit -qm "Initial commit"
"""

_TEST_SH = """\
#!/bin/sh
# The reward is 1 when every expected test is there and passes. Only our own report counts, never an exit code.
mkdir -p /logs/verifier
tar -xzf /tests/hidden.tar.gz -C /repo
cd / && exec python -s /tests/runner/reward.py /logs/verifier
"""

_SOLVE_SH = """\
#!/bin/sh
cd /repo && git apply --whitespace=nowarn "$(dirname "$0")/gold.patch"
"""


Files = Mapping[str, tuple[bytes | Path, int]]
"""Path to content and mode. A Path in place of content stands for a symlink's target."""


def write_task(root: Path, task: Task, tree: Files, hidden: Mapping[str, bytes]) -> Path:
    """Write ``root/<task id>``: whole, or not at all. ``tree`` is the solver's."""
    if set(hidden) != set(task.hidden_files):
        raise TaskError(f"task {task.id}: the files given are not the hidden files of its record")
    root.mkdir(parents=True, exist_ok=True)
    place = root / task.id
    with tempfile.TemporaryDirectory(dir=root, prefix=".new-") as scratch:
        fresh = Path(scratch) / "task"
        for name, data in _files(task, tree, hidden):
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_bytes(data)
            if name.endswith(".sh"):
                (fresh / name).chmod(0o755)
        if place.exists():  # another rung or another evaluation of the same task
            place.rename(Path(scratch) / "old")
        fresh.rename(place)
    return place


def read_task(place: Path) -> Task:
    """The record of a task directory, once the directory is whole."""
    try:
        task = Task.model_validate_json((place / RECORD).read_bytes())
    except FileNotFoundError as error:
        raise TaskError(f"{place} is no task directory: it has no {RECORD}") from error
    except ValidationError as error:
        raise TaskError(f"{place / RECORD} is no task record: {error}") from error
    wanted = ("task.toml", "instruction.md", REPO_ARCHIVE, HIDDEN, "tests/test.sh", "solution/gold.patch")
    if missing := [name for name in wanted if not (place / name).exists()]:
        raise TaskError(f"{place} is not whole, it lacks {', '.join(missing)}: write the task anew")
    if (place / "solution/gold.patch").read_bytes() != task.gold_patch:
        raise TaskError(f"{place}: solution/gold.patch is not the gold patch of the record: write the task anew")
    return task


def update_task(root: Path, task: Task) -> None:
    """Write a new record (rung, evaluations) over the old one; the tree and the tests stay as they are."""
    place = root / task.id
    read_task(place)
    for name, data in ((RECORD, _record(task)), ("instruction.md", task.statement.text.encode())):
        write_atomically(place / name, data)


def _record(task: Task) -> bytes:
    return task.model_dump_json(indent=1).encode() + b"\n"


def _files(task: Task, tree: Files, hidden: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    origin, environment = task.origin, task.environment
    yield RECORD, _record(task)
    yield "task.toml", _task_toml(task).encode()
    yield "instruction.md", task.statement.text.encode()
    dockerfile = _DOCKERFILE.format(
        python=environment.python,
        lock=" ".join(environment.lock),
        info=f"{origin.name.replace('-', '_')}-{origin.version}",
        name=origin.name,
        version=origin.version,
    )
    yield "environment/Dockerfile", dockerfile.encode()
    yield REPO_ARCHIVE, pack(tree)
    yield "tests/test.sh", _TEST_SH.encode()
    yield HIDDEN, pack({name: (data, 0o644) for name, data in hidden.items()})
    expected = {"f2p": task.f2p, "p2p": task.p2p, "plugins": plugins_of(environment)}
    yield "tests/expected.json", json.dumps(expected, indent=1).encode()
    for file in sorted(RUNNER[RUNNER_AT].iterdir()):
        if file.is_file():
            yield f"tests/runner/{file.name}", file.read_bytes()
    yield "solution/solve.sh", _SOLVE_SH.encode()
    yield "solution/gold.patch", task.gold_patch


def _task_toml(task: Task) -> str:
    q = json.dumps  # a JSON string is a TOML basic string
    return f"""\
schema_version = "1.4"

[task]
name = {q("frognano/" + task.id)}
description = {q(f"A {task.kind.replace('_', ' ')} in {task.origin.name} {task.origin.version}")}
keywords = ["python", {q(task.kind)}]

[agent]
timeout_sec = 3600.0

[verifier]
timeout_sec = 600.0

[environment]
network_mode = "no-network"
build_timeout_sec = 600.0
cpus = 1
memory_mb = 2048
storage_mb = 2048
workdir = "/repo"
"""


def pack(files: Files) -> bytes:
    """A tar.gz that depends on names, bytes and modes alone. Each file is compressed by itself (a gzip file may have many
    members), and remembered: the archives of two tasks of a repository differ in one file."""
    return b"".join([*(_member(name, *files[name]) for name in sorted(files)), _END])


_END = gzip.compress(bytes(2 * tarfile.BLOCKSIZE), mtime=0)
_MEMBERS: dict[tuple[str, int, bytes | Path], bytes] = {}
_MOST_MEMBERS = 20_000


def _member(name: str, content: bytes | Path, mode: int) -> bytes:
    key = name, mode, content if isinstance(content, Path) else hashlib.sha256(content).digest()
    if (held := _MEMBERS.get(key)) is not None:
        return held
    info = tarfile.TarInfo(name)
    info.mode = mode
    body = b""
    if isinstance(content, Path):
        info.type, info.linkname = tarfile.SYMTYPE, str(content)
    else:
        info.size = len(content)
        body = content + bytes(-len(content) % tarfile.BLOCKSIZE)
    made = gzip.compress(info.tobuf(tarfile.PAX_FORMAT) + body, compresslevel=6, mtime=0)
    if len(_MEMBERS) >= _MOST_MEMBERS:
        _MEMBERS.clear()
    _MEMBERS[key] = made
    return made


def read_files(tree: Path) -> dict[str, tuple[bytes | Path, int]]:
    """What a folder holds without its ``.git``."""
    files: dict[str, tuple[bytes | Path, int]] = {}
    for file in tree.rglob("*"):
        name = file.relative_to(tree).as_posix()
        if name == ".git" or name.startswith(".git/"):
            continue
        if file.is_symlink():
            files[name] = (file.readlink(), 0o777)
        elif file.is_file():
            files[name] = (file.read_bytes(), 0o755 if file.stat().st_mode & 0o100 else 0o644)
    return files


def tree_id_of(files: Files) -> str:
    """The git tree id of these files; no git runs."""
    entries = {}
    for name, (content, mode) in files.items():
        data = os.fsencode(content) if isinstance(content, Path) else content
        kind = 0o120000 if isinstance(content, Path) else 0o100000 | mode
        entries[name] = kind, object_id("blob", data)
    return tree_of(entries)


def copy_for_solver(place: Path, target: Path) -> None:
    """Only what a solver may see of a task directory."""
    target.mkdir(parents=True)
    shutil.copytree(place / "environment", target / "environment")
    shutil.copy2(place / "instruction.md", target)
