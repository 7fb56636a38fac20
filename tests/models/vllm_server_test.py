"""The server's life, with a program in vLLM's place that does what no vLLM can be made to do. With vLLM: tests/peers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from frognano.errors import ConfigError, FrogNanoError
from frognano.models.vllm_server import EngineConfig, VllmServer, check_vllm


def program(folder: Path, script: str) -> Path:
    """In the place of the Python that has vLLM: it is given vLLM's command line."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def server(folder: Path, script: str, **settings: float) -> VllmServer:
    config = EngineConfig(kind="vllm", python=program(folder, script), **settings)
    return VllmServer(config, Path("/model"), folder / "vllm.log", folder / "place", ["--dtype", "float32"], 1)


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether it comes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    """Whether the process ends in time; one that only waits to be reaped has ended."""

    def ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    return within(20, ended)


def number(file: Path) -> int:
    """What a program writes there."""
    assert within(20, lambda: file.exists() and bool(file.read_text().strip()))
    return int(file.read_text())


def test_a_run_starts_where_there_is_no_vllm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no vLLM; install it there, or name another \(engine\.python\)"):
        check_vllm(EngineConfig(kind="vllm"))
    with pytest.raises(ConfigError, match=r"engine\.python .*nowhere does not run"):
        check_vllm(EngineConfig(kind="vllm", python=tmp_path / "nowhere"))


def test_nothing_says_that_it_cannot_be_started(tmp_path: Path) -> None:
    """And no number 0 is taken for its process: a signal to that would end us."""
    config = EngineConfig(kind="vllm", python=tmp_path / "nowhere")
    with pytest.raises(FrogNanoError, match=r"cannot be started.*FileNotFoundError"):
        VllmServer(config, Path("/model"), tmp_path / "vllm.log", tmp_path / "place", [], 1)


def test_why_a_server_ended_is_lost(tmp_path: Path) -> None:
    s = server(tmp_path, "echo starting >&2; echo 'ValueError: no room for the keys' >&2; echo bye >&2; exit 3")
    try:
        with pytest.raises(FrogNanoError, match=r"exit code 3.*vllm\.log says: ValueError: no room for the keys"):
            s.wait()
    finally:
        s.close()


def test_it_stands_still_when_it_has_said_much(tmp_path: Path) -> None:
    """vLLM logs to stdout, too, for days: nobody reads a pipe."""
    s = server(
        tmp_path, "i=0; while [ $i -lt 20000 ]; do echo INFO: served; i=$((i+1)); done; echo 'KeyError: x'; exit 4"
    )
    try:
        with pytest.raises(FrogNanoError, match=r"exit code 4.*KeyError: x"):
            s.wait()
        assert s.log.stat().st_size > 200_000
    finally:
        s.close()


def test_a_server_that_never_answers_is_waited_for_ever(tmp_path: Path) -> None:
    s = server(tmp_path, "sleep 600", start_seconds=0.5)
    try:
        with pytest.raises(FrogNanoError, match=r"did not answer within 0 s \(engine\.start_seconds\)"):
            s.wait()
    finally:
        s.close()
    assert gone(s.pid)


def test_a_worker_survives_its_server(tmp_path: Path) -> None:
    """Killed from outside, it has no time to end them."""
    s = server(tmp_path, f"sleep 600 & echo $! > {tmp_path}/worker; wait")
    worker = number(tmp_path / "worker")
    os.kill(s.pid, signal.SIGKILL)
    with pytest.raises(FrogNanoError, match="killed by signal 9"):
        s.wait()
    assert gone(worker)
    s.close()


def test_a_server_that_ignores_the_end_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frognano.models.vllm_server.END_SECONDS", 0.5)
    s = server(tmp_path, "trap '' TERM; while :; do sleep 1; done")
    s.close()
    assert gone(s.pid)


def test_it_survives_a_killed_run(tmp_path: Path) -> None:
    file = program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/worker; wait")
    code = (
        "import sys, time; from pathlib import Path; from frognano.models.vllm_server import *;"
        f"p = Path({str(tmp_path)!r}); c = EngineConfig(kind='vllm', python={str(file)!r});"
        "s = VllmServer(c, Path('/m'), p / 'vllm.log', p / 'p', [], 1);"
        "print(s.pid, flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout
    pid, worker = int(run.stdout.readline()), number(tmp_path / "worker")
    run.kill()
    run.wait()
    assert gone(pid)
    assert gone(worker)


def test_its_cpu_time_is_nobodys(tmp_path: Path) -> None:
    s = server(tmp_path, "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done); echo done >&2; sleep 600")
    try:
        assert within(60, lambda: "done" in s.log.read_text())
        used = s.cpu_seconds()
        assert used > 0.05, "what a child used that has ended counts too"
    finally:
        s.close()
    assert s.cpu_seconds() >= used, "the time went with the process"


def test_others_can_reach_what_reloads_the_weights(tmp_path: Path) -> None:
    s = server(tmp_path, 'echo "$@" >&2; sleep 600')
    try:
        assert within(20, lambda: "--uds" in s.log.read_text())
        said = s.log.read_text().split()
        assert said[said.index("--uds") + 1] == str(s.socket)
        assert "--port" not in said
        assert s.socket.parent.stat().st_mode & 0o077 == 0
    finally:
        s.close()
