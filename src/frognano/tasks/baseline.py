"""Baseline: what the clean repository does, over several runs. Only tests that always pass are ever used."""

from __future__ import annotations

import asyncio
import hashlib
import time
from functools import partial
from pathlib import Path

from frognano.records import Environment, Outcome
from frognano.records.base import Record
from frognano.sandbox.base import BoxKilled, BoxSpec, Sandboxes, persistently
from frognano.sandbox.scratch import temporary
from frognano.tasks.environment import assert_checkout
from frognano.tasks.errors import TaskError
from frognano.tasks.snapshot import Snapshot, is_test_path
from frognano.tasks.suite import RUNNER, SuiteReport, file_of, plugins_of, run_suite
from frognano.tasks.validation_config import ValidationConfig


class Baseline(Record):
    """``ids`` are the stable tests; ``lines`` says which of them (by index) run which line of which file."""

    tree: str
    environment: str
    ids: tuple[str, ...]
    xfailed: tuple[str, ...] = ()
    """The stable tests that are expected to fail."""
    excluded: dict[str, str]
    """Test id to the reason why it is never used."""
    durations: dict[str, float]
    runs: int
    seconds: float
    """Of one whole run."""
    lines: dict[str, dict[int, tuple[int, ...]]]

    def covering(self, file: str, first: int, last: int) -> tuple[str, ...]:
        """The stable tests that run a line from ``first`` to ``last`` of a file, fastest first."""
        held = self.lines.get(file, {})
        found = {i for line in range(first, last + 1) for i in held.get(line, ())}
        return tuple(sorted((self.ids[i] for i in found), key=lambda t: (self.durations.get(t, 0.0), t)))

    def touching(self, file: str) -> tuple[str, ...]:
        """The stable tests that run any line of a file, then the others in the files of those tests; fastest first."""
        direct = {self.ids[i] for held in self.lines.get(file, {}).values() for i in held}
        files = {file_of(t) for t in direct}
        beside = {t for t in self.ids if file_of(t) in files} - direct
        speed = self.durations
        return tuple(t for group in (direct, beside) for t in sorted(group, key=lambda t: (speed.get(t, 0.0), t)))


async def measure_baseline(
    snapshot: Snapshot,
    environment: Environment,
    venv: Path,
    sandboxes: Sandboxes,
    config: ValidationConfig,
    cache: Path,
) -> Baseline:
    """Run the clean suite ``gold_runs`` times under different hash seeds, and once more for coverage. Cached.

    Tests that are slow in the first run, which is of the whole suite, are left out of the others.
    """
    said = f"2:{snapshot.tree}:{environment.key}:{snapshot.repository.tests}:{_depends(config)}"
    place = cache / "baselines" / f"{hashlib.sha256(said.encode()).hexdigest()[:24]}.json"
    if place.exists():
        return Baseline.model_validate_json(await asyncio.to_thread(place.read_bytes))
    await persistently(partial(assert_checkout, snapshot, venv, sandboxes))
    start = time.monotonic()
    reports = []
    ids: list[str] | None = None
    for run in range(config.gold_runs + 1):
        clean = partial(_clean_run, snapshot, environment, venv, sandboxes, config, run, ids)
        reports.append(await persistently(clean))
        ids = ids or [t for t, took in reports[0].durations.items() if took <= config.max_test_seconds]
        if not ids:
            break
    baseline = _summary(snapshot, environment, reports, config, (time.monotonic() - start) / len(reports))
    if not baseline.ids:
        why = next((f"{name} {reason}" for name, reason in baseline.excluded.items()), "no test was collected")
        raise TaskError(
            f"repository {snapshot.repository.name}: no test passes on its clean tree; {why}; "
            "correct its `tests` or `requirements` in the pool"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with temporary(place.parent) as scratch:
        (scratch / place.name).write_text(baseline.model_dump_json())
        (scratch / place.name).replace(place)
    return baseline


def _depends(config: ValidationConfig) -> str:
    """The settings that a clean run depends on: those of candidates may change without measuring it again."""
    kept = {"gold_runs", "max_test_seconds", "suite_cpu_seconds", "wall_seconds", "limits"}
    return config.model_dump_json(include=kept)


async def _clean_run(
    snapshot: Snapshot,
    environment: Environment,
    venv: Path,
    sandboxes: Sandboxes,
    config: ValidationConfig,
    run: int,
    ids: list[str] | None,
) -> SuiteReport:
    repo = snapshot.repository
    coverage = run == config.gold_runs
    try:
        async with sandboxes.open(BoxSpec(snapshot.root, venv, config.limits, RUNNER)) as box:
            report = await run_suite(
                box,
                ids,
                paths=repo.tests,
                cpu_seconds=config.suite_cpu_seconds,
                timeout=config.wall_seconds,
                hash_seed=run,
                plugins=plugins_of(environment),
                coverage=coverage,
            )
    except BoxKilled as error:
        raise TaskError(
            f"repository {repo.name}: its clean test suite kills the box: {error}; raise the limits"
        ) from error
    if report.timed_out:
        raise TaskError(
            f"repository {repo.name}: its clean test suite does not end in {config.suite_cpu_seconds:g} CPU-seconds; "
            "name fewer tests, or raise suite_cpu_seconds"
        )
    if not report.complete or not report.sentinels_ok:
        raise TaskError(f"repository {repo.name}: its clean test suite does not run to its end: {report.output[-300:]}")
    return report


def _summary(
    snapshot: Snapshot,
    environment: Environment,
    reports: list[SuiteReport],
    config: ValidationConfig,
    seconds: float,
) -> Baseline:
    *plain, covered = reports if len(reports) > 1 else [*reports, *reports]
    every = sorted({i for r in plain for i in r.outcomes})
    excluded: dict[str, str] = {}
    for report in plain:
        for file, failure in report.errors.items():
            excluded.setdefault(file, f"cannot be collected: {failure.crash.strip().splitlines()[-1:]}")
    for test in every:
        if (took := plain[0].durations.get(test, 0.0)) > config.max_test_seconds:
            excluded[test] = f"slow: {took:.1f} s"
            continue
        seen = {r.outcomes.get(test, Outcome.MISSING) for r in plain}
        if len(seen) > 1:
            excluded[test] = f"unstable on the clean tree: {', '.join(sorted(seen))}"
        elif not seen <= {Outcome.PASSED, Outcome.XFAILED}:
            excluded[test] = f"{next(iter(seen))} on the clean tree"
    ids = tuple(t for t in every if t not in excluded)
    index = {t: i for i, t in enumerate(ids)}
    lines: dict[str, dict[int, list[int]]] = {}
    for test, files in covered.lines.items():
        if test not in index:
            continue
        for file, numbers in files.items():
            if is_test_path(file):
                continue
            held = lines.setdefault(file, {})
            for number in numbers:
                held.setdefault(number, []).append(index[test])
    return Baseline(
        tree=snapshot.tree,
        environment=environment.key,
        ids=ids,
        xfailed=tuple(t for t in ids if plain[0].outcomes[t] is Outcome.XFAILED),
        excluded=excluded,
        durations={t: max(r.durations.get(t, 0.0) for r in plain) for t in ids},
        runs=len(plain),
        seconds=round(seconds, 3),
        lines={f: {n: tuple(sorted(t)) for n, t in held.items()} for f, held in lines.items()},
    )
