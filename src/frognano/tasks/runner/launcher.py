"""Starts pytest in the box: `python -s launcher.py` with one JSON request on stdin.

Everything that judges is imported before the repository gets onto the path, so that nothing in it can stand in for it.
With `--serve`, stdin is a socket instead: each message brings the three standard streams of a new process, which is forked
once everything is imported and then does what a launcher of its own would do.
"""

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any

RUNNER = os.path.dirname(os.path.abspath(__file__))
REPO = "/repo"
LATER = ("_pytest._argcomplete", "_pytest._py.path", "_pytest._io.pprint", "unittest", "doctest", "pygments")
"""What pytest would import in the middle of a run."""

OPTIONS = (
    f"-p no:cacheprovider -p no:unraisableexception -p no:threadexception -o addopts= -c {RUNNER}/pytest.ini"
    f" --rootdir {REPO} --confcutdir {REPO} --color=no --capture=fd --tb=native -q --continue-on-collection-errors"
)
PASSED, FAILED = 0, 3
"""How the process of a run ends. It decides only whether the next run is worth while, never a verdict."""
ours: dict[str, Any] = {}
"""Modules of this folder, and `prctl`."""


def main() -> None:
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != RUNNER]
    if "--serve" in sys.argv[1:]:
        load()
        serve()
    request = json.load(sys.stdin)
    if "probe" in request:
        sys.path[:0] = repository_paths()
        print(json.dumps({"file": importlib.import_module(request["probe"]).__file__}))
        return
    limit_cpu(request)
    load()
    handle(request)


def repository_paths() -> list[str]:
    return [p for p in (REPO + "/src", REPO) if os.path.isdir(p)]


def limit_cpu(request: dict[str, Any]) -> None:
    if request["cpu_seconds"]:
        cpu = max(1, round(request["cpu_seconds"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 2))


def load() -> None:
    """Import pytest, and close this process to those it will fork: they run code of the repository as the same user."""
    gc.disable()  # all that is imported stays: looking for garbage in it is a fifth of the work
    import ctypes

    import pytest  # noqa: F401
    from _pytest.config import default_plugins

    for name in default_plugins:  # now, while their bytecode is still looked for where it is
        importlib.import_module(f"_pytest.{name}")
    for module in LATER:
        importlib.import_module(module)
    sys.path.insert(0, RUNNER)
    for module in ("reporter", "loaders"):
        ours[module] = importlib.import_module(module)
        del sys.modules[module]  # a repository may have one of that name
    sys.path.remove(RUNNER)
    ours["prctl"] = ctypes.CDLL(None).prctl
    opaque(True)
    gc.freeze()  # else the first collection of each child goes through all of it and copies every page
    gc.enable()


def opaque(closed: bool) -> None:
    """Whether others of the user may look into the memory of this process (PR_SET_DUMPABLE)."""
    ours["prctl"](4, 0 if closed else 1, 0, 0, 0)


def serve() -> None:
    """Fork for each message until the other end hangs up. The new process gets another parent, PID 1, which reaps it."""
    import socket

    channel = socket.socket(fileno=os.dup(0))
    while True:
        message, streams, _, _ = socket.recv_fds(channel, 1, 3)
        if not message:
            os._exit(0)
        if not (between := os.fork()):
            if pid := os.fork():
                channel.send(pid.to_bytes(4, "big"))
                os._exit(0)
            channel.close()
            os.setsid()
            for standard, stream in enumerate(streams):
                os.dup2(stream, standard)
                os.close(stream)
            break
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)
    request = json.load(sys.stdin)
    try:
        limit_cpu(request)
        handle(request)
        sys.stdout.flush()
    except SystemExit as left:
        os._exit(int(left.code or 0))
    os._exit(0)


def handle(request: dict[str, Any]) -> None:
    """Do the runs of a request in turn, each in a child of its own; ends by `SystemExit` when one was killed."""
    paths = repository_paths()
    if request["coverage"]:
        import coverage  # noqa: F401
    loaders = ours["loaders"]
    known = loaders.Known()
    changed = [os.path.join(REPO, name) for name in request["changed"]]
    if not (request["compiled"] and known.take(changed[0], request["compiled"])):
        for path in changed:
            known.compile(path)
    loaders.install(tuple(os.path.abspath(p) for p in sys.path if os.path.isdir(p)), known)
    sys.pycache_prefix, sys.dont_write_bytecode = request["pycache"], False
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the programs that tests start
    os.environ["PYTHONPYCACHEPREFIX"] = request["pycache"]
    runs = request.pop("runs")
    while runs:
        wanted = runs.pop(0)
        if not (child := os.fork()):
            runs.clear()  # what comes later is none of its business
            opaque(False)
            os._exit(run(wanted, request))
        _, status = os.waitpid(child, 0)
        if request["sweep"]:
            sweep()
        if os.WIFSIGNALED(status):
            sys.exit(128 + os.WTERMSIG(status))
        if request["while_passing"] and os.WEXITSTATUS(status) != PASSED:
            return


def sweep() -> None:
    """Kill whatever a run has left: it could write to our reports. Spares only us and PID 1."""
    for _ in range(1_000):
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.001)  # PID 1 reaps them


def run(wanted: dict[str, Any], request: dict[str, Any]) -> int:
    import pytest

    reporter = ours["reporter"].Reporter(wanted)
    if request["coverage"]:
        import coverage

        reporter.tracer = coverage.Coverage(data_file=None, config_file=False, include=[REPO + "/*"], messages=False)
        reporter.tracer.start()
    options = OPTIONS.split()
    for plugin in request["plugins"]:
        options += ["-p", plugin]
    pytest.main([*options, *wanted["files"], RUNNER + "/sentinels.py"], plugins=[reporter])
    reporter.end()
    return PASSED if reporter.all_passed() else FAILED


if __name__ == "__main__":
    main()
