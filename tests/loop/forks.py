"""The frognano command in processes of their own, forked from one that has imported torch and transformers already.

An import costs ten CPU-seconds, more than most of what these tests run. What runs is the console script's own `main`, in a
process that can be killed and that leaves with an exit code. As a program (`python -m loop.forks`) this file is the
process that forks: one JSON line in, one out.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

TESTS = Path(__file__).parents[1]


class Command:
    """A started command. `err` is what it has written so far."""

    def __init__(self, forks: Forks, pid: int, log: Path) -> None:
        self.forks, self.pid, self.log = forks, pid, log

    @property
    def err(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def poll(self) -> int | None:
        code = self.forks.ask({"poll": self.pid})
        return None if code is None else int(code)

    def wait(self, until: Callable[[], bool] = lambda: False, seconds: float = 240) -> int | None:
        """The exit code (−9 for kill −9); None when `until` came true first."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if (code := self.poll()) is not None:
                return code
            if until():
                return None
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"not over after {seconds:g} s:\n{self.err[-2000:]}")

    def kill(self) -> None:
        os.kill(self.pid, 9)
        while self.poll() is None:
            time.sleep(0.01)


class Forks:
    """`with Forks(folder) as forks: code, err = forks.run("loop", recipe)`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, 0

    def __enter__(self) -> Self:
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        env |= {"PYTHONPATH": os.pathsep.join(paths)}  # of the caller too: it says which frognano is tested
        env.pop("FROGNANO_DEBUG", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loop.forks"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(20)

    def ask(self, what: dict[str, Any]) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, *arguments: object, env: dict[str, str] | None = None, shim: str = "") -> Command:
        """`shim` is a function (`module:name`) that the child calls before anything else."""
        self.started += 1
        log = self.folder / f"command{self.started}.log"
        argv = [str(a) for a in arguments]
        return Command(self, self.ask({"argv": argv, "env": env or {}, "shim": shim, "log": str(log)}), log)

    def run(self, *arguments: object, seconds: float = 240, **how: Any) -> tuple[int, str]:
        command = self.start(*arguments, **how)
        code = command.wait(seconds=seconds)
        assert code is not None
        return code, command.err


def _serve() -> None:
    import transformers

    import frognano.loop.commands  # noqa: F401

    _ = (transformers.AutoConfig, transformers.AutoTokenizer, transformers.LlamaForCausalLM)
    codes: dict[int, int] = {}
    for line in sys.stdin:
        what = json.loads(line)
        if "poll" in what:
            pid = what["poll"]
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            print(json.dumps(codes.get(pid)), flush=True)
        elif pid := os.fork():
            print(json.dumps(pid), flush=True)
        else:
            _child(what["argv"], what["env"], what["shim"], what["log"])


def _child(argv: Sequence[str], env: dict[str, str], shim: str, log: str) -> None:
    """Becomes the command: its own streams and process group, no way back into the loop that forked it."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for target, source in ((0, nothing), (1, file), (2, file)):
        os.dup2(source, target)
    os.environ.update(env)
    tempfile.tempdir = None  # it may have been looked up before, with another TMPDIR
    code = 1
    try:
        if shim:
            module, _, name = shim.partition(":")
            getattr(importlib.import_module(module), name)()
        from frognano.cli.app import main

        main(argv)
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        import atexit

        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(code)


if __name__ == "__main__":
    _serve()
