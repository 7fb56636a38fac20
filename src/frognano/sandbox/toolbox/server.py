"""Serves the host: exec, read, write, tool, unpack, changes. Every reply has ``ok``; a refusal has ``error``."""

from __future__ import annotations

import os
import resource
import signal

from . import wire
from .process import Processes
from .tools import Tools
from .tree import Tree

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from typing import Any


class Server:
    def __init__(self, request_fd: int, config: dict[str, Any]) -> None:
        self.fd = request_fd
        self.config = config
        self.env: dict[str, str] = config["env"]
        self.processes = Processes(request_fd, config["cpu_seconds"])
        self.tree = Tree(config["repo"])
        self.tools = Tools(config, self.processes)

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
        out, err = done.pop("stdout"), done.pop("stderr")
        return {**done, "stdout_size": len(out)}, out + err

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
