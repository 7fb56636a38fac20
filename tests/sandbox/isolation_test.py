"""What runs in a box must not see, reach or change anything outside of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from frognano.sandbox.base import BoxSpec, SandboxError
from frognano.sandbox.bubblewrap import BubblewrapSandbox, BubblewrapSandboxes
from frognano.sandbox.mounts import interpreter
from frognano.sandbox.resident import tree


async def python(box: BubblewrapSandbox, code: str) -> str:
    done = await box.exec(["python3", "-I", "-c", code])
    return (done.stdout + done.stderr).decode().strip()


async def test_the_network_is_reachable(box: BubblewrapSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = await python(box, f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
    assert "ConnectionRefusedError" in said
    assert "Network is unreachable" in await python(
        box, "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    )


async def test_loopback_is_down(box: BubblewrapSandbox) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    assert await python(box, code + "; print('up')") == "up"


async def test_a_process_of_the_box_has_the_uid_of_host_root(box: BubblewrapSandbox) -> None:
    assert await python(box, "import os; print(os.getuid())") == "1000"
    assert box._resident is not None
    status = Path(f"/proc/{tree(box._resident.process.pid)[-1]}/status").read_text()
    real = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))
    assert real != 0


async def test_something_outside_of_the_workspace_is_writable(box: BubblewrapSandbox) -> None:
    paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/dev/mem",
        "/usr/x",
        "/etc/passwd",
        "/x",
        "/dev/x",
    ]
    code = "for path in %r:\n  try: open(path, 'ab'); print(path)\n  except OSError: pass"
    assert await python(box, code % paths) == ""


async def test_files_of_the_host_are_visible(box: BubblewrapSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    paths = [str(tmp_path), "/home", "/var", "/etc/shadow", "/etc/hostname", "/sys", "/run/user", "/mnt"]
    assert await python(box, f"import os; print([p for p in {paths!r} if os.path.lexists(p)])") == "[]"
    home = Path.home()  # at most the way to the interpreter
    seen = await python(box, f"import os; print(*(os.listdir({str(home)!r}) if os.path.isdir({str(home)!r}) else []))")
    assert all(interpreter(None).is_relative_to(home / name) for name in seen.split())


async def test_the_environment_of_the_host_leaks(
    sandboxes: BubblewrapSandboxes, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROG_API_KEY", "s3cret")
    async with sandboxes.open(BoxSpec(workspace)) as box:
        done = await box.exec(["sh", "-c", "env; cat /proc/*/environ; cat /proc/*/cmdline"])
        assert b"s3cret" not in done.stdout
        assert str(workspace).encode() not in done.stdout
        assert b"Permission denied" in done.stderr  # /proc/1/environ


async def test_processes_of_the_host_are_visible(box: BubblewrapSandbox) -> None:
    pids = await python(box, "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))")
    assert eval(pids)[0] == 1
    assert len(eval(pids)) == 2


async def test_capabilities_are_left(box: BubblewrapSandbox) -> None:
    status = await python(box, "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapInh"], 16) == 0
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"


DOORS = {
    "vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "vsock pair": "assert libc.socketpair(40, 1, 0, pair) == 0",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "unshare": "assert libc.unshare(0x10000000) == 0",
    "mount": "assert libc.mount(b't', b'/tmp', b'tmpfs', 0, None) == 0",
    "ptrace 1": "assert libc.ptrace(16, 1, 0, 0) == 0",
    "memory of 1": "open('/proc/1/mem', 'r+b')",
    "fds of 1": "os.listdir('/proc/1/fd')",
    "root of 1": "os.listdir('/proc/1/root')",
    "chroot": "os.chroot('/tmp')",
}


async def test_a_door_is_open(box: BubblewrapSandbox) -> None:
    head = "import ctypes, os, socket\nlibc = ctypes.CDLL(None)\npair = (ctypes.c_int * 2)()\n"
    tries = [
        f"try:\n  {code}\n  print({name!r})\nexcept (OSError, AssertionError): pass\n" for name, code in DOORS.items()
    ]
    assert await python(box, head + "".join(tries) + "print('tried')") == "tried"


async def test_the_resident_can_be_killed_from_inside(box: BubblewrapSandbox) -> None:
    await box.exec(["bash", "-c", "kill -9 1; kill -STOP 1; kill -9 -1; kill -9 $PPID"])
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_a_read_only_bind_is_writable_or_a_secret_home_unreachable(
    sandboxes: BubblewrapSandboxes, workspace: Path, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    (closed / "data").mkdir(parents=True)
    (closed / "data/x").write_text("x")
    closed.chmod(0o700)
    async with sandboxes.open(BoxSpec(workspace, read_only={"/opt/data": closed / "data"})) as box:
        assert await box.read_bytes("/opt/data/x") == b"x"
        with pytest.raises(OSError, match="Read-only"):
            await box.write_bytes("/opt/data/x", b"y")


async def test_the_workspace_of_the_host_changes(box: BubblewrapSandbox, workspace: Path) -> None:
    await box.exec(["sh", "-c", "rm -rf README.md pkg; echo new > new"])
    assert (workspace / "README.md").exists()
    assert (workspace / "pkg/mod.py").exists()
    assert not (workspace / "new").exists()


async def test_a_missing_workspace_is_no_infrastructure_error(sandboxes: BubblewrapSandboxes, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="not a directory"):
        async with sandboxes.open(BoxSpec(tmp_path / "none")):
            pass
