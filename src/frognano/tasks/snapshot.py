"""Snapshot: the clean tree of a repository, fetched once, checked, and cached by content."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from frognano.records import Origin
from frognano.sandbox.base import require_not_killed
from frognano.sandbox.scratch import temporary
from frognano.tasks.errors import TaskError
from frognano.tasks.git import git, tree_id
from frognano.tasks.repository import RepositoryConfig

_JUNK_FOLDERS = {".git", "__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".tox", ".venv"}

_WRONG_HASH = "DO NOT MATCH THE HASHES"


@dataclass(frozen=True)
class Snapshot:
    """A clean tree on disk, without version control. Never written to: copies and boxes are made of it."""

    repository: RepositoryConfig
    root: Path
    tree: str

    @property
    def origin(self) -> Origin:
        repo = self.repository
        return Origin(name=repo.name, version=repo.version, source=repo.source, tree=self.tree)

    def sources(self) -> list[str]:
        """Python files of the package, tests left out: where bugs may go."""
        names = (p.relative_to(self.root).as_posix() for p in self.root.rglob("*.py"))
        module = self.repository.module
        inside = (
            n
            for n in names
            if n in (f"{module}.py", f"src/{module}.py") or n.startswith((f"{module}/", f"src/{module}/"))
        )
        return sorted(n for n in inside if not is_test_path(n))


def is_test_path(path: str) -> bool:
    """Whether a file belongs to tests: in a folder called test or tests, or by its name."""
    *folders, name = path.split("/")
    named = name.startswith("test_") or name.endswith("_test.py") or name in ("conftest.py", "tests.py", "test.py")
    return named or "tests" in folders or "test" in folders


async def fetch_snapshot(repository: RepositoryConfig, cache: Path) -> Snapshot:
    """The snapshot of a repository; from the cache when it is there. Safe in several processes at once."""
    return await asyncio.to_thread(_fetch, repository, cache)


def _fetch(repository: RepositoryConfig, cache: Path) -> Snapshot:
    folder = cache / "snapshots"
    folder.mkdir(parents=True, exist_ok=True)
    if repository.source != "path":  # a local folder changes under its name: its key is its content, known only later
        pinned = repository.sha256 or f"{repository.git}@{repository.commit}"
        key = hashlib.sha256(f"1:{repository.source}:{pinned}".encode()).hexdigest()[:24]
        if (folder / key / "id").exists():
            return _checked(repository, folder / key)
    with temporary(folder) as scratch:
        fresh = scratch / "snapshot"
        tree = fresh / "tree"
        tree.mkdir(parents=True)
        {"sdist": _from_sdist, "path": _from_path, "git": _from_git}[repository.source](repository, tree, scratch)
        _drop_junk(tree)
        (fresh / "id").write_text(tree_id(tree))
        if repository.source == "path":
            key = (fresh / "id").read_text()[:24]
        publish(fresh, folder / key)
    return _checked(repository, folder / key)


def publish(fresh: Path, place: Path) -> None:
    """Move a finished folder to its place; when another process was first, its copy stays."""
    try:
        fresh.rename(place)
    except OSError:
        if not place.exists():
            raise


def _checked(repository: RepositoryConfig, place: Path) -> Snapshot:
    root = place / "tree"
    if missing := [t for t in repository.tests if not (root / t).exists()]:
        raise TaskError(
            f"repository {repository.name} {repository.version} has no {', '.join(missing)}: "
            "name test paths that its tree holds, or take another source (many sdists ship no tests)"
        )
    if not any(
        (root / base / name).exists() for base in ("", "src") for name in (repository.module, f"{repository.module}.py")
    ):
        raise TaskError(f"repository {repository.name}: no package {repository.module} in its tree; set `package`")
    return Snapshot(repository, root, (place / "id").read_text())


def _from_sdist(repository: RepositoryConfig, tree: Path, scratch: Path) -> None:
    name = f"{repository.name}=={repository.version}"
    (scratch / "requirements.txt").write_text(f"{name} --hash=sha256:{repository.sha256}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    pip += ["--no-binary", ":all:", "--require-hashes", "-r", "requirements.txt", "-d", "sdist"]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_REQUIRE_VIRTUALENV")}
    # pip asks the build backend for metadata that we do not need: with one of ours in a moment, else in an environment
    # that it makes for it
    for isolation in (["--no-build-isolation"], []):
        done = subprocess.run([*pip, *isolation], cwd=scratch, env=env, capture_output=True, text=True, timeout=600)
        if done.returncode == 0 or _WRONG_HASH in done.stderr:
            break
    require_not_killed("pip download", done.returncode)
    archives = [p for p in (scratch / "sdist").glob("*") if p.name.endswith((".tar.gz", ".tgz", ".zip"))]
    if _WRONG_HASH in done.stderr:
        raise TaskError(f"{name}: the sdist has another checksum than the pinned one; do not use it, or pin anew")
    if done.returncode or len(archives) != 1:
        raise TaskError(f"{name}: pip found no sdist of it: {done.stderr.strip()[-300:]}")
    unpack_sdist(archives[0], repository.sha256, tree)


def unpack_sdist(archive: Path, sha256: str, tree: Path) -> None:
    """Unpack the one top folder of an sdist into ``tree`` once its checksum is right."""
    if hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
        raise TaskError(f"{archive.name} has another checksum than the pinned one; do not use it, or pin anew")
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix=".unpack-") as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        except tarfile.TarError as error:
            raise TaskError(f"{archive.name} cannot be unpacked safely: {error}") from error
        tops = list(Path(scratch).iterdir())
        if len(tops) != 1 or not tops[0].is_dir():
            raise TaskError(f"{archive.name} is no sdist: it holds {len(tops)} top entries instead of one folder")
        shutil.copytree(tops[0], tree, symlinks=True, dirs_exist_ok=True)


def _from_path(repository: RepositoryConfig, tree: Path, scratch: Path) -> None:
    root = repository.folder()
    if (root / ".git").exists():
        listed = git("ls-files", "-z", "--cached", "--exclude-standard", cwd=root).split(b"\0")
        names = [os.fsdecode(n) for n in listed if n]
    else:
        names = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() or p.is_symlink()]
        names = [n for n in names if not _JUNK_FOLDERS & set(n.split("/"))]
    for name in names:
        source, target = root / name, tree / name
        if source.is_dir() and not source.is_symlink():
            raise TaskError(f"repository {repository.name}: {name} is a git submodule; vendor it or take a release")
        if not source.exists() and not source.is_symlink():
            continue  # tracked, but deleted in the work tree
        if source.is_symlink() and not source.resolve().is_relative_to(root):
            raise TaskError(f"repository {repository.name}: the link {name} leads out of the tree; remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _from_git(repository: RepositoryConfig, tree: Path, scratch: Path) -> None:
    store = scratch / "store.git"
    git("init", "-q", "--bare", "--template=", str(store), cwd=scratch)
    fetch = ("fetch", "-q", "--depth", "1", "--no-tags", "--end-of-options", repository.git, repository.commit)
    try:
        git(*fetch, cwd=store, timeout=600)
    except TaskError as error:
        raise TaskError(
            f"repository {repository.name}: {repository.git} does not give commit {repository.commit}; "
            f"correct `git` or `commit` in the pool ({error})"
        ) from error
    for entry in git("ls-tree", "-rz", "--full-tree", repository.commit, cwd=store).split(b"\0"):
        if not entry:
            continue
        head, _, raw = entry.partition(b"\t")
        mode, _, blob = head.decode().split()
        name = os.fsdecode(raw)
        target = tree / name
        if mode == "160000":
            raise TaskError(f"repository {repository.name}: {name} is a git submodule; vendor it or take a release")
        target.parent.mkdir(parents=True, exist_ok=True)
        data = git("cat-file", "blob", blob, cwd=store)
        if mode == "120000":
            if not (target.parent / os.fsdecode(data)).resolve().is_relative_to(tree.resolve()):
                raise TaskError(f"repository {repository.name}: the link {name} leads out of the tree")
            target.symlink_to(os.fsdecode(data))
        else:
            target.write_bytes(data)
            target.chmod(0o755 if mode == "100755" else 0o644)


def _drop_junk(tree: Path) -> None:
    """Build and cache leftovers, nested version control, and compiled files that could shadow the source."""
    for folder, names, files in os.walk(tree):
        for name in [n for n in names if n in _JUNK_FOLDERS or n.endswith(".egg-info")]:
            names.remove(name)
            shutil.rmtree(Path(folder) / name)
        for name in files:
            if name.endswith(".pyc"):
                (Path(folder) / name).unlink()
