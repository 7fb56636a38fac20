"""Git as a trusted tool: no user configuration, no filters, no hooks, no line-ending conversion."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from frognano.runs.files import no_space
from frognano.sandbox.base import require_not_killed
from frognano.sandbox.scratch import temporary
from frognano.tasks.errors import TaskError

RAW_ATTRIBUTES = "* -text -eol -crlf -filter -ident -working-tree-encoding\n"
"""In ``info/attributes``, where it outranks every .gitattributes of the tree: bytes go in and out as they are."""

_ENV = {
    "PATH": os.defpath,
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "frognano",
    "GIT_AUTHOR_EMAIL": "frognano@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "frognano",
    "GIT_COMMITTER_EMAIL": "frognano@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}
_CONFIG = (
    *("-c", "core.autocrlf=false", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"),
    *("-c", f"core.excludesFile={os.devnull}", "-c", "core.logAllRefUpdates=false", "-c", "gc.auto=0"),
    *("-c", "core.quotePath=true", "-c", "safe.directory=*", "-c", "commit.gpgSign=false"),
)

_ROOM = 16 << 20
"""Bytes: with less a disk is full, when git says so. Its word alone is not enough: it repeats lines of a bad patch."""


def git(*args: str, cwd: Path, stdin: bytes = b"", ok: tuple[int, ...] = (0,), timeout: float = 120.0) -> bytes:
    """Run git and return its output; a return code outside ``ok`` is a TaskError with git's own words.

    HostKilled where git was killed, StoreError where the disk was full: these say nothing of what it was asked.
    """
    env = {**_ENV, "PATH": os.environ.get("PATH", os.defpath), "GIT_CEILING_DIRECTORIES": str(cwd.parent)}
    done = subprocess.run(["git", *_CONFIG, *args], cwd=cwd, env=env, input=stdin, capture_output=True, timeout=timeout)
    if done.returncode not in ok:
        command = next(a for a in args if not a.startswith(("-", "/")))
        require_not_killed(f"git {command}", done.returncode)
        if b"No space left on device" in done.stderr and shutil.disk_usage(cwd).free < _ROOM:
            raise no_space(cwd)
        said = done.stderr.decode(errors="replace").strip()[-400:]
        raise TaskError(f"git {command} failed ({done.returncode}): {said}")
    return done.stdout


def init(git_dir: Path) -> None:
    """A new repository whose attributes leave every byte alone: what ``git init`` makes without a template."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        (git_dir / folder).mkdir(parents=True)
    (git_dir / "HEAD").write_text("ref: refs/heads/main\n")
    (git_dir / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n")
    (git_dir / "info" / "attributes").write_text(RAW_ATTRIBUTES)


def commit_tree(root: Path) -> str:
    """Make ``root`` a repository of one commit, with no other object, remote or reflog; the id of its tree."""
    shutil.rmtree(root / ".git", ignore_errors=True)
    init(root / ".git")
    git("add", "-A", "-f", ".", cwd=root)
    git("commit", "-q", "--allow-empty", "-m", "Initial commit", cwd=root)
    assert_one_commit(root)
    return git("rev-parse", "HEAD^{tree}", cwd=root).decode().strip()


def assert_one_commit(root: Path) -> None:
    """TaskError when anything but one root commit and what it reaches can be read from the repository."""
    commits = git("rev-list", "--all", cwd=root).split()
    if len(commits) != 1:
        raise TaskError(f"{root}: {len(commits)} commits are readable, a snapshot has exactly one")
    reachable = {line[:40] for line in git("rev-list", "--all", "--objects", cwd=root).splitlines()}
    every = git("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)", cwd=root)
    if foreign := set(every.split()) - reachable:
        raise TaskError(f"{root}: {len(foreign)} objects outside the commit are readable; make the tree anew")
    if (root / ".git/logs").exists() or (root / ".git/objects/info/alternates").exists():
        raise TaskError(f"{root}: the repository has a reflog or alternates; make the tree anew")


def tree_id(root: Path) -> str:
    """The git tree id of a folder without making it a repository."""
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".tree-") as scratch:
        git_dir = Path(scratch) / "g"
        init(git_dir)
        at = ("--git-dir", str(git_dir), "--work-tree", str(root))
        git(*at, "add", "-A", "-f", ".", cwd=root)
        return git(*at, "write-tree", cwd=root).decode().strip()


def object_id(kind: str, data: bytes) -> bytes:
    """The 20 bytes by which git names an object."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).digest()


def tree_of(files: Mapping[str, tuple[int, bytes]]) -> str:
    """The git tree id of files (path to mode as git writes it, 0o100644, and blob id), computed without git."""
    folders: dict[str, dict[str, tuple[int, bytes]]] = {"": {}}
    for name, entry in files.items():
        folder, _, leaf = name.rpartition("/")
        folders.setdefault(folder, {})[leaf] = entry
        while folder:  # a folder that holds only folders
            folder = folder.rpartition("/")[0]
            folders.setdefault(folder, {})
    for folder in sorted(folders, key=lambda f: f.count("/") + bool(f), reverse=True):
        held = folders[folder]
        order = sorted(held, key=lambda n: n.encode("utf-8", "surrogateescape") + b"/" * (held[n][0] == 0o40000))
        rows = (b"%o %s\0%s" % (held[n][0], n.encode("utf-8", "surrogateescape"), held[n][1]) for n in order)
        made = object_id("tree", b"".join(rows))
        if not folder:
            return made.hex()
        above, _, leaf = folder.rpartition("/")
        folders[above][leaf] = (0o40000, made)
    raise AssertionError("the root is the last folder")


def make_patch(path: str, old: bytes, new: bytes) -> bytes:
    """The byte-exact patch that turns ``old`` into ``new`` at ``path``."""
    with temporary() as scratch:
        for side, data in (("a", old), ("b", new)):
            file = scratch / side / path
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
        flags = (
            "--no-index",
            "--no-prefix",
            "--binary",
            "--full-index",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
        )
        return git("diff", *flags, f"a/{path}", f"b/{path}", cwd=scratch, ok=(0, 1))


def apply_patch(patch: bytes, root: Path) -> None:
    """Apply to the plain folder ``root``: no fuzz, no partial result; TaskError when it does not fit."""
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".apply-") as scratch:
        git_dir = Path(scratch) / "g"
        init(git_dir)
        at = ("--git-dir", str(git_dir), "--work-tree", str(root))
        git(*at, "apply", "--whitespace=nowarn", "-", cwd=root, stdin=patch)
