"""Commands in the box: started with limits, read with a cap, killed with everything they started."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time

from . import wire

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .zygote import Zygote

CPU_POLL = 0.25
_TICK = os.sysconf("SC_CLK_TCK")


class Capture:
    """Keeps the head and the tail of a stream, and counts the rest."""

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.head = bytearray()
        self.tail = bytearray()
        self.lost = 0

    def add(self, data: bytes) -> None:
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.half:
            self._trim()

    def _trim(self) -> None:
        extra = len(self.tail) - self.half
        if extra > 0:
            del self.tail[:extra]
            self.lost += extra

    def bytes(self) -> bytes:
        self._trim()
        gap = b"\n[... %d bytes cut ...]\n" % self.lost if self.lost else b""
        return bytes(self.head) + gap + bytes(self.tail)


class Processes:
    """Starts commands one at a time. As PID 1 it also reaps what they leave, and keeps draining their pipes."""

    def __init__(self, request_fd: int, cpu_seconds: float) -> None:
        self.request_fd = request_fd
        self.cpu_seconds = cpu_seconds
        self.orphans: list[int] = []
        """Pipes still held by background children: read and thrown away, so that they never block or get SIGPIPE."""
        self._status: dict[int, int] = {}
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def wait_for_request(self) -> None:
        """Block until the host says something; reap and drain meanwhile."""
        while True:
            ready, _, _ = select.select([self.request_fd, self._wake_read, *self.orphans], [], [])
            self._housekeeping(ready)
            if self.request_fd in ready:
                return

    def _housekeeping(self, ready: Iterable[int]) -> None:
        for fd in ready:
            if fd == self._wake_read:
                _read(fd)
                self._reap()
            elif fd in self.orphans and not _read(fd):
                self.orphans.remove(fd)
                os.close(fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._status[pid] = status

    def run(
        self,
        argv: Sequence[str],
        cwd: str,
        env: dict[str, str],
        timeout: float,
        output_bytes: int,
        stdin: bytes = b"",
        merge: bool = False,
        zygote: Zygote | None = None,
    ) -> dict[str, Any]:
        """Run to the end of the command (not of its background children) or of its time; OSError if it cannot start.
        With a ``zygote`` the command is what that forks; it has its arguments, folder and environment from there."""
        started = time.monotonic()
        stdin_fd = _stdin(stdin)
        out_read, out_write = os.pipe()
        err_read, err_write = (out_read, out_write) if merge else os.pipe()
        try:
            streams = (stdin_fd, out_write, err_write)
            pid = zygote.fork(streams) if zygote else self._start(argv, cwd, env, streams)
        except OSError:
            for fd in {out_read, err_read}:
                os.close(fd)
            raise
        finally:
            for fd in {stdin_fd, out_write, err_write}:
                os.close(fd)
        captures = {out_read: Capture(output_bytes)}
        captures.setdefault(err_read, Capture(output_bytes))
        open_fds = set(captures)
        for fd in open_fds:
            os.set_blocking(fd, False)
        cpu_start, cpu_checked = self._cpu(), started
        reason = ""
        while pid not in self._status:
            left = started + timeout - time.monotonic()
            watched = [self.request_fd, self._wake_read, *open_fds, *self.orphans]
            ready, _, _ = select.select(watched, [], [], max(0.0, min(left, CPU_POLL)))
            if self.request_fd in ready:  # the host never pipelines: it hangs up, or asks for the end of this command
                if wire.read(lambda n: os.read(self.request_fd, n)) is None:
                    raise SystemExit
                reason = "interrupted"
            self._housekeeping(ready)
            for fd in open_fds & set(ready):
                if data := _read(fd):
                    captures[fd].add(data)
                elif data is not None:
                    open_fds.discard(fd)
            if reason:
                pass
            elif left <= 0:
                reason = "time"
            elif time.monotonic() - cpu_checked > CPU_POLL:
                cpu_checked = time.monotonic()
                reason = "cpu" if self._cpu() - cpu_start > self.cpu_seconds else ""
            if reason:
                self._kill(pid)
                break
        for fd in captures:
            at_end = fd not in open_fds
            while not at_end and (data := _read(fd)) is not None:
                captures[fd].add(data)
                at_end = not data
                if time.monotonic() - started > timeout + 1:  # a background child that prints for ever
                    break
            if at_end:
                os.close(fd)
            else:
                self.orphans.append(fd)
        status = self._status.pop(pid, None)
        self._status.clear()
        return {
            "exit_code": None if reason or status is None else _exit_code(status),
            "stdout": captures[out_read].bytes(),
            "stderr": b"" if merge else captures[err_read].bytes(),
            "reason": reason,
            "seconds": time.monotonic() - started,
        }

    def _start(self, argv: Sequence[str], cwd: str, env: dict[str, str], streams: Sequence[int]) -> int:
        """Spawn in a new session, with these standard streams. What spawn cannot set, the child inherits from us: we have
        one thread, and no signal but the host's reaches PID 1."""
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]

        def spawn() -> int:
            program = find(argv[0], env.get("PATH", os.defpath))
            return spawn_session(program, argv, env, streams)

        try:
            os.chdir(cwd)
            resource.setrlimit(resource.RLIMIT_CPU, (int(self.cpu_seconds) + 1, hard))
            try:
                return spawn()
            except BlockingIOError:  # a fork bomb of an earlier command holds every process: it goes first
                self._kill_everything()
                return spawn()
        finally:
            resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
            os.chdir("/")

    def alive(self) -> set[int]:
        """The pids of all but PID 1."""
        return set(_processes())

    def _cpu(self) -> float:
        """CPU seconds of the whole box: what was reaped and what lives."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = used.ru_utime + used.ru_stime
        for stat in _processes().values():
            total += (int(stat[11]) + int(stat[12]) + int(stat[13]) + int(stat[14])) / _TICK
        return total

    def _kill(self, pid: int) -> None:
        """SIGKILL the command's session and every descendant, until none is left."""
        for _ in range(20):
            table = _processes()
            doomed = {pid} if pid in table else set()
            grew = True
            while grew:
                grew = False
                for other, stat in table.items():
                    if other not in doomed and (int(stat[1]) in doomed or int(stat[3]) == pid):
                        doomed.add(other)
                        grew = True
            for other in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
            self._reap()
            if not doomed:
                return
            time.sleep(0.005)
        self._kill_everything()

    def _kill_everything(self) -> None:
        deadline = time.monotonic() + 5
        while _processes() and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            time.sleep(0.005)
            self._reap()


def spawn_session(program: str, argv: Sequence[str], env: dict[str, str], streams: Sequence[int]) -> int:
    """The pid of a program in a session of its own, with these standard streams and the signals as programs expect them."""
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(streams)]
    defaults = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD]
    return os.posix_spawn(program, list(argv), env, file_actions=actions, setsid=True, setsigdef=defaults)


def _stdin(data: bytes) -> int:
    """A descriptor that reads these bytes."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    fd = os.memfd_create("stdin")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _processes() -> dict[int, list[bytes]]:
    """Fields of /proc/<pid>/stat after the name (0 state, 1 parent, 3 session, 11-14 times) of all but PID 1."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    stat = f.read().rpartition(b") ")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if stat and stat[0] not in (b"Z", b"X"):
                table[int(name)] = stat
    return table


def find(program: str, path: str) -> str:
    """The file that a shell would run."""
    if "/" not in program:
        for directory in path.split(":"):
            candidate = os.path.join(directory, program)
            if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
                return candidate
        raise FileNotFoundError(2, "No such command", program)
    return program


def _read(fd: int) -> bytes | None:
    """What is there: b"" at the end of the stream, None when nothing is there yet."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return None


def _exit_code(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
