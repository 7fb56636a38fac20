"""Snapshots and task directories: nothing foreign gets in, nothing of the solution gets out, no byte changes."""

from __future__ import annotations

import io
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from frognano.sandbox.base import BoxSpec
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.tasks.errors import TaskError
from frognano.tasks.git import apply_patch, assert_one_commit, commit_tree, git, make_patch, tree_id
from frognano.tasks.harbor import HIDDEN, REPO_ARCHIVE, copy_for_solver, pack, read_files, read_task, write_task
from frognano.tasks.repository import RepositoryConfig, load_repositories
from frognano.tasks.snapshot import fetch_snapshot, unpack_sdist

from .conftest import CALC, World, toy


async def test_the_future_cannot_be_read(world: World, boxes: BubblewrapSandboxes, tmp_path: Path) -> None:
    root = await world.trees.solver(world.task)
    assert_one_commit(root)
    fixed = git("hash-object", str(world.snapshot.root / "calc.py"), cwd=tmp_path).decode().strip()
    async with boxes.open(BoxSpec(root)) as box:
        log = await box.exec(["git", "log", "--all", "--oneline"])
        gold = await box.exec(["git", "cat-file", "-e", fixed])
        reflog = await box.exec(["git", "reflog"])
        remotes = await box.exec(["git", "remote", "-v"])
        tests = await box.exec(["git", "ls-files", "tests"])
        status = await box.exec(["git", "status", "--porcelain"])
    assert len(log.stdout.splitlines()) == 1, log
    assert gold.exit_code != 0
    assert (reflog.stdout, remotes.stdout, status.stdout) == (b"", b"", b"")
    assert tests.stdout == b"tests/test_other.py\n"


def test_a_foreign_object_is_noticed(tmp_path: Path) -> None:
    root = tmp_path / "r"
    root.mkdir()
    (root / "a.py").write_text("1\n")
    commit_tree(root)
    git("hash-object", "-w", "--stdin", cwd=root, stdin=b"the fix")
    with pytest.raises(TaskError, match="1 objects outside"):
        assert_one_commit(root)
    (root / "b.py").write_text("2\n")
    assert commit_tree(root) == tree_id(root)
    git("commit", "-q", "--allow-empty", "-m", "second", cwd=root)
    with pytest.raises(TaskError, match="2 commits"):
        assert_one_commit(root)


def test_attributes_and_ignore_files_of_a_tree_change_no_byte(tmp_path: Path) -> None:
    files = {"a.txt": b"x\r\ny\r\n", ".gitattributes": b"* text=auto eol=lf\n", ".gitignore": b"*.txt\n"}
    for root in (tmp_path / "one", tmp_path / "two"):
        root.mkdir()
        for name, data in files.items():
            (root / name).write_bytes(data)
    commit_tree(tmp_path / "one")
    assert git("cat-file", "blob", "HEAD:a.txt", cwd=tmp_path / "one") == files["a.txt"]
    apply_patch(make_patch("a.txt", files["a.txt"], b"x\r\nz"), tmp_path / "two")
    assert (tmp_path / "two/a.txt").read_bytes() == b"x\r\nz"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"a\nb", b"a\nc"),
        (b"a\n", b"a"),
        (b"a\x0cb\n", b"a\x0cc\n"),
        ("a\u2028b\n".encode(), "a\u2028c\n".encode()),
        (b"caf\xe9\n", b"caf\xe8\n"),
        (b"\0\1", b"\0\2"),
        (b"a  \n\n", b"a \n"),
    ],
)
def test_a_patch_is_exact_to_the_byte(old: bytes, new: bytes, tmp_path: Path) -> None:
    root = tmp_path / "r"
    for name in ("f.py", "a b/é.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(old)
        apply_patch(make_patch(name, old, new), root)
        assert (root / name).read_bytes() == new


def test_a_task_directory_loses_nothing_and_shows_no_solution(world: World, tmp_path: Path) -> None:
    place = world.trees.tasks / world.task.id
    assert read_task(place) == world.task
    assert not list(world.trees.tasks.glob(".*"))
    copy_for_solver(place, tmp_path / "seen")
    with tarfile.open(tmp_path / "seen" / REPO_ARCHIVE) as tar:
        names = tar.getnames()
        seen = b"".join(file.read() for m in tar if (file := tar.extractfile(m)))
    assert names == ["calc.py", "tests/test_other.py"]
    assert b"if x < low" not in seen
    assert sorted(p.name for p in (tmp_path / "seen").rglob("*") if p.is_file()) == [
        "Dockerfile",
        "instruction.md",
        "repo.tar.gz",
    ]
    with tarfile.open(fileobj=io.BytesIO((place / HIDDEN).read_bytes())) as tar:
        assert tar.getnames() == ["tests/test_calc.py"]
    (tmp_path / "t").mkdir()
    tree = tmp_path / "t/tree"
    tree.mkdir()
    with tarfile.open(place / REPO_ARCHIVE) as tar:
        tar.extractall(tree, filter="data")
    assert pack(read_files(tree)) == (place / REPO_ARCHIVE).read_bytes()
    again = write_task(tmp_path / "t", world.task, read_files(tree), {"tests/test_calc.py": b"x"})
    assert read_task(again) == world.task
    (again / "solution/gold.patch").write_bytes(b"")
    with pytest.raises(TaskError, match="gold patch"):
        read_task(again)
    (again / HIDDEN).unlink()
    with pytest.raises(TaskError, match=r"lacks tests/hidden.tar.gz"):
        read_task(again)
    with pytest.raises(TaskError, match="not the hidden files"):
        write_task(tmp_path / "t", world.task, read_files(tree), {})


async def test_a_changed_archive_is_refused(world: World, tmp_path: Path) -> None:
    from frognano.tasks.trees import Trees

    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "calc.py").write_text(CALC)
    write_task(tmp_path / "tasks", world.task, read_files(tree), {"tests/test_calc.py": b""})
    with pytest.raises(TaskError, match="the record says"):
        await Trees(tmp_path / "tasks", world.cache, tmp_path / "s").solver(world.task)


def sdist(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return sha256(path.read_bytes()).hexdigest()


def test_a_wrong_checksum_or_an_unsafe_archive_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    right = sdist(tmp_path / "a.tar.gz", {"a-1/a.py": b"1", "a-1/a.egg-info/PKG-INFO": b"x"})
    with pytest.raises(TaskError, match="another checksum"):
        unpack_sdist(tmp_path / "a.tar.gz", "0" * 64, tree)
    assert not list(tree.iterdir())
    unpack_sdist(tmp_path / "a.tar.gz", right, tree)
    assert (tree / "a.py").read_bytes() == b"1"
    evil = sdist(tmp_path / "b.tar.gz", {"a-1/../../evil": b"1"})
    with pytest.raises(TaskError, match="unpacked safely"):
        unpack_sdist(tmp_path / "b.tar.gz", evil, tree)
    assert not (tmp_path / "evil").exists()


async def test_an_untracked_file_or_a_submodule_does_not_slip_in(tmp_path: Path) -> None:
    config = toy(tmp_path / "calc", {"calc.py": CALC, "tests/test_a.py": "", "secret.env": "x"})
    root = config.path
    assert root is not None

    def run(*args: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *who, *args], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "-q")
    run("add", "calc.py", "tests")
    run("commit", "-qm", "one")
    commit = run("rev-parse", "HEAD")
    snapshot = await fetch_snapshot(config, tmp_path / "cache")
    assert sorted(p.name for p in snapshot.root.iterdir()) == ["calc.py", "tests"]
    (root / "calc.py").write_text("later")
    run("commit", "-qam", "two")
    by_git = RepositoryConfig(name="calc", version="1.0", git=str(root), commit=commit, tests=("tests",))
    fetched = await fetch_snapshot(by_git, tmp_path / "cache")
    assert fetched.tree == snapshot.tree
    assert (await fetch_snapshot(by_git, tmp_path / "cache")).root == fetched.root
    run("update-index", "--add", "--cacheinfo", f"160000,{commit},vendored")
    run("commit", "-qm", "three")
    sub = by_git.model_copy(update={"commit": run("rev-parse", "HEAD")})
    with pytest.raises(TaskError, match="vendored is a git submodule"):
        await fetch_snapshot(sub, tmp_path / "cache")


def test_two_at_once_make_one_snapshot(tmp_path: Path) -> None:
    import asyncio

    config = toy(tmp_path / "calc", {"calc.py": CALC, "tests/test_a.py": ""})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: asyncio.run(fetch_snapshot(config, tmp_path / "cache")), range(4)))
    assert len({s.root for s in found}) == 1
    assert len(list((tmp_path / "cache/snapshots").iterdir())) == 1


def test_the_pool_is_pinned_and_split() -> None:
    pool = load_repositories()
    assert len(pool) >= 10
    assert sum(r.role == "heldout" for r in pool.values()) >= 5
    assert all(r.sha256 for r in pool.values())
    with pytest.raises(ValueError, match="exactly one"):
        RepositoryConfig(name="a", version="1", tests=("tests",))
    with pytest.raises(ValueError, match="pin funcy"):
        RepositoryConfig(name="a", version="1", git="u", commit="0" * 40, tests=("t",), requirements=("funcy",))


async def test_a_pinned_checksum_is_held_to_by_pip(cache: Path) -> None:
    config = load_repositories()["inflection"]
    with pytest.raises(TaskError, match="another checksum"):
        await fetch_snapshot(config.model_copy(update={"sha256": "0" * 64}), cache)


@pytest.mark.slow
async def test_a_real_sdist_comes_through_pip(cache: Path) -> None:
    snapshot = await fetch_snapshot(load_repositories()["inflection"], cache)
    assert snapshot.sources() == ["inflection/__init__.py"]
    assert not list(snapshot.root.rglob("*.egg-info"))
