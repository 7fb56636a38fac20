"""Workspaces as git sees them, without git ever seeing one: bytes go in by fast-import, a patch comes out by diff-tree.

No index, no checkout and no work tree, so no filter, hook, attribute or symbolic link of a workspace has any effect."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frognano.sandbox.base import SandboxError, require_not_killed

_JUNK = "__pycache__/\n*.py[co]\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\n.coverage\n*.egg-info/\n"
_ENV = {
    "PATH": os.defpath,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "LC_ALL": "C",
    "GIT_CONFIG_COUNT": "1",  # objects live as long as a box: compressing them is waste
    "GIT_CONFIG_KEY_0": "core.compression",
    "GIT_CONFIG_VALUE_0": "0",
}


@dataclass(frozen=True)
class Base:
    """A workspace at the start of a box: its files for the toolbox, and the same files as commit ``base``."""

    workspace: Path
    git: Path
    entries: list[list[Any]]
    pack: Path

    def payload(self) -> bytes:
        return self.pack.read_bytes()

    def diff(self, entries: Sequence[Sequence[Any]], deleted: Sequence[str], payload: bytes) -> bytes:
        """The patch from the base to the base with these files, without new ones that its .gitignore names."""
        ignored = self._ignored([path for path, _, _, new in entries if new])
        changed = []
        offset = 0
        for path, mode, size, _ in entries:
            if path not in ignored:
                changed.append((path, mode, payload[offset : offset + size]))
            offset += size
        if not changed and not deleted:
            return b""
        with tempfile.TemporaryDirectory(dir=self.git.parent, prefix="diff-") as name:
            git = Path(name)
            _init(git)
            (git / "objects/info/alternates").write_bytes(os.fsencode(self.git / "objects") + b"\n")
            base = (self.git / "refs/heads/base").read_text().strip()
            _git(git, ["fast-import", "--quiet"], _stream("box", changed, deleted, base))
            arguments = ["diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-ext-diff"]
            arguments += ["--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", base, "refs/heads/box"]
            return _git(git, arguments)

    def _ignored(self, paths: list[str]) -> set[str]:
        """Asked of the host's untouched copy, so that a box cannot hide a file by a .gitignore of its own."""
        if not paths:
            return set()
        asked = b"\0".join(map(os.fsencode, paths))
        arguments = [f"--work-tree={self.workspace}", "check-ignore", "--no-index", "-z", "--stdin"]
        # 1: none of them; 128: one lies where the base has a link, which is no fault of ours, and those before it are told
        found = _git(self.git, arguments, asked, cwd=self.workspace, ok=(0, 1, 128))
        return set(map(os.fsdecode, found.split(b"\0")))


class Bases:
    """Makes each base once; a workspace that changed on the host since then gets a new one."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._bases: dict[str, Base] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def of(self, workspace: Path) -> Base:
        workspace = workspace.resolve()
        if not workspace.is_dir():
            raise SandboxError(f"the workspace {workspace} is not a directory")
        found = list(_walk(workspace, ""))
        digest = hashlib.sha256(os.fsencode(workspace))
        for path, s in found:
            digest.update(repr((path, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)).encode())
        key = digest.hexdigest()[:32]
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._bases:
                self._bases[key] = self._make(workspace, found, self._scratch / key)
            return self._bases[key]

    @staticmethod
    def _make(workspace: Path, found: list[tuple[str, os.stat_result]], home: Path) -> Base:
        if not shutil.which("git", path=_ENV["PATH"]):
            raise SandboxError("no git to make patches with: `apt-get install git`")
        entries: list[list[Any]] = []
        files: list[tuple[str, int, bytes]] = []
        contents: list[bytes] = []
        for path, s in found:
            if stat.S_ISDIR(s.st_mode):
                entries.append([path, s.st_mode, s.st_mtime_ns, -1])
                continue
            full = workspace / path
            data = os.readlink(os.fsencode(full)) if stat.S_ISLNK(s.st_mode) else full.read_bytes()
            entries.append([path, s.st_mode, s.st_mtime_ns, len(data)])
            contents.append(data)
            if ".git" not in path.split("/"):
                files.append((path, s.st_mode, data))
        shutil.rmtree(home, ignore_errors=True)  # what a git that was killed has left of it
        git = home / "git"
        _init(git)
        (git / "info").mkdir()
        (git / "info/exclude").write_text(_JUNK)
        _git(git, ["fast-import", "--quiet"], _stream("base", files, (), ""))
        pack = home / "pack"
        pack.write_bytes(b"".join(contents))
        return Base(workspace, git, entries, pack)


def _walk(root: Path, directory: str) -> Iterable[tuple[str, os.stat_result]]:
    """Directories, files and links, parents first; anything else has no place in a repository."""
    for entry in sorted(os.scandir(root / directory), key=lambda e: e.name):
        path = os.path.join(directory, entry.name)
        s = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(s.st_mode):
            yield path, s
            yield from _walk(root, path)
        elif stat.S_ISREG(s.st_mode) or stat.S_ISLNK(s.st_mode):
            yield path, s


def _init(git: Path) -> None:
    """What ``git init --bare`` makes, less its templates: a few directories cost less than a process."""
    (git / "objects/info").mkdir(parents=True)
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/none\n")
    (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")


def _git(
    git: Path, arguments: list[str], stdin: bytes = b"", *, cwd: Path | None = None, ok: tuple[int, ...] = (0,)
) -> bytes:
    command = ["git", f"--git-dir={git}", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, env=_ENV, cwd=cwd or git)
    if done.returncode not in ok:
        name = next(a for a in arguments if not a.startswith("-"))
        require_not_killed(f"git {name}", done.returncode)
        raise SandboxError(f"git {name} failed: {done.stderr.decode('utf-8', 'replace').strip()[:500]}")
    return done.stdout


def _stream(branch: str, files: Sequence[tuple[str, int, bytes]], deleted: Sequence[str], parent: str) -> bytes:
    """One commit for git fast-import, whose content is taken byte for byte."""
    parts = [b"commit refs/heads/%s\ncommitter frognano <> 0 +0000\ndata 0\n" % branch.encode()]
    if parent:
        parts.append(b"from %s\n" % parent.encode())
    parts += [b"D %s\n" % _quote(path) for path in deleted]
    for path, mode, data in files:
        kind = b"120000" if stat.S_ISLNK(mode) else b"100755" if mode & 0o100 else b"100644"
        parts += [b"M %s inline %s\ndata %d\n" % (kind, _quote(path), len(data)), data, b"\n"]
    return b"".join(parts)


def _quote(path: str) -> bytes:
    """A C string: every byte that is not plain goes as octal."""
    plain = bytes(c if 32 < c < 127 and c not in b'"\\' else 0 for c in range(256))
    return b'"%s"' % b"".join(bytes([c]) if plain[c] else b"\\%03o" % c for c in os.fsencode(path))
