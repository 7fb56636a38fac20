"""Serves the host: exec, prefork, fork, reset, read, write, tool, unpack, changes.

Every reply has ``ok``; a refusal has ``error``."""

from __future__ import annotations

import os
import resource
import signal

from . import wire
from .process import Processes, find
from .tools import Tools
from .tree import Tree, empty

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from typing import Any

    from .zygote import Zygote


class Server:
    def __init__(self, request_fd: int, config: dict[str, Any]) -> None:
        self.fd = request_fd
        self.config = config
        self.env: dict[str, str] = config["env"]
        self.processes = Processes(request_fd, config["cpu_seconds"])
        self.tree = Tree(config["repo"])
        self.tools = Tools(config, self.processes)
        self.zygotes: dict[str, Zygote] = {}
        self.clean: dict[str, tuple[int, ...]] | None = None
        """The workspace when the first of them was started."""

    def serve(self) -> None:
        while True:
            self.processes.wait_for_request()
            frame = wire.read(lambda n: os.read(self.fd, n))
            if frame is None:
                return
            request, payload = frame
            if request["op"] == "interrupt":  # it came too late: the command has ended
                continue
            try:
                reply, data = getattr(self, "do_" + request.pop("op"))(payload, **request)
            except (OSError, MemoryError) as e:
                reply, data = {"error": f"{type(e).__name__}: {e}"}, b""
            reply["ok"] = "error" not in reply
            view = memoryview(wire.pack(reply, data))
            while view:
                view = view[os.write(self.fd, view) :]

    def do_hello(self, payload: bytes) -> tuple[dict[str, Any], bytes]:
        return {"uid": os.getuid()}, b""

    def do_exec(
        self, payload: bytes, argv: list[str], cwd: str, env: dict[str, str], timeout: float
    ) -> tuple[dict[str, Any], bytes]:
        limit = self.config["output_bytes"]
        try:
            done = self.processes.run(argv, cwd, {**self.env, **env}, timeout, limit, stdin=payload)
        except OSError as e:  # as a shell says it: 127 not found, 126 not executable
            code = 127 if isinstance(e, FileNotFoundError) else 126
            done = {"exit_code": code, "stdout": b"", "stderr": str(e).encode(), "reason": "", "seconds": 0.0}
        return _outcome(done)

    def do_prefork(
        self, payload: bytes, name: str, argv: list[str], cwd: str, env: dict[str, str]
    ) -> tuple[dict[str, Any], bytes]:
        """Start what `fork` names; nothing when it was started before."""
        from .zygote import Zygote

        if name not in self.zygotes:
            if self.clean is None:
                self.clean = self.tree.everything()
            full = {**self.env, **env}
            self.zygotes[name] = Zygote(argv, cwd, full, find(argv[0], full.get("PATH", os.defpath)))
        return {}, b""

    def do_fork(self, payload: bytes, name: str, timeout: float) -> tuple[dict[str, Any], bytes]:
        limit, zygote = self.config["output_bytes"], self.zygotes[name]
        return _outcome(self.processes.run([], "", {}, timeout, limit, stdin=payload, zygote=zygote))

    def do_reset(self, payload: bytes, path: str) -> tuple[dict[str, Any], bytes]:
        """Give the one file that was written its bytes back, and empty the folders for temporary files. An error when
        there is anything else that was not there at the start, or is not any more."""
        if strangers := self.processes.alive() - {z.pid for z in self.zygotes.values()}:
            return {"error": f"{len(strangers)} processes were left"}, b""
        at = os.path.relpath(path, self.config["repo"])
        if self.clean is None or at not in self.clean:
            return {"error": f"nothing is known of {path} as it was"}, b""
        now = self.tree.everything()
        if changed := [p for p in self.clean.keys() | now.keys() if p != at and self.clean.get(p) != now.get(p)]:
            return {"error": f"{len(changed)} paths were changed, such as {sorted(changed)[0]}"}, b""
        before = self.clean[at]
        with open(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "wb") as f:
            f.write(payload)
            os.fchmod(f.fileno(), before[-1] & 0o7777)
        os.utime(path, ns=(before[0], before[0]))
        self.clean[at] = self.tree.everything()[at]
        for folder in self.config["temporary"]:
            empty(folder)
        for directory in self.config["directories"]:
            os.makedirs(directory, exist_ok=True)
        return {}, b""

    def do_tool(self, payload: bytes, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        done, text = self.tools.call(name, arguments)
        return {"done": done}, text.encode("utf-8", "backslashreplace")

    def do_read(self, payload: bytes, path: str, limit: int) -> tuple[dict[str, Any], bytes]:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as f:
            data = f.read(limit + 1)
        if len(data) > limit:
            return {"error": f"{path} is larger than {limit} bytes"}, b""
        return {}, data

    def do_write(self, payload: bytes, path: str) -> tuple[dict[str, Any], bytes]:
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
        with open(path, "wb") as f:
            f.write(payload)
        return {}, b""

    def do_unpack(self, payload: bytes, entries: list[list[Any]]) -> tuple[dict[str, Any], bytes]:
        self.tree.unpack(entries, payload)
        return {}, b""

    def do_changes(self, payload: bytes, limit: int) -> tuple[dict[str, Any], bytes]:
        return self.tree.changes(limit)


def _outcome(done: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    out, err = done.pop("stdout"), done.pop("stderr")
    return {**done, "stdout_size": len(out)}, out + err


def main() -> None:
    """Take the socket off the standard streams, become opaque, take the limits, serve."""
    fd = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(fd + 1, 256)  # also what bwrap left open (and ``null``)
    _become_opaque()
    frame = wire.read(lambda n: os.read(fd, n))
    if frame is None:
        return
    config = frame[0]
    for name, value in config["rlimits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.umask(0o022)
    for directory in config["directories"]:
        os.makedirs(directory, exist_ok=True)
    Server(fd, config).serve()


def _become_opaque() -> None:
    """PR_SET_DUMPABLE 0: /proc/1/mem, fd and environ are closed to the commands, though they share the user."""
    import ctypes

    if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) != 0:
        raise SystemExit("prctl(PR_SET_DUMPABLE) was refused")
