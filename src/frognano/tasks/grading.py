"""Grading: is a patch right? On a pristine tree, in a fresh box, with our tests, by our report."""

from __future__ import annotations

import asyncio
import fnmatch
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from frognano.records import Outcome, Status, Task, Verdict
from frognano.sandbox.base import BoxKilled, BoxSpec, Limits, Sandbox, SandboxError, Sandboxes
from frognano.tasks.errors import TaskError
from frognano.tasks.git import apply_patch
from frognano.tasks.harbor import pack
from frognano.tasks.snapshot import is_test_path
from frognano.tasks.suite import RUNNER, RunSettings, SuiteReport, file_of, plugins_of, run_suites
from frognano.tasks.trees import Trees, put

PROTECTED = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "pytest.toml"),
    *(".pytest.toml", ".coveragerc", "*.pth", "*.pyc", "*.egg-info"),
)
"""File names that steer a test run. The pytest sections of pyproject.toml, setup.cfg and tox.ini need no taking back:
our launcher names its own configuration, so pytest never reads them, and honest changes of those files stay."""

_SHADOWS = sys.stdlib_module_names | {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "coverage", "py"}
_COMPILED = 16
"""Changed files that are compiled once for both runs; more are compiled by each."""
_PASSES = (Outcome.PASSED,)
_STAYS = (Outcome.PASSED, Outcome.XFAILED, Outcome.XPASSED)


class GradingConfig(BaseModel):
    """What a grade may use. CPU seconds decide; the wall limit is generous, since machines are busy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu_seconds: float = Field(
        default=60.0, gt=0, description="Of each of the two runs; less where the tests are known to take much less."
    )
    wall_seconds: float = Field(default=600.0, gt=0)
    limits: Limits = Limits.model_validate({"cpu_seconds": 200.0, "wall_seconds": 1300.0})
    attempts: int = Field(default=2, ge=1, description="Tries while the sandbox itself fails.")


def judge(outcomes: Mapping[str, Outcome], f2p: Sequence[str], p2p: Sequence[str]) -> bool:
    """Every fail-to-pass id passes and every pass-to-pass id does not fail. Absent or skipped is a failure."""
    if not f2p:
        raise TaskError("a task without fail-to-pass tests cannot be graded")
    fixed = all(outcomes.get(i) in _PASSES for i in f2p)
    return fixed and all(outcomes.get(i) in _STAYS for i in p2p)


def brief(task: Task, most: float) -> float:
    """CPU seconds for one run of the task's tests. An answer that loops for ever costs what eighty others do, so it is
    ended soon: after ten times what the tests take on the clean tree, and ten seconds to start in."""
    usual = task.validation.test_seconds
    return most if usual is None else min(most, 10.0 + 10.0 * usual)


class Grader:
    def __init__(self, sandboxes: Sandboxes, trees: Trees, config: GradingConfig) -> None:
        self.sandboxes, self.trees, self.config = sandboxes, trees, config

    async def grade(self, task: Task, patch: bytes) -> Verdict:
        """The verdict on a patch against the task's base tree. Only a failing sandbox gives an infrastructure error."""
        if not patch.strip():
            return Verdict(status=Status.NO_PATCH, evidence="the patch is empty")
        start = time.monotonic()
        failures = []
        for _ in range(self.config.attempts):
            try:
                verdict = await self._grade(task, patch)
                return verdict.model_copy(update={"seconds": time.monotonic() - start})
            except SandboxError as error:
                failures.append(str(error))
        evidence = f"the sandbox failed {len(failures)} times: {failures[-1]}"
        return Verdict(status=Status.INFRASTRUCTURE_ERROR, evidence=evidence, seconds=time.monotonic() - start)

    async def _grade(self, task: Task, patch: bytes) -> Verdict:
        base, hidden = await self.trees.solver(task), await self.trees.hidden(task)
        environment = await self.trees.environment(task)
        with tempfile.TemporaryDirectory(
            dir=self.trees.scratch, prefix=".grade-", ignore_cleanup_errors=True
        ) as scratch:
            tree = Path(scratch) / "repo"
            try:
                taken_back = await asyncio.to_thread(build_judged_tree, task, base, hidden, patch, tree)
            except TaskError as error:
                return Verdict(status=Status.PATCH_FAILED, evidence=str(error))
            evidence = [f"taken back: {', '.join(taken_back[:8])}"] if taken_back else []
            try:
                bound = {**RUNNER, **await self.trees.bytecode(task)}
                async with self.sandboxes.open(BoxSpec(base, environment, self.config.limits, bound, "grading")) as box:
                    changed = await _fill(box, base, tree)
                    sources = [n for n in changed if n.endswith(".py") and n not in hidden][:_COMPILED]
                    return await self._run(task, box, sources, evidence)
            except BoxKilled as error:
                evidence.append(f"the box was killed by what ran in it: {error}")
                return _verdict(task, Status.NOT_RESOLVED, {}, evidence)

    async def _run(self, task: Task, box: Sandbox, changed: Sequence[str], evidence: list[str]) -> Verdict:
        outcomes: dict[str, Outcome] = {}
        wanted = [(ids, good) for ids, good in ((task.f2p, _PASSES), (task.p2p, _STAYS)) if ids]
        reports = await self._suites(task, box, [ids for ids, _ in wanted], changed)
        for (ids, good), report in zip(wanted, reports, strict=True):
            status = _trouble(report, evidence)
            outcomes |= report.outcomes
            bad = [i for i in ids if outcomes[i] not in good]
            if status is None and bad and ids is task.p2p:  # a flaky test must not turn a right answer into a wrong one
                [again] = await self._suites(task, box, [bad], changed)
                status = _trouble(again, evidence)
                outcomes |= again.outcomes
                evidence.append(f"{len(bad)} pass-to-pass tests were run twice")
                bad = [i for i in bad if outcomes[i] not in good]
            if bad:
                evidence.append("not passing: " + ", ".join(f"{i} ({outcomes[i]})" for i in bad[:5]))
            if status is not None or bad:
                return _verdict(task, status or Status.NOT_RESOLVED, outcomes, evidence)
        status = Status.RESOLVED if judge(outcomes, task.f2p, task.p2p) else Status.NOT_RESOLVED
        return _verdict(task, status, outcomes, evidence)

    async def _suites(
        self, task: Task, box: Sandbox, groups: Sequence[Sequence[str]], changed: Sequence[str]
    ) -> list[SuiteReport]:
        """Pass-to-pass tests run only when every fail-to-pass test passed: else the verdict is known."""
        settings = RunSettings(
            brief(task, self.config.cpu_seconds),
            self.config.wall_seconds * len(groups),
            plugins=plugins_of(task.environment),
            changed=tuple(changed),
            while_passing=True,
            sweep=True,
        )
        return await run_suites(box, groups, settings)


async def _fill(box: Sandbox, base: Path, tree: Path) -> list[str]:
    """Make the judged tree in a fresh box over ``base``, which boxes know already: a whole new workspace costs more.
    The paths that differ."""
    changed = await asyncio.to_thread(_changed, base, tree)
    kept = {name: _packable(tree / name) for name in changed if (tree / name).is_symlink() or (tree / name).is_file()}
    gone = "\0".join(changed).encode()
    for argv, stdin in ((["xargs", "-0r", "rm", "-rf", "--"], gone), (["tar", "-xzf", "-"], pack(kept))):
        done = await box.exec(argv, stdin=stdin)
        if done.exit_code != 0:
            raise SandboxError(f"{argv[0]} failed in a fresh box: {done.stderr[-300:].decode(errors='replace')}")
    return changed


def _packable(file: Path) -> tuple[bytes | Path, int]:
    return (file.readlink(), 0o777) if file.is_symlink() else (file.read_bytes(), file.stat().st_mode & 0o777)


def _trouble(report: SuiteReport, evidence: list[str]) -> Status | None:
    if report.timed_out:
        evidence.append("the tests did not end in time")
        return Status.TIMEOUT
    if not report.complete:
        evidence.append(f"the test run did not come to its end: {report.output[-300:]}")
        return Status.NOT_RESOLVED
    if not report.sentinels_ok:
        evidence.append(
            "a test that must fail did not fail, or one that must pass did not pass: outcomes were rewritten"
        )
        return Status.TAMPERED
    return None


def _verdict(task: Task, status: Status, outcomes: Mapping[str, Outcome], evidence: list[str]) -> Verdict:
    every = {i: outcomes.get(i, Outcome.MISSING) for i in (*task.f2p, *task.p2p)}
    return Verdict(status=status, outcomes=every, evidence="\n".join(evidence))


def build_judged_tree(task: Task, base: Path, hidden: Mapping[str, bytes], patch: bytes, tree: Path) -> list[str]:
    """Base, then the patch, then protected files as they were, then the hidden tests; which paths were taken back."""
    shutil.copytree(base, tree, symlinks=True, ignore=lambda folder, _: [".git"] if folder == str(base) else [])
    apply_patch(patch, tree)
    owned = {*hidden, *(file_of(i) for i in (*task.f2p, *task.p2p))}
    taken_back = [name for name in _changed(base, tree) if name in owned or is_protected(name, base, tree)]
    for name in taken_back:
        before = base / name
        if before.is_file() and not before.is_symlink():
            put(tree, name, before.read_bytes(), before.stat().st_mode & 0o777)
        else:
            (tree / name).unlink(missing_ok=True)
            if before.is_symlink():
                (tree / name).symlink_to(before.readlink())
    for name, data in hidden.items():
        put(tree, name, data)
    return taken_back


def is_protected(name: str, base: Path, tree: Path) -> bool:
    """Whether a change of this path is taken back: tests, what steers a test run, links, and stand-ins for modules."""
    parts = name.split("/")
    if is_test_path(name) or any(fnmatch.fnmatch(part, p) for part in parts for p in PROTECTED):
        return True
    if (tree / name).is_symlink() or (base / name).is_symlink():
        return True
    top = parts[1] if parts[0] == "src" and len(parts) > 1 else parts[0]
    return top.partition(".")[0] in _SHADOWS and not (base / name).exists()


def _changed(base: Path, tree: Path) -> list[str]:
    """Paths that differ between two folders, links by their target, ``.git`` of the base left out."""

    def listing(root: Path) -> dict[str, Path]:
        every = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_symlink() or not p.is_dir()}
        return {name: p for name, p in every.items() if not name.startswith(".git/")}

    def content(path: Path | None) -> tuple[str | bytes, int] | None:
        if path is None:
            return None
        return (str(path.readlink()), -1) if path.is_symlink() else (path.read_bytes(), path.stat().st_mode & 0o111)

    before, after = listing(base), listing(tree)
    return sorted(n for n in before.keys() | after.keys() if content(before.get(n)) != content(after.get(n)))
