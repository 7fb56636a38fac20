"""Validation: does a bug make a task? Repeated runs, and reasons for every rejection.

A candidate is the whole new content of one file. Fail-to-pass: the tests that fail in every run with the bug and pass
in every clean run. The clean runs are the baseline's, once per repository: the gold patch gives the clean tree back,
byte for byte, which is asserted.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

from frognano.records import Environment, Outcome, Validation
from frognano.sandbox.base import REPO, BoxKilled, BoxSpec, Sandbox, Sandboxes
from frognano.sandbox.scratch import temporary
from frognano.tasks.baseline import Baseline
from frognano.tasks.bench import Bench
from frognano.tasks.errors import TaskError
from frognano.tasks.git import apply_patch, make_patch
from frognano.tasks.grading import judge
from frognano.tasks.snapshot import Snapshot, is_test_path
from frognano.tasks.suite import RUNNER, Failure, RunSettings, SuiteReport, file_of, plugins_of, run_suites
from frognano.tasks.trees import put
from frognano.tasks.validation_config import ValidationConfig

_FAILS = (Outcome.FAILED, Outcome.ERROR)
_STAYS = (Outcome.PASSED, Outcome.XFAILED)


class Reason(StrEnum):
    """Why a candidate is no task."""

    UNCHANGED = "unchanged"
    UNCOVERED = "uncovered"
    BREAKS_IMPORT = "breaks_import"
    SURVIVED = "survived"
    TOO_BROAD = "too_broad"
    NO_F2P = "no_f2p"
    TIMEOUT = "timeout"
    KILLED = "killed"
    TAMPERED = "tampered"


_UNCLEAN = (Reason.TIMEOUT, Reason.KILLED, Reason.TAMPERED)
"""After these no box is used again."""


_COMPILED = "/tmp/compiled"


@dataclass(frozen=True)
class Candidate:
    """A bug: ``content`` are the new bytes of ``file``; ``covering`` the stable tests that run the changed lines."""

    file: str
    content: bytes
    covering: tuple[str, ...]


@dataclass(frozen=True)
class Rejected:
    reason: Reason
    detail: str


@dataclass(frozen=True)
class Validated:
    """All that a task needs besides its statements, lineage and base tree."""

    candidate: Candidate
    gold_patch: bytes
    f2p: tuple[str, ...]
    p2p: tuple[str, ...]
    p2p_excluded: dict[str, str]
    hidden_files: tuple[str, ...]
    failures: dict[str, Failure]
    """How the fail-to-pass tests fail: what statements are made of."""
    validation: Validation


async def validate(
    candidate: Candidate,
    snapshot: Snapshot,
    environment: Environment,
    venv: Path,
    sandboxes: Sandboxes,
    baseline: Baseline,
    config: ValidationConfig,
    *,
    bound: Mapping[str, Path] | None = None,
    bench: Bench | None = None,
) -> Validated | Rejected:
    """Run the bug in one box until it is a task or has shown that it is none. A SandboxError goes to the caller.

    Without a bench the box is a fresh one, and each launch of tests a fresh process: a cold run. With one the box may
    have served other candidates and been put back. What comes out is the same; where a warm box breaks, a cold run decides.
    ``bound`` is what boxes get read-only beside the runner (see `bytecode`)."""
    if is_test_path(candidate.file):
        raise TaskError(f"{candidate.file} is a test: bugs go into sources")
    start = time.monotonic()
    clean = (snapshot.root / candidate.file).read_bytes()
    if candidate.content == clean:
        return Rejected(Reason.UNCHANGED, "the file is as it was")
    stable = set(baseline.ids)
    covering = tuple(t for t in candidate.covering if t in stable)[: config.max_p2p]
    if not covering:
        return Rejected(Reason.UNCOVERED, "no stable test runs the changed lines")
    try:
        code = compile(candidate.content, f"{REPO}/{candidate.file}", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return Rejected(Reason.BREAKS_IMPORT, f"{candidate.file}: {error}")
    beside = tuple(t for t in baseline.touching(candidate.file) if t not in set(covering))
    more = beside[: max(0, config.max_p2p - len(covering))]
    usual = sum(baseline.durations.get(t, 0.0) for t in covering)
    runs = _Runs(candidate, covering, more, usual, len(baseline.ids), config, plugins_of(environment), code)
    spec = BoxSpec(snapshot.root, venv, config.limits, {**RUNNER, **(bound or {})})
    reports = None
    if bench is not None:
        with contextlib.suppress(BoxKilled, OSError):  # what ran there before may have had a part in it
            async with bench.lease(spec, candidate.file, clean) as box:
                reports = await runs.all(box, forked=True)
                if isinstance(reports, Rejected) and reports.reason in _UNCLEAN:
                    bench.spoil(box)
    if reports is None:
        try:
            async with sandboxes.open(spec) as box:
                reports = await runs.all(box, forked=False)
        except BoxKilled as error:
            return Rejected(Reason.KILLED, f"the bug kills its box: {error}")
    if isinstance(reports, Rejected):
        return reports
    first, *later = reports
    f2p, p2p, excluded = _sort_out(covering, more, first, later)
    if not f2p:
        return Rejected(Reason.NO_F2P, f"no test fails in all {config.bug_runs} runs")
    if len(f2p) > config.max_f2p_share * len(baseline.ids):
        return Rejected(Reason.TOO_BROAD, f"{len(f2p)} of {len(baseline.ids)} tests fail")
    noop = any(judge(r.outcomes, f2p, [t for t in p2p if t in r.outcomes]) for r in (first, *later))
    if noop:
        raise TaskError(f"doing nothing would solve a bug in {candidate.file}: its tests do not see the checkout")
    gold = await asyncio.to_thread(_gold_patch, candidate, clean)
    excluded |= dict.fromkeys(beside[len(more) :], "beyond max_p2p")
    return Validated(
        candidate=candidate,
        gold_patch=gold,
        f2p=f2p,
        p2p=p2p,
        p2p_excluded=excluded,
        hidden_files=tuple(sorted({file_of(t) for t in f2p})),
        failures={t: first.failures[t] for t in f2p if t in first.failures},
        validation=Validation(
            bug_runs=config.bug_runs,
            gold_runs=baseline.runs,
            noop_resolved=noop,
            seconds=time.monotonic() - start,
            test_seconds=sum(baseline.durations.get(t, 0.0) for t in (*f2p, *p2p)),
        ),
    )


@dataclass(frozen=True)
class _Runs:
    """The runs of one candidate."""

    candidate: Candidate
    covering: tuple[str, ...]
    more: tuple[str, ...]
    usual: float
    """CPU seconds that the covering tests take on the clean tree."""
    suite: int
    config: ValidationConfig
    plugins: tuple[str, ...]
    code: CodeType

    async def all(self, box: Sandbox, forked: bool) -> list[SuiteReport] | Rejected:
        """The covering tests once, briefly; when that speaks for the bug, them and the others in all other runs."""
        await box.write_bytes(f"{REPO}/{self.candidate.file}", self.candidate.content)
        await box.write_bytes(_COMPILED, MAGIC_NUMBER + marshal.dumps(self.code))
        brief = min(self.config.cpu_seconds, 6.0 + 5.0 * self.usual)  # an endless loop shows here, and soon
        [first] = await self._run(box, [self.covering], brief, forked)
        if rejected := _early(first, self.covering, self.suite, self.config):
            return rejected
        again = [(*self.covering, *self.more)] * (self.config.bug_runs - 1)
        later = await self._run(box, again, self.config.cpu_seconds, forked)
        for report in later:
            if rejected := _trouble(report):
                return rejected
        return [first, *later]

    async def _run(
        self, box: Sandbox, groups: Sequence[Sequence[str]], cpu_seconds: float, forked: bool
    ) -> list[SuiteReport]:
        settings = RunSettings(
            cpu_seconds,
            self.config.wall_seconds,
            hash_seed=len(groups),  # another one in the later runs
            plugins=self.plugins,
            changed=(self.candidate.file,),
            compiled=_COMPILED,
            forked=forked,
        )
        return await run_suites(box, groups, settings)


def _trouble(report: SuiteReport) -> Rejected | None:
    if report.timed_out:
        return Rejected(Reason.TIMEOUT, "the tests do not end with the bug")
    if report.errors:
        file, failure = next(iter(report.errors.items()))
        return Rejected(Reason.BREAKS_IMPORT, f"{file}: {failure.crash[-300:]}")
    if not report.complete:
        return Rejected(Reason.KILLED, f"the test run does not come to its end: {report.output[-300:]}")
    if not report.sentinels_ok:
        return Rejected(Reason.TAMPERED, "a test that must fail passes, or one that must pass fails")
    return None


def _early(report: SuiteReport, covering: Sequence[str], suite: int, config: ValidationConfig) -> Rejected | None:
    if rejected := _trouble(report):
        return rejected
    failing = sum(report.outcomes[t] in _FAILS for t in covering)
    if not failing:
        return Rejected(Reason.SURVIVED, f"all {len(covering)} covering tests pass")
    if failing > config.max_f2p_share * suite:
        return Rejected(Reason.TOO_BROAD, f"{failing} of {suite} tests fail")
    return None


def _sort_out(
    covering: Sequence[str], more: Sequence[str], first: SuiteReport, later: Sequence[SuiteReport]
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    f2p, p2p, excluded = [], [], {}
    for test in (*covering, *more):
        runs = [r.outcomes[test] for r in (first, *later) if test in r.outcomes]
        if all(o in _STAYS for o in runs):
            p2p.append(test)
        elif all(o in _FAILS for o in runs) and test in first.outcomes:
            f2p.append(test)
        else:
            excluded[test] = f"with the bug: {', '.join(runs)}"
    return tuple(f2p), tuple(p2p), excluded


def _gold_patch(candidate: Candidate, clean: bytes) -> bytes:
    patch = make_patch(candidate.file, candidate.content, clean)
    with temporary() as scratch:
        tree = scratch / "repo"
        tree.mkdir()
        put(tree, candidate.file, candidate.content, 0o644)
        apply_patch(patch, tree)
        if (tree / candidate.file).read_bytes() != clean:
            raise TaskError(f"the gold patch of {candidate.file} does not give the clean file back")
    return patch
