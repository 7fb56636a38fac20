"""Suite: run tests in an open box and know, for each test id, what happened."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frognano.records import Environment, Outcome
from frognano.records.base import Record
from frognano.sandbox.base import REPO, BoxKilled, ExecResult, Sandbox

RUNNER_AT = "/frognano/runner"
RUNNER = {RUNNER_AT: Path(__file__).parent / "runner"}
"""To be bound read-only into every box that runs tests."""

PLUGINS = {
    "pytest-asyncio": "pytest_asyncio.plugin",
    "pytest-benchmark": "pytest_benchmark.plugin",
    "pytest-mock": "pytest_mock",
}
"""The pytest plugins that are loaded when an environment has them. No other is."""

_CPU_EXCEEDED = (-24, 128 + 24, -9, 128 + 9)


class Failure(Record):
    """What a person would quote of a failed test."""

    type: str
    message: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    """The failing line of the test."""
    raised_in: str = ""
    """``file:line`` where the exception left the repository's code."""
    crash: str = ""
    """The end of pytest's report, at most 2 kB."""


@dataclass(frozen=True)
class SuiteReport:
    """``complete`` is False when the run did not come to its own end; then absent tests prove nothing."""

    outcomes: dict[str, Outcome]
    failures: dict[str, Failure]
    complete: bool
    sentinels_ok: bool
    timed_out: bool
    seconds: float
    errors: dict[str, Failure] = field(default_factory=dict)
    """Files that could not be collected."""
    durations: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    """Test id to file to the lines it ran; with ``coverage`` only."""
    output: str = ""
    """The end of what was printed. For people; it decides nothing."""


def plugins_of(environment: Environment) -> tuple[str, ...]:
    """The allowed pytest plugins that an environment holds."""
    held = {line.split("==")[0].lower() for line in environment.lock}
    return tuple(module for name, module in PLUGINS.items() if name in held)


def file_of(test_id: str) -> str:
    return test_id.partition("::")[0]


async def run_probe(box: Sandbox, module: str) -> str:
    """One JSON line that says which file ``module`` is imported from, or the traceback."""
    result = await _launch(box, {"probe": module}, 0, timeout=120)
    return (result.stdout or result.stderr).decode(errors="replace").strip()


async def run_suite(
    box: Sandbox,
    ids: Sequence[str] | None,
    *,
    paths: Sequence[str] = (),
    cpu_seconds: float,
    timeout: float,
    hash_seed: int = 0,
    plugins: Sequence[str] = (),
    coverage: bool = False,
) -> SuiteReport:
    """Run exactly ``ids`` (or all tests under ``paths``). An id that did not run is MISSING."""
    settings = RunSettings(cpu_seconds, timeout, hash_seed, tuple(plugins), coverage=coverage)
    reports = await run_suites(box, [ids], settings, paths=paths)
    return reports[0]


@dataclass(frozen=True)
class RunSettings:
    """How tests are run. Bytecode of changed files is never shared between two launches, so that an edit within one
    second and of one size is never missed."""

    cpu_seconds: float
    """Of each run."""
    timeout: float
    """Wall seconds of all runs together."""
    hash_seed: int = 0
    plugins: tuple[str, ...] = ()
    coverage: bool = False
    changed: tuple[str, ...] = ()
    """Source files that differ from the clean tree: compiled once for all runs."""
    compiled: str = ""
    """A file in the box with the code of the one changed file, where the host has compiled it. Never for a grade."""
    while_passing: bool = False
    """Each run only if every test of the one before passed. A run that was not done is not complete."""
    sweep: bool = False
    """After each run kill every process that it left in the box."""
    forked: bool = False
    """From a process of the box that has pytest imported and is kept (`Sandbox.fork`), in place of a new one."""


async def run_suites(
    box: Sandbox, groups: Sequence[Sequence[str] | None], settings: RunSettings, *, paths: Sequence[str] = ()
) -> list[SuiteReport]:
    """One run for each group of ids, one after the other, each in a process of its own that was forked once pytest is
    imported; they share a hash seed."""
    name = secrets.token_hex(8)
    runs: list[dict[str, Any]] = [
        {
            "nonce": secrets.token_hex(16),
            "report": f"/tmp/report-{name}-{n}.jsonl",
            "ids": None if ids is None else list(ids),
            "files": list(paths) if ids is None else list(dict.fromkeys(file_of(i) for i in ids)),
        }
        for n, ids in enumerate(groups)
    ]
    request = {
        "runs": runs,
        "plugins": list(settings.plugins),
        "coverage": settings.coverage,
        "cpu_seconds": settings.cpu_seconds,
        "pycache": f"/tmp/pycache-{name}",
        "changed": list(settings.changed),
        "compiled": settings.compiled,
        "while_passing": settings.while_passing,
        "sweep": settings.sweep,
    }
    result = await _launch(box, request, settings.hash_seed, settings.timeout, settings.forked)
    timed_out = result.timed_out or result.exit_code in _CPU_EXCEEDED
    return [
        await _read(box, r["report"], r["nonce"], ids, result, timed_out) for r, ids in zip(runs, groups, strict=True)
    ]


async def _read(
    box: Sandbox, file: str, nonce: str, ids: Sequence[str] | None, result: ExecResult, timed_out: bool
) -> SuiteReport:
    try:
        data = await box.read_bytes(file)
    except OSError:  # there is none
        data = b""
    parsed = _parse(data, nonce)
    if ids is not None:
        parsed.outcomes = {i: parsed.outcomes.get(i, Outcome.MISSING) for i in ids}
    return SuiteReport(
        outcomes=parsed.outcomes,
        failures=parsed.failures,
        complete=parsed.complete,
        sentinels_ok=parsed.sentinels_ok,
        timed_out=timed_out and not parsed.complete,
        seconds=result.seconds,
        errors=parsed.errors,
        durations=parsed.durations,
        lines=parsed.lines,
        output=(result.stdout + result.stderr)[-2_000:].decode(errors="replace"),
    )


_ARGV = ("python", "-s", f"{RUNNER_AT}/launcher.py")


async def prefork(box: Sandbox, hash_seed: int) -> str:
    """Have pytest imported in the box, once, for all runs under this hash seed, which is set when Python starts. The
    process must be started before any code of a candidate has run."""
    name = f"tests-{hash_seed}"
    await box.prefork(name, [*_ARGV, "--serve"], cwd=REPO, env=_env(hash_seed))
    return name


async def _launch(
    box: Sandbox, request: dict[str, Any], hash_seed: int, timeout: float, forked: bool = False
) -> ExecResult:
    stdin = json.dumps(request).encode()
    if forked:
        return await box.fork(await prefork(box, hash_seed), stdin=stdin, timeout=timeout)
    return await box.exec(_ARGV, cwd=REPO, env=_env(hash_seed), stdin=stdin, timeout=timeout)


def _env(hash_seed: int) -> dict[str, str]:
    return {
        "PYTHONHASHSEED": str(hash_seed),
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


@dataclass
class _Parsed:
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    errors: dict[str, Failure] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    complete: bool = False
    sentinels_ok: bool = False


def _parse(data: bytes, nonce: str) -> _Parsed:
    parsed = _Parsed()
    sentinels: set[tuple[str, str]] = set()
    for count, raw in enumerate(data.splitlines()):
        try:
            record = json.loads(raw)
        except ValueError:
            return parsed  # cut off, or written to by somebody else
        if not isinstance(record, dict) or record.get("nonce") != nonce:
            return parsed
        kind = record["kind"]
        if kind == "test":
            _add(parsed, record)
        elif kind == "sentinel":
            if record["when"] == "call":
                sentinels.add((record["id"].rpartition("::")[2], record["outcome"]))
        elif kind == "collection":
            parsed.errors[record["id"]] = Failure(**record["failure"])
        elif kind == "lines":
            for line, ids in record["contexts"].items():
                for test in ids:
                    parsed.lines.setdefault(test, {}).setdefault(record["file"], set()).add(int(line))
        elif kind == "end":
            parsed.complete = record["lines"] == count and record["collected"] == len(parsed.outcomes)
    parsed.sentinels_ok = sentinels == {("test_must_pass", "passed"), ("test_must_fail", "failed")}
    return parsed


_RANK = [Outcome.PASSED, Outcome.XFAILED, Outcome.XPASSED, Outcome.SKIPPED, Outcome.FAILED, Outcome.ERROR]


def _add(parsed: _Parsed, record: dict[str, Any]) -> None:
    test, when, said = record["id"], record["when"], record["outcome"]
    if said == "failed":
        outcome = Outcome.FAILED if when == "call" else Outcome.ERROR
    elif said == "skipped":
        outcome = Outcome.XFAILED if record["xfail"] else Outcome.SKIPPED
    elif when == "call":
        outcome = Outcome.XPASSED if record["xfail"] else Outcome.PASSED
    else:
        return  # a set-up or tear-down that went well
    before = parsed.outcomes.get(test)
    if before is None or _RANK.index(outcome) > _RANK.index(before):  # the worst of several reports counts
        parsed.outcomes[test] = outcome
    parsed.durations[test] = parsed.durations.get(test, 0.0) + record["seconds"]
    if record["failure"]:
        parsed.failures.setdefault(test, Failure(**record["failure"]))


def killed(error: BoxKilled, ids: Sequence[str]) -> SuiteReport:
    """The report of a box that what ran in it has killed."""
    missing = dict.fromkeys(ids, Outcome.MISSING)
    return SuiteReport(missing, {}, False, True, False, 0.0, output=f"the box was killed: {error}")
