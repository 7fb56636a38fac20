"""Boxes made by bubblewrap: one process tree a box, held by a resident that serves commands and tools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import py_compile
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from frognano.sandbox import seccomp
from frognano.sandbox.base import REPO, BoxKilled, BoxSpec, ExecResult, SandboxError
from frognano.sandbox.mounts import Mounts, find_bwrap, interpreter
from frognano.sandbox.resident import Resident
from frognano.sandbox.scratch import make_scratch, scratch_root
from frognano.sandbox.watchdog import Watchdog
from frognano.sandbox.workspace import Base, Bases
from frognano.stopwatch import Stopwatch

_GRACE = 60.0
"""Seconds beyond a command's own limit before the box counts as dead: generous, since machines are busy."""

_START_SECONDS = 120.0
"""More for a process that is forked: the first one waits for what is imported."""

_FILES = {
    "passwd": b"root:x:0:0:root:/root:/bin/false\nfrog:x:1000:1000::/tmp/home:/bin/bash\n",
    "group": b"root:x:0:\nfrog:x:1000:\n",
    "hosts": b"127.0.0.1 localhost box\n::1 localhost\n",
}


class BubblewrapSandboxes:
    """Makes boxes. One object serves a whole process: it caches workspaces and watches memory."""

    tier = "namespaces+seccomp" if seccomp.supported() else "namespaces"

    def __init__(self, scratch: Path | None = None) -> None:
        self.scratch = make_scratch(scratch or scratch_root())
        self.bases = Bases(self.scratch)
        self.watchdog = Watchdog()
        self.watches: defaultdict[str, Stopwatch] = defaultdict(Stopwatch)
        """By the purpose of boxes: while one of them starts, answers or ends; CPU seconds of those that have ended."""
        self.mounts = Mounts(find_bwrap(), _install_toolbox(self.scratch))

    def open(self, spec: BoxSpec) -> BubblewrapSandbox:
        return BubblewrapSandbox(self, spec)


class BubblewrapSandbox:
    """One box; open between ``__aenter__`` and ``__aexit__``."""

    def __init__(self, sandboxes: BubblewrapSandboxes, spec: BoxSpec) -> None:
        self.spec = spec
        self._sandboxes = sandboxes
        self._resident: Resident | None = None
        self._watch = sandboxes.watches[spec.purpose]
        self._base: Base

    async def __aenter__(self) -> Self:
        with self._watch.running():
            return await self._start()

    async def _start(self) -> Self:
        self._base = await asyncio.to_thread(self._sandboxes.bases.of, self.spec.workspace)
        with _memory_files() as fds:
            command = self._sandboxes.mounts.command(self.spec, fds)
            self._resident = await Resident.start(command, list(fds.values()), self._config())
        try:
            self._sandboxes.watchdog.watch(self._resident, self.spec.limits.memory_mb)
            payload = await asyncio.to_thread(self._base.payload)
            reply, _ = await self._ask("unpack", payload, entries=self._base.entries)
            if not reply["ok"]:
                raise SandboxError(f"{self.spec.workspace} does not fit the box: {reply['error']}")
        except BoxKilled as e:
            await self.__aexit__()
            raise SandboxError(f"the box died before anything ran in it: {e}") from e
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if (resident := self._resident) is not None:
            self._resident = None
            self._sandboxes.watchdog.forget(resident)
            with self._watch.running():
                try:
                    await resident.close()
                finally:
                    self._watch.spent(resident.cpu_seconds)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = REPO,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
    ) -> ExecResult:
        wall = self.spec.limits.wall_seconds if timeout is None else min(timeout, self.spec.limits.wall_seconds)
        reply, output = await self._ask(
            "exec", stdin, wait=wall, argv=list(argv), cwd=cwd, env=dict(env or {}), timeout=wall
        )
        return _result(reply, output)

    async def prefork(
        self, name: str, argv: Sequence[str], *, cwd: str = REPO, env: Mapping[str, str] | None = None
    ) -> None:
        reply, _ = await self._ask("prefork", name=name, argv=list(argv), cwd=cwd, env=dict(env or {}))
        _check(reply)

    async def fork(self, name: str, *, stdin: bytes = b"", timeout: float | None = None) -> ExecResult:
        wall = self.spec.limits.wall_seconds if timeout is None else min(timeout, self.spec.limits.wall_seconds)
        reply, output = await self._ask("fork", stdin, wait=wall + _START_SECONDS, name=name, timeout=wall)
        return _result(reply, output)

    async def reset(self, path: str, data: bytes) -> str:
        reply, _ = await self._ask("reset", data, path=os.path.join(REPO, path))
        return "" if reply["ok"] else str(reply["error"])

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        reply, text = await self._ask("tool", wait=self.spec.limits.wall_seconds, name=name, arguments=dict(arguments))
        return (reply["done"], text.decode()) if reply["ok"] else (False, reply["error"])

    async def read_bytes(self, path: str) -> bytes:
        reply, data = await self._ask("read", path=os.path.join(REPO, path), limit=self._disk)
        _check(reply)
        return data

    async def write_bytes(self, path: str, data: bytes) -> None:
        reply, _ = await self._ask("write", data, path=os.path.join(REPO, path))
        _check(reply)

    async def diff(self) -> bytes:
        reply, data = await self._ask("changes", limit=self._disk)
        if not reply["ok"]:  # larger than the disk of the box: sparse files, made there
            raise BoxKilled(reply["error"])
        return await asyncio.to_thread(self._base.diff, reply["entries"], reply["deleted"], data)

    async def _ask(
        self, op: str, payload: bytes = b"", *, wait: float = 0.0, **arguments: Any
    ) -> tuple[dict[str, Any], bytes]:
        if self._resident is None:
            raise SandboxError("the box is not open")
        most = 2 * self._disk + 2 * self.spec.limits.output_bytes + (1 << 24)
        with self._watch.running():
            return await self._resident.ask(op, payload, wait=wait + _GRACE, most=most, **arguments)

    @property
    def _disk(self) -> int:
        return self.spec.limits.disk_mb << 20

    def _config(self) -> dict[str, Any]:
        limits = self.spec.limits
        memory = limits.memory_mb << 20
        python = str(interpreter(self.spec.environment).parent)
        path = [] if self.spec.environment is None else [str(self.spec.environment.absolute() / "bin")]
        path += [python, "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "repo": REPO,
            "directories": ["/tmp/home"],
            "temporary": ["/tmp", "/dev/shm"],
            "output_bytes": limits.output_bytes,
            "cpu_seconds": limits.cpu_seconds,
            "wall_seconds": limits.wall_seconds,
            "rlimits": {
                "RLIMIT_NPROC": limits.pids,
                "RLIMIT_DATA": memory,
                "RLIMIT_FSIZE": self._disk,
                "RLIMIT_CORE": 0,
                "RLIMIT_NOFILE": 1024,
                "RLIMIT_MEMLOCK": 0,
            },
            "env": {
                "PATH": ":".join(path),
                "HOME": "/tmp/home",
                "USER": "frog",
                "LOGNAME": "frog",
                "SHELL": "/bin/bash",
                "LANG": "C.UTF-8",
                "LC_ALL": "C.UTF-8",
                "TZ": "UTC",
                "TERM": "dumb",
                "PAGER": "cat",
                "GIT_PAGER": "cat",
                "EDITOR": "true",
                "GIT_EDITOR": "true",
                "GIT_TERMINAL_PROMPT": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONNOUSERSITE": "1",
                **({} if self.spec.environment is None else {"VIRTUAL_ENV": str(self.spec.environment.absolute())}),
            },
        }


def _result(reply: Mapping[str, Any], output: bytes) -> ExecResult:
    _check(reply)
    split = reply["stdout_size"]
    return ExecResult(
        reply["exit_code"],
        output[:split],
        output[split:],
        timed_out=bool(reply["reason"]),
        seconds=reply["seconds"],
    )


def _check(reply: Mapping[str, Any]) -> None:
    if not reply["ok"]:
        raise OSError(reply["error"])


@contextlib.contextmanager
def _memory_files() -> Iterator[dict[str, int]]:
    """Files for bwrap that never touch a disk."""
    contents = dict(_FILES)
    if seccomp.supported():
        contents["seccomp"] = seccomp.program()
    fds: dict[str, int] = {}
    try:
        for name, data in contents.items():
            fds[name] = os.memfd_create(name)
            os.write(fds[name], data)
            os.lseek(fds[name], 0, os.SEEK_SET)
        yield fds
    finally:
        for fd in fds.values():
            os.close(fd)


def _install_toolbox(scratch: Path) -> Path:
    """A copy that every user can read, compiled once, so that a box does not compile it at each start."""
    target = scratch / "toolbox"
    shutil.copytree(Path(__file__).parent / "toolbox", target, ignore=shutil.ignore_patterns("__pycache__"))
    target.chmod(0o755)
    for source in target.glob("*.py"):
        source.chmod(0o644)
        py_compile.compile(str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    return target
