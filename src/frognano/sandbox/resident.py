"""The host's end of a box: starts it, talks to its resident process, makes sure that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from frognano.sandbox.base import BoxKilled, SandboxError
from frognano.sandbox.toolbox import wire

_START_SECONDS = 60.0
_END_SECONDS = 10.0
"""From the moment that a box hangs up until its processes are reaped."""


class Resident:
    """One box process. ``killed`` is set by whoever kills it for what ran in it, and says why: a BoxKilled. When the host
    killed it, it is a SandboxError."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, stderr: int) -> None:
        self.process = process
        self.killed = ""
        self.cpu_seconds = 0.0
        """Of the whole box, known once it is closed."""
        self._channel = channel
        self._stderr = stderr
        self._lock = asyncio.Lock()
        self._dead = ""
        self._fault: type[BoxKilled] | type[SandboxError] = BoxKilled
        """Whose fault it is that the box is dead."""
        self._unanswered: asyncio.Task[tuple[dict[str, Any], bytes]] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, command: Sequence[str], files: Sequence[int], config: Mapping[str, Any]) -> Resident:
        """Start with an empty environment: /proc/1/environ would show ours. Ends with the thread that starts it."""
        ours, theirs = socket.socketpair()
        stderr = os.memfd_create("stderr")
        try:
            process = subprocess.Popen(  # noqa: ASYNC220  (asyncio would read its pipes by a watcher thread per box)
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr, env={}, pass_fds=files, cwd="/"
            )
        except OSError as e:
            ours.close()
            os.close(stderr)
            raise SandboxError(f"bubblewrap did not start: {e}{_REMEDY}") from e
        finally:
            theirs.close()
        self = cls(process, ours, stderr)
        try:
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
            self._writer.write(wire.pack(dict(config)))
            async with asyncio.timeout(_START_SECONDS):
                await self.ask("hello", wait=_START_SECONDS)
        except (BoxKilled, TimeoutError, OSError) as e:
            await self.close()
            raise SandboxError(f"the box did not start: {self._complaint() or e}{_REMEDY}") from e
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def busy(self) -> bool:
        """Whether it works on a request."""
        return self._lock.locked()

    async def ask(
        self, op: str, payload: bytes = b"", *, wait: float, most: int = 1 << 26, **arguments: Any
    ) -> tuple[dict[str, Any], bytes]:
        """One request. A box that hangs up, floods us or does not answer in time was killed by what ran in it.

        When we are cancelled, the command in the box is ended and its answer left to the next request: the box stays
        usable, since a run that is out of time is still judged on its repository."""
        async with self._lock:
            if self._unanswered is not None:
                await asyncio.wait([self._unanswered])
                self._unanswered = None
            if self._dead:
                raise self._fault(self.killed or self._dead)
            frame = wire.pack({"op": op, **arguments}, payload)
            exchange = asyncio.create_task(self._exchange(op, frame, wait, most))
            try:
                return await asyncio.shield(exchange)
            except asyncio.CancelledError:
                self._writer.write(wire.pack({"op": "interrupt"}))
                exchange.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody else looks
                self._unanswered = exchange
                raise

    async def _exchange(self, op: str, frame: bytes, wait: float, most: int) -> tuple[dict[str, Any], bytes]:
        try:
            async with asyncio.timeout(wait):
                self._writer.write(frame)
                await self._writer.drain()
                prefix = await self._reader.readexactly(wire.HEADER.size)
                head_size, payload_size = wire.HEADER.unpack(prefix)
                if head_size + payload_size > most:
                    self._die("the box sent more than it may")
                reply: dict[str, Any] = json.loads(await self._reader.readexactly(head_size))
                body = await self._reader.readexactly(payload_size)
                if self.killed:  # what is told of a dying box is not what happened
                    self._die(self.killed)
                return reply, body
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            if await self._killed_from_outside():
                self._fault = SandboxError
                self._die(_OUTSIDE, e)
            self._die(self.killed or "the resident process is gone", e)
        except TimeoutError as e:
            self._die(self.killed or f"the box did not answer {op} for {wait:g} s", e)

    def _die(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        self._dead = reason
        self.kill()
        raise self._fault(reason) from cause

    async def _killed_from_outside(self) -> bool:
        """Whether somebody on the host sent SIGKILL: the kernel when memory runs out, or a person. What runs in the box
        cannot: the resident is PID 1 of its namespace, so no signal from within kills it, and the filter of system calls
        lets nobody set its limits. bwrap passes on how it ended."""
        if self.killed:  # we did, for what ran in it
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, _END_SECONDS)
        return self.process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL) and not self.killed

    def kill(self) -> None:
        """SIGKILL to the whole tree, the box before its monitors, so that each is reaped by its parent."""
        if self.process.returncode is not None:
            return
        for pid in reversed(tree(self.process.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        """Hang up: the resident ends, and with it its namespace. Killed if it does not within some
        seconds: what a killed tree has used of the processor is not counted, and a busy machine makes all wait."""
        self._dead = self._dead or "the box is closed"
        if writer := getattr(self, "_writer", None):
            writer.transport.abort()
        self._channel.close()
        waiting = asyncio.create_task(asyncio.to_thread(self._reap))
        try:
            await asyncio.wait([waiting], timeout=_END_SECONDS)
        finally:  # also when cancelled
            if not waiting.done():
                self.kill()
        await waiting

    def _reap(self) -> None:
        """As Popen.wait, which throws away what the process and all that it waited for have used."""
        if self.process.returncode is None:
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_seconds = used.ru_utime + used.ru_stime

    def _complaint(self) -> str:
        return os.pread(self._stderr, 2000, 0).decode("utf-8", "replace").strip()

    def __del__(self) -> None:
        os.close(self._stderr)


_OUTSIDE = "the box was killed from outside (did the machine run out of memory?)"
_REMEDY = " (`frognano doctor` checks user namespaces and names the remedy)"


def tree(pid: int) -> list[int]:
    """A process and all its descendants, parents first. PID 1 of the box adopts every orphan, so none is missed."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                pids += map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split())
    return pids
