"""Where an interpreter lies must not decide what a box sees."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

from frognano.sandbox.base import BoxSpec
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.sandbox.probe import Check, tier


async def test_a_link_in_a_home_shows_the_home(sandboxes: BubblewrapSandboxes, workspace: Path, tmp_path: Path) -> None:
    home = tmp_path / "home/.local"
    (home / "bin").mkdir(parents=True)
    (home / "secret").write_text("s3cret")
    (home / "bin/python3").symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    environment = tmp_path / "env"
    venv.create(environment, symlinks=True)
    for name in ("python", "python3"):
        (environment / "bin" / name).unlink(missing_ok=True)
    (environment / "bin/python").symlink_to(home / "bin/python3")
    async with sandboxes.open(BoxSpec(workspace, environment=environment)) as box:
        done = await box.exec(["python", "-c", "import sys, json; print(sys.prefix)"])
        assert done.stdout.decode().strip() == str(environment), done.stderr
        assert (await box.exec(["ls", "-A", str(home)])).stdout == b"bin\n"
        assert (await box.exec(["touch", str(environment / "x")])).exit_code == 1


def test_a_missing_filter_is_called_strong() -> None:
    good, bad = Check("box starts", True, ""), Check("seccomp active", False, "")
    assert tier([good]) == "namespaces+seccomp"
    assert tier([good, bad]) == "namespaces"
    assert tier([Check("box starts", False, "")]) == "none"
    assert tier([good, Check("overlay", False, "", required=False)]) == "namespaces+seccomp"
