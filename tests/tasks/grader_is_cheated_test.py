"""Patches that must not pay, against a real grader in real boxes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from frognano.records import Outcome, Status, Task, Verdict
from frognano.sandbox.base import BoxSpec, SandboxError
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.tasks.errors import TaskError
from frognano.tasks.grading import Grader, GradingConfig, brief, judge

from .conftest import BUG, CALC, World


async def work(world: World, tmp_path: Path, files: dict[str, str | None]) -> bytes:
    """The patch of somebody who wrote (or, for None, deleted) these files."""
    solver = await world.trees.solver(world.task)
    return await asyncio.to_thread(_work, solver, tmp_path / "work", files)


def _work(solver: Path, root: Path, files: dict[str, str | None]) -> bytes:
    shutil.copytree(solver, root, symlinks=True)
    for name, text in files.items():
        if text is None:
            (root / name).unlink()
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    return subprocess.run(["git", "diff", "--cached", "--binary"], cwd=root, check=True, capture_output=True).stdout


HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    out = yield
    out.get_result().outcome = "passed"
"""
REWRITE = (
    BUG
    + """
from _pytest import reports
_init = reports.TestReport.__init__
def init(self, *args, **more):
    _init(self, *args, **more)
    self.outcome, self.longrepr = "passed", None
reports.TestReport.__init__ = init
"""
)
FORGED = (
    BUG
    + """
import atexit
for i in range(3):
    print("tests/test_calc.py::test_below PASSED")
atexit.register(print, "tests/test_calc.py::test_below PASSED\\n===== 30 passed in 0.01s =====")
"""
)
LEAVES = BUG.replace('"""Arithmetic."""', "import os\nos._exit(0)")
WRITER = (
    BUG
    + """
import os, sys
if not os.fork():  # stays when the test run ends, and writes over what was reported
    os.setsid()
    import glob, json, time
    for _ in range(2000):
        for name in glob.glob("/tmp/report-*.jsonl"):
            try:
                lines = [json.loads(line) for line in open(name)]
                if not lines or lines[-1]["kind"] != "end":
                    continue
                for line in lines:
                    if line["kind"] == "test":
                        line["outcome"], line["failure"] = "passed", None
                open(name, "w").write("".join(json.dumps(line) + chr(10) for line in lines))
            except (OSError, ValueError):
                pass
        time.sleep(0.001)
    os._exit(0)
"""
)
PLANTED = {"tests/test_calc.py": "def test_below(): pass\n", "tests/test_calc/__init__.py": ""}

CHEATS: dict[str, tuple[dict[str, str | None], Status]] = {
    "conftest only": ({"conftest.py": HOOK, "tests/conftest.py": HOOK}, Status.NOT_RESOLVED),
    "pytest.ini": ({"pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": HOOK}, Status.NOT_RESOLVED),
    "pyproject": (
        {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p evil"\n', "evil.py": HOOK},
        Status.NOT_RESOLVED,
    ),
    "sitecustomize": (
        {"sitecustomize.py": "import os; os._exit(0)\n", "src/sitecustomize.py": ""},
        Status.NOT_RESOLVED,
    ),
    "a pytest of its own": (
        {"pytest.py": "import os; os._exit(0)\n", "json.py": "raise SystemExit\n"},
        Status.NOT_RESOLVED,
    ),
    "forged output": ({"calc.py": FORGED}, Status.NOT_RESOLVED),
    "os._exit(0)": ({"calc.py": LEAVES}, Status.NOT_RESOLVED),
    "rewritten outcomes": ({"calc.py": REWRITE}, Status.TAMPERED),
    "a background writer": ({"calc.py": WRITER}, Status.NOT_RESOLVED),
    "a planted test file": (PLANTED, Status.NOT_RESOLVED),
    "weakened tests": ({"tests/test_other.py": "def test_other(): pass\n"}, Status.NOT_RESOLVED),
    "deleted tests": ({"tests/test_other.py": None}, Status.NOT_RESOLVED),
    "deleted code": ({"calc.py": None}, Status.NOT_RESOLVED),
    "an endless loop": ({"calc.py": "while True: pass\n"}, Status.TIMEOUT),
}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_does_not_pay(name: str, world: World, grader: Grader, tmp_path: Path) -> None:
    files, status = CHEATS[name]
    verdict = await grader.grade(world.task, await work(world, tmp_path, files))
    assert verdict.status is status, verdict.evidence
    assert set(verdict.outcomes) == {*world.task.f2p, *world.task.p2p}


async def test_an_honest_fix_is_paid_whatever_else_it_touches(world: World, grader: Grader, tmp_path: Path) -> None:
    files: dict[str, str | None] = {
        "calc.py": CALC + "\n# fixed\n",
        "conftest.py": "raise SystemExit\n",
        "tests/test_new.py": "def test_new(): assert 0\n",
        "tests/test_other.py": None,
        "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n",
    }
    verdict = await grader.grade(world.task, await work(world, tmp_path, files))
    assert verdict.status is Status.RESOLVED, verdict.evidence
    assert "conftest.py" in verdict.evidence


async def test_an_always_true_eq_is_the_documented_hole(world: World, grader: Grader, tmp_path: Path) -> None:
    """No runner can see it: tests that compare by == believe the object. Audits of suspicious wins look for it."""
    true = BUG + "\nclass Yes(int):\n    def __eq__(self, other): return True\n\n_c = clamp\n"
    true += "def clamp(*a): return Yes(_c(*a))\n"
    verdict = await grader.grade(world.task, await work(world, tmp_path, {"calc.py": true}))
    assert verdict.status is Status.RESOLVED


async def test_a_link_out_of_the_tree_is_taken_back(world: World, grader: Grader, tmp_path: Path) -> None:
    target = tmp_path / "outside"
    target.mkdir()
    link = "diff --git a/tests/test_calc.py b/tests/test_calc.py\nnew file mode 120000\n--- /dev/null\n"
    link += f"+++ b/tests/test_calc.py\n@@ -0,0 +1 @@\n+{target}/x\n\\ No newline at end of file\n"
    verdict = await grader.grade(world.task, link.encode())
    assert verdict.status is Status.NOT_RESOLVED
    assert not list(target.iterdir())


async def test_a_patch_that_does_not_fit_leaves_nothing_half_done(world: World, grader: Grader) -> None:
    gold = world.task.gold_patch
    assert (await grader.grade(world.task, b" \n")).status is Status.NO_PATCH
    assert (await grader.grade(world.task, gold.replace(b"if x > low", b"if y > low"))).status is Status.PATCH_FAILED
    outside = b"diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n"
    assert (await grader.grade(world.task, outside)).status is Status.PATCH_FAILED


async def test_gold_is_paid(world: World, grader: Grader) -> None:
    verdict = await grader.grade(world.task, world.task.gold_patch)
    assert verdict.status is Status.RESOLVED, verdict.evidence
    assert verdict.seconds > 0


@pytest.mark.parametrize("absent", [Outcome.MISSING, Outcome.SKIPPED, Outcome.XFAILED, Outcome.ERROR])
def test_a_missing_or_skipped_test_is_no_pass(absent: Outcome) -> None:
    assert judge({"a": Outcome.PASSED, "b": Outcome.PASSED}, ["a"], ["b"])
    assert not judge({"a": absent, "b": Outcome.PASSED}, ["a"], ["b"])
    assert not judge({"b": Outcome.PASSED}, ["a"], ["b"])
    assert not judge({"a": Outcome.PASSED, "b": Outcome.SKIPPED}, ["a"], ["b"])
    with pytest.raises(TaskError, match="without fail-to-pass"):
        judge({}, [], [])


async def test_harbors_verifier_agrees(world: World, boxes: BubblewrapSandboxes) -> None:
    """The script that travels with a task, in a box in place of Harbor's container."""
    place = world.trees.tasks / world.task.id / "tests"
    spec = BoxSpec(await world.trees.solver(world.task), world.venv, read_only={"/tests": place})
    script = "tar -xzf /tests/hidden.tar.gz -C /repo && mkdir -p /tmp/v && python -s /tests/runner/reward.py /tmp/v"
    for content, reward in ((BUG, 0.0), (CALC, 1.0)):
        async with boxes.open(spec) as box:
            await box.write_bytes("/repo/calc.py", content.encode())
            done = await box.exec(["sh", "-c", script])
            assert done.exit_code == 0, done.stderr
            assert json.loads(await box.read_bytes("/tmp/v/reward.json")) == {"reward": reward}


class NoSandboxes:
    tier = "none"
    opened = 0

    def open(self, spec: BoxSpec) -> object:
        self.opened += 1
        raise SandboxError("no user namespaces")


async def test_a_failing_sandbox_is_no_score(world: World) -> None:
    broken = NoSandboxes()
    verdict = await Grader(broken, world.trees, GradingConfig()).grade(world.task, world.task.gold_patch)  # type: ignore[arg-type]
    assert verdict.status is Status.INFRASTRUCTURE_ERROR
    assert not verdict.counts
    assert broken.opened == 2
    assert isinstance(verdict, Verdict)
    assert isinstance(world.task, Task)


def test_an_answer_that_loops_costs_minutes_where_the_tests_take_a_second(world: World) -> None:
    def limit(usual: float | None) -> float:
        validation = world.task.validation.model_copy(update={"test_seconds": usual})
        return brief(world.task.model_copy(update={"validation": validation}), most=60)

    assert limit(0.2) == 12
    assert limit(40) == 60  # never more than the recipe allows
    assert limit(None) == 60  # tasks of other makers do not say
