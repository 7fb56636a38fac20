"""Starts pytest in the box: `python -s launcher.py` with one JSON request on stdin.

Everything that judges is imported before the repository gets onto the path, so that nothing in it can stand in for it.
"""

import importlib
import importlib.machinery as machinery
import json
import os
import resource
import sys
from typing import Any

RUNNER = os.path.dirname(os.path.abspath(__file__))
REPO = "/repo"
LATER = ("_pytest._argcomplete", "_pytest._py.path", "_pytest._io.pprint", "unittest", "doctest", "pygments")
"""What pytest would import in the middle of a run."""

OPTIONS = (
    f"-p no:cacheprovider -p no:unraisableexception -p no:threadexception -o addopts= -c {RUNNER}/pytest.ini"
    f" --rootdir {REPO} --confcutdir {REPO} --color=no --capture=fd --tb=native -q --continue-on-collection-errors"
)


class Installed(machinery.SourceFileLoader):
    """Loads a module from outside the repository by the bytecode beside it, which nothing in a box can write. Only the
    repository's is made anew."""

    def get_code(self, fullname: str) -> Any:
        fresh, sys.pycache_prefix = sys.pycache_prefix, None
        try:
            return super().get_code(fullname)
        finally:
            sys.pycache_prefix = fresh


def load_installed(folders: tuple[str, ...]) -> None:
    """Have modules that lie in these folders loaded as `Installed`."""
    finder = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (Installed, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )

    def hook(path: str) -> Any:
        if path in folders or path.startswith(tuple(f + os.sep for f in folders)):
            return finder(path)
        raise ImportError(path)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()


def main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != RUNNER]
    paths = [p for p in (REPO + "/src", REPO) if os.path.isdir(p)]
    if "probe" in request:
        sys.path[:0] = paths
        print(json.dumps({"file": importlib.import_module(request["probe"]).__file__}))
        return

    if request["cpu_seconds"]:
        cpu = max(1, round(request["cpu_seconds"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 2))
    import pytest  # noqa: F401
    from _pytest.config import default_plugins

    for name in default_plugins:  # now, while their bytecode is still looked for where it is
        importlib.import_module(f"_pytest.{name}")
    for module in LATER:
        importlib.import_module(module)
    sys.path.insert(0, RUNNER)
    from reporter import Reporter  # type: ignore[import-not-found]

    sys.path.remove(RUNNER)
    if request["coverage"]:
        import coverage  # noqa: F401
    load_installed(tuple(os.path.abspath(p) for p in sys.path if os.path.isdir(p)))
    sys.pycache_prefix, sys.dont_write_bytecode = request["pycache"], False
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the programs that tests start
    os.environ["PYTHONPYCACHEPREFIX"] = request["pycache"]
    for report in request["reports"]:  # each in a child of its own: what pytest needs is imported once
        if not (child := os.fork()):
            run(Reporter(request, report), request)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            sys.exit(128 + os.WTERMSIG(status))


def run(reporter: Any, request: dict[str, Any]) -> None:
    import pytest

    if request["coverage"]:
        import coverage

        reporter.tracer = coverage.Coverage(data_file=None, config_file=False, include=[REPO + "/*"], messages=False)
        reporter.tracer.start()
    options = OPTIONS.split()
    for plugin in request["plugins"]:
        options += ["-p", plugin]
    pytest.main([*options, *request["files"], RUNNER + "/sentinels.py"], plugins=[reporter])
    reporter.end()


if __name__ == "__main__":
    main()
