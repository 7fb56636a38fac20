"""Trees: what a task looks like on disk for its solver and for its judge, made from the task's own directory."""

from __future__ import annotations

import asyncio
import functools
import io
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from frognano.records import Task
from frognano.tasks.bytecode import bytecode
from frognano.tasks.environment import restore_environment
from frognano.tasks.errors import TaskError
from frognano.tasks.git import commit_tree
from frognano.tasks.harbor import HIDDEN, REPO_ARCHIVE, Files, read_files, tree_id_of
from frognano.tasks.snapshot import Snapshot, publish

_LEASE_SECONDS = 3_600.0


class Trees:
    """``tasks`` holds one directory per task id, ``cache`` the environments, ``scratch`` (best on /dev/shm) the trees.

    Solver trees are shared by content and kept; the least recently used beyond ``keep`` go. One that was used in the
    last hour stays, since a box may lie on top of it.
    """

    def __init__(self, tasks: Path, cache: Path, scratch: Path, keep: int = 64) -> None:
        self.tasks, self.cache, self.keep = tasks, cache, keep
        self.scratch = scratch
        self._kept = threading.Lock()
        """Held where a tree is found or thrown away: one must not go between being found and being marked as used."""
        (scratch / "solver").mkdir(parents=True, exist_ok=True)

    async def solver(self, task: Task) -> Path:
        """What the solver works on: bug in, hidden tests out, a git repository of one commit. Do not write to it."""
        return await asyncio.to_thread(self._solver, task)

    async def environment(self, task: Task) -> Path:
        return await restore_environment(task.environment, task.origin, self.cache)

    async def bytecode(self, task: Task) -> dict[str, Path]:
        """What a box needs beside the task to load its clean files without compiling them; empty when it is not there."""
        return bytecode(task.origin.tree, task.environment.key, self.cache)

    async def hidden(self, task: Task) -> dict[str, bytes]:
        """The hidden test files by path."""
        data = await asyncio.to_thread((self.tasks / task.id / HIDDEN).read_bytes)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = {m.name: file.read() for m in tar if (file := tar.extractfile(m)) is not None}
        if set(found) != set(task.hidden_files):
            raise TaskError(f"task {task.id}: its hidden files are not those of the record; write the task anew")
        return found

    def _solver(self, task: Task) -> Path:
        place = self.scratch / "solver" / task.base
        with self._kept:
            if place.exists():
                place.touch()
                return place
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix=".new-") as scratch:
            fresh = Path(scratch) / "repo"
            fresh.mkdir()
            with tarfile.open(self.tasks / task.id / REPO_ARCHIVE) as tar:
                tar.extractall(fresh, filter="data")
            if (made := commit_tree(fresh)) != task.base:
                raise TaskError(
                    f"task {task.id}: its archive holds tree {made}, the record says {task.base}; write it anew"
                )
            publish(fresh, place)
        self._evict()
        return place

    def _evict(self) -> None:
        with self._kept:
            by_age = sorted((self.scratch / "solver").iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
            for old in by_age[self.keep :]:
                if time.time() - old.stat().st_mtime > _LEASE_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)


def plant(snapshot: Snapshot, changes: Mapping[str, bytes], hidden: tuple[str, ...]) -> tuple[Files, str]:
    """The solver's tree, with the bug and without the hidden tests, and its git tree id. Nothing is written: the id is
    checked by git when the tree is first unpacked."""
    files = dict(_clean(snapshot.root, snapshot.tree))
    for name, data in changes.items():
        files[name] = data, files[name][1]
    for name in hidden:
        del files[name]
    return files, tree_id_of(files)


@functools.lru_cache(maxsize=16)
def _clean(root: Path, tree: str) -> Files:
    return read_files(root)


def put(root: Path, name: str, data: bytes, mode: int | None = None) -> None:
    """Write a file whatever stands in its way: a link, a file in place of a folder, a folder in place of the file."""
    folder = root
    for part in name.split("/")[:-1]:
        folder = folder / part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    target = root / name
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    if target.is_symlink():
        target.unlink()
    target.write_bytes(data)
    if mode is not None:
        target.chmod(mode)
