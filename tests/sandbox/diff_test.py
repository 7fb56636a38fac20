"""The patch is judged and learned from: it must give back every byte, and git must never run what a box wrote."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from frognano.sandbox.base import BoxSpec
from frognano.sandbox.bubblewrap import BubblewrapSandbox, BubblewrapSandboxes


def apply(workspace: Path, patch: bytes) -> None:
    """As a grader does: on a pristine copy, with git of the host."""
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-p1", "-"], input=patch, cwd=workspace, check=True, capture_output=True
    )


def files(root: Path) -> dict[str, tuple[str, bytes]]:
    """Every path with its kind and content."""
    found: dict[str, tuple[str, bytes]] = {}
    for path in root.rglob("*"):
        s = path.lstat()
        if stat.S_ISLNK(s.st_mode):
            found[str(path.relative_to(root))] = ("link", os.readlink(os.fsencode(path)))
        elif stat.S_ISREG(s.st_mode):
            found[str(path.relative_to(root))] = ("x" if s.st_mode & 0o100 else "-", path.read_bytes())
    return found


CHANGES = {
    "crlf": "printf 'one\\r\\nTWO\\r\\nthree' > crlf.txt",
    "no final newline": "printf '# A title' > README.md",
    "latin-1": "printf 'caf\\351 ol\\350\\n' > latin.txt",
    "binary": "printf '\\0\\1\\2' | dd of=image.bin bs=1 seek=7 conv=notrunc 2>/dev/null",
    "mode": "chmod -x run.sh; chmod +x README.md",
    "link moved": "ln -sf crlf.txt link.md",
    "link to a file": "rm link.md; echo real > link.md",
    "file to a link": "rm README.md; ln -s /etc/passwd README.md",
    "file to a directory": "rm README.md; mkdir README.md; echo x > README.md/x",
    "directory to a file": "rm -r pkg; echo x > pkg",
    "deleted": "rm -r pkg crlf.txt",
    "new": "mkdir -p a/b; echo x > a/b/new.py; : > empty; printf 'no newline' > 'with space'",
    "odd names": "for n in $'q\"uote' $'back\\\\slash' caf\u00e9 $'new\\nline' $'\\xff'; do echo x > \"$n\"; done",
    "mtime put back": "touch -r README.md /tmp/t; sed -i s/title/TITLE/ README.md; touch -r /tmp/t README.md",
    "unreadable": "echo x > secret; chmod 0 secret; mkdir d; echo y > d/y; chmod 0 d",
    "attributes": "printf '* text eol=lf\\n*.txt filter=evil\\n' > .gitattributes; printf 'a\\r\\n' > crlf.txt",
    "hard link": "ln README.md hard.md",
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
async def test_bytes_are_lost_on_the_way(box: BubblewrapSandbox, workspace: Path, tmp_path: Path, name: str) -> None:
    done = await box.exec(["bash", "-ec", CHANGES[name]])
    assert done.exit_code == 0, done.stderr
    patch = await box.diff()
    await box.exec(["bash", "-c", "chmod -R u+rwX ."])
    inside = await box.exec(["python3", "-I", "-c", MANIFEST])
    graded = tmp_path / "graded"
    shutil.copytree(workspace, graded, symlinks=True)
    apply(graded, patch)
    assert files(graded) == eval(inside.stdout)


MANIFEST = """
import os, stat
found = {}
for top, _, names in os.walk(b"."):
    for name in names + [d for d in _ if os.path.islink(os.path.join(top, d))]:
        path = os.path.join(top, name)
        s = os.lstat(path)
        kind = "link" if stat.S_ISLNK(s.st_mode) else "x" if s.st_mode & 0o100 else "-"
        data = os.readlink(path) if kind == "link" else open(path, "rb").read()
        found[os.fsdecode(path[2:])] = (kind, data)
print(ascii(found))
"""


async def test_nothing_changed_gives_a_patch(box: BubblewrapSandbox) -> None:
    await box.exec(["sh", "-c", "cat README.md; touch README.md; cp README.md t; mv t README.md"])
    assert await box.diff() == b""


async def test_junk_and_ignored_files_get_into_the_patch(box: BubblewrapSandbox) -> None:
    junk = "pkg/__pycache__/a.pyc .pytest_cache/x build/x a.log"
    make = (
        f"for f in {junk}; do mkdir -p $(dirname $f); echo > $f; done; mkfifo p; echo '*' > .gitignore; echo > kept.py"
    )
    await box.exec(["bash", "-c", make])
    patch = await box.diff()
    named = sorted(line.split()[-1] for line in patch.splitlines() if line.startswith(b"diff --git"))
    assert named == [b"b/.gitignore", b"b/kept.py"]  # its own .gitignore hides nothing


async def test_committed_work_is_lost(sandboxes: BubblewrapSandboxes, workspace: Path) -> None:
    async with sandboxes.open(BoxSpec(workspace)) as box:
        git = "git -c user.name=a -c user.email=a@b"
        first = f"git init -q; git add -A; {git} commit -qm base; echo 'x = 1' > new.py; git add new.py"
        then = f"{git} commit -qm work; git reset -q --hard; {git} commit --amend; git log"  # no editor, no pager
        done = await box.exec(["bash", "-ec", f"{first}; {then}"])
        assert done.exit_code == 0, done.stderr
        patch = await box.diff()
        assert b"+x = 1" in patch
        assert b".git/" not in patch


ATTACK = """
git init -q
mark=$1
git config core.fsmonitor "touch $mark"; git config core.hooksPath /repo/hooks; git config core.pager "touch $mark"
for key in filter.evil.clean filter.evil.smudge filter.evil.process diff.evil.textconv diff.evil.command diff.external
do git config $key "touch $mark"; done
git config core.worktree /etc; git config include.path /repo/evil.config
mkdir hooks; printf "#!/bin/sh\\ntouch $mark\\n" > hooks/post-index-change; chmod +x hooks/*
printf '* filter=evil diff=evil\\n' > .gitattributes
cp .gitattributes .git/info/attributes
cp -r .git inner.git; mkdir sub; cp -r .git sub/.git; printf 'gitdir: /repo/inner.git' > pkg/.git
ln -s /etc up; echo changed > README.md; echo x > sub/file
"""


async def test_git_of_the_host_runs_what_the_workspace_configures(
    box: BubblewrapSandbox, workspace: Path, tmp_path: Path, sandboxes: BubblewrapSandboxes
) -> None:
    mark = tmp_path / "executed"
    done = await box.exec(["bash", "-ec", ATTACK, "attack", str(mark)])
    assert done.exit_code == 0, done.stderr
    patch = await box.diff()
    assert not mark.exists()
    assert b"+changed" in patch
    assert b"root:" not in patch  # what the link points to
    assert b"b/sub/file" in patch
    # and if the attack is there from the start
    apply(workspace, patch)
    for key in ("filter.evil.clean", "core.fsmonitor"):
        git = ["git", "-C", str(workspace)]
        subprocess.run([*git, "init", "-q"], check=True)  # noqa: ASYNC221
        subprocess.run([*git, "config", key, f"touch {mark}"], check=True)  # noqa: ASYNC221
    async with sandboxes.open(BoxSpec(workspace)) as other:
        await other.exec(["sh", "-c", "echo again > README.md; echo n > new"])
        patch = await other.diff()
        assert b"+again" in patch
        assert b"b/new" in patch
    assert not mark.exists()


async def test_a_workspace_that_changed_on_the_host_has_a_stale_base(
    sandboxes: BubblewrapSandboxes, workspace: Path
) -> None:
    for text in ("first", "second"):
        (workspace / "README.md").write_text(text)
        async with sandboxes.open(BoxSpec(workspace)) as box:
            assert await box.read_bytes("README.md") == text.encode()
            assert await box.diff() == b""
