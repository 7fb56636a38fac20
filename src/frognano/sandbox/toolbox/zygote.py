"""A process of the box that is kept ready and forks a command at each request: what it imported is imported once."""

from __future__ import annotations

import os
import select
import socket

from .process import spawn_session

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 120.0
"""For an answer, which the first time waits for what is imported."""


class Zygote:
    """Started with a socket as its stdin. Each message to it carries three descriptors, the standard streams of the new
    process; it answers with a pid. That process must be given to PID 1 (by a fork in between) and lead a session."""

    def __init__(self, argv: Sequence[str], cwd: str, env: dict[str, str], program: str) -> None:
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.said = os.memfd_create("zygote")
        os.chdir(cwd)
        try:
            self.pid = spawn_session(program, argv, env, (theirs.fileno(), self.said, self.said))
        finally:
            theirs.close()
            os.chdir("/")

    def fork(self, streams: Sequence[int]) -> int:
        """The pid of a new process with these standard streams."""
        socket.send_fds(self.socket, [b"f"], list(streams))
        ready, _, _ = select.select([self.socket], [], [], _SECONDS)
        answer = self.socket.recv(4) if ready else b""
        if len(answer) != 4:
            raise OSError(f"the process that forks is gone: {os.pread(self.said, 1000, 0).decode(errors='replace')}")
        return int.from_bytes(answer, "big")
