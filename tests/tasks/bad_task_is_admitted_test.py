"""What validation keeps out, and what a suite report must not get wrong."""

from __future__ import annotations

import pytest

from frognano.records import Outcome, Status
from frognano.sandbox.base import BoxSpec
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.tasks.baseline import measure_baseline
from frognano.tasks.environment import assert_checkout, build_environment
from frognano.tasks.errors import TaskError
from frognano.tasks.grading import Grader
from frognano.tasks.snapshot import fetch_snapshot
from frognano.tasks.suite import RUNNER, run_suite
from frognano.tasks.validation import Candidate, Reason, Rejected, validate

from .conftest import BUG, CALC, CONFIG, World, toy

T = "tests/test_calc.py"


async def test_ids_are_exact_and_outcomes_are_told_apart(world: World, boxes: BubblewrapSandboxes) -> None:
    wanted = {
        f"{T}::TestDouble::test_text[a b]": Outcome.PASSED,
        f"{T}::TestDouble::test_text[a c]": Outcome.PASSED,
        f"{T}::TestDouble::test_text[x::y]": Outcome.PASSED,
        f"{T}::TestDouble::test_text[[z]]": Outcome.PASSED,
        f"{T}::TestDouble::test_text[\\xe9]": Outcome.PASSED,
        f"{T}::TestDouble::test_text[a/b.py::q]": Outcome.PASSED,
        f"{T}::test_skipped": Outcome.SKIPPED,
        f"{T}::test_expected_to_fail": Outcome.XFAILED,
        f"{T}::test_unexpectedly_passes": Outcome.XPASSED,
        f"{T}::test_set_up_fails": Outcome.ERROR,
        f"{T}::test_tear_down_fails": Outcome.ERROR,
        f"{T}::test_fails_when_clean": Outcome.FAILED,
        f"{T}::test_was_deleted": Outcome.MISSING,
        "tests/test_gone.py::test_a": Outcome.MISSING,
    }
    async with boxes.open(BoxSpec(world.snapshot.root, world.venv, read_only=RUNNER)) as box:
        report = await run_suite(box, [i for i in wanted if "gone" not in i], cpu_seconds=6, timeout=60)
        gone = await run_suite(box, list(wanted), cpu_seconds=6, timeout=60)
    assert report.complete
    assert report.sentinels_ok
    assert report.outcomes == {i: o for i, o in wanted.items() if "gone" not in i}
    assert gone.outcomes["tests/test_gone.py::test_a"] is Outcome.MISSING
    failure = report.failures[f"{T}::test_fails_when_clean"]
    assert (failure.type, failure.source) == ("AssertionError", 'assert double(1) == 5, "as ever"')
    assert "as ever" in failure.message
    assert failure.file == T


BYTECODE = """
import pathlib, sys
import netrc
import calc

def test_where():
    made = [str(p) for p in pathlib.Path(sys.pycache_prefix).rglob("*.pyc")]
    assert [p for p in made if "calc." in p]
    assert not [p for p in made if "netrc" in p]

def test_stale():
    assert calc.double(2) == 4
"""


async def test_bytecode_is_stale_or_made_anew_for_what_is_installed(world: World, boxes: BubblewrapSandboxes) -> None:
    """Compiling what a test imports of the standard library took up to half of a short run. Bytecode that lies in the
    repository must not be believed: here it is of other source, with the size and time of this one."""
    stale = """
import os, py_compile, sys
at = os.stat("calc.py")
open("/tmp/calc.py", "w").write(open("calc.py").read().replace("x + x", "x - x"))
os.utime("/tmp/calc.py", (at.st_mtime, at.st_mtime))
py_compile.compile("/tmp/calc.py", cfile="__pycache__/calc." + sys.implementation.cache_tag + ".pyc", doraise=True)
"""
    ids = ["tests/test_bytecode.py::test_where", "tests/test_bytecode.py::test_stale"]
    async with boxes.open(BoxSpec(world.snapshot.root, world.venv, read_only=RUNNER)) as box:
        await box.write_bytes("/repo/tests/test_bytecode.py", BYTECODE.encode())
        made = await box.exec(["python", "-c", stale])
        believed = await box.exec(["python", "-c", "import calc; print(calc.double(2))"])
        report = await run_suite(box, ids, cpu_seconds=6, timeout=60)
    assert (made.exit_code, believed.stdout) == (0, b"0\n"), "else the trap is no trap"
    assert report.outcomes == dict.fromkeys(ids, Outcome.PASSED), report.failures


def test_unstable_and_red_tests_are_left_out_with_a_reason(world: World) -> None:
    excluded = world.baseline.excluded
    assert "unstable" in excluded[f"{T}::test_by_hash_seed"]
    assert "failed on the clean tree" in excluded[f"{T}::test_fails_when_clean"]
    assert "skipped" in excluded[f"{T}::test_skipped"]
    assert f"{T}::test_by_hash_seed" not in {*world.task.f2p, *world.task.p2p}
    assert not set(excluded) & set(world.baseline.ids)


def test_the_tests_of_a_bug_are_found(world: World) -> None:
    assert set(world.task.f2p) == {f"{T}::test_inside[{x}]" for x in (1, 2, 3)} | {
        f"{T}::test_below",
        f"{T}::test_above",
    }
    assert world.task.hidden_files == (T,)
    assert "tests/test_other.py::test_other" in world.task.p2p
    assert world.validated.failures[f"{T}::test_below"].source == "assert clamp(-1, 0, 5) == 0"
    assert not world.task.validation.noop_resolved
    assert world.task.validation.test_seconds  # how long a grade may take follows from it
    assert world.baseline.covering("calc.py", 16, 16) == ()
    number = f"{T}::TestDouble::test_number[0]"
    assert number in world.baseline.covering("calc.py", 13, 13)
    assert number not in world.baseline.covering("calc.py", 5, 9)


CASES = {
    Reason.UNCHANGED: CALC,
    Reason.SURVIVED: CALC.replace("if x > high", "if x >= high"),
    Reason.BREAKS_IMPORT: "import no_such_module\n" + CALC,
    Reason.TOO_BROAD: CALC.replace("return x + x", "return None"),
    Reason.TIMEOUT: CALC.replace("if x < low", "while x < low: pass\n    if x < low"),
    Reason.KILLED: CALC.replace("return low", "import os; os._exit(0)"),
}


@pytest.mark.parametrize("reason", CASES)
async def test_a_bad_candidate_is_rejected_by_name(reason: Reason, world: World, boxes: BubblewrapSandboxes) -> None:
    covering = world.baseline.touching("calc.py")
    config = CONFIG.model_copy(update={"cpu_seconds": 2.0})
    candidate = Candidate("calc.py", CASES[reason].encode(), covering)
    out = await validate(candidate, world.snapshot, world.environment, world.venv, boxes, world.baseline, config)
    assert isinstance(out, Rejected), out
    assert out.reason is reason, out.detail


async def test_a_syntax_error_or_an_uncovered_line_never_opens_a_box(world: World) -> None:
    for content, covering, reason in (
        (b"def (", world.baseline.ids, Reason.BREAKS_IMPORT),
        (BUG.encode(), (), Reason.UNCOVERED),
        (BUG.encode(), (f"{T}::test_fails_when_clean",), Reason.UNCOVERED),
    ):
        candidate = Candidate("calc.py", content, tuple(covering))
        out = await validate(candidate, world.snapshot, world.environment, world.venv, None, world.baseline, CONFIG)  # type: ignore[arg-type]
        assert isinstance(out, Rejected)
        assert out.reason is reason


async def test_an_installed_copy_is_noticed(world: World, boxes: BubblewrapSandboxes) -> None:
    """Tests that import it would pay for doing nothing."""
    config = toy(
        world.cache / "shadowed",
        {"iniconfig/tests/test_a.py": "def test_a(): pass\n"},
        name="iniconfig",
        tests=("iniconfig",),
    )
    with pytest.raises(TaskError, match="installed copy"):
        await build_environment(await fetch_snapshot(config, world.cache), world.cache)
    stand_in = toy(world.cache / "other", {"six/__init__.py": "", "tests/test_a.py": ""}, package="six")
    snapshot = await fetch_snapshot(stand_in, world.cache)
    (snapshot.root / "six/__init__.py").unlink()  # what is left is a namespace package without a file
    (snapshot.root / "six").rmdir()
    with pytest.raises(TaskError, match="cannot be imported"):
        await assert_checkout(snapshot, world.venv, boxes)


BROKEN = {
    "no test passes": {"tests/test_a.py": "def test_a(): assert 0\n"},
    "no test was collected": {"tests/notes.txt": "nothing here\n"},
    "does not end": {"tests/test_a.py": "def test_a():\n    while True: pass\n"},
    "does not run to its end": {"tests/test_a.py": "import os\nos._exit(0)\n"},
}


@pytest.mark.parametrize("said", BROKEN)
async def test_a_repository_of_no_use_is_named_with_the_remedy(
    said: str, world: World, boxes: BubblewrapSandboxes
) -> None:
    root = world.cache / said.replace(" ", "-")
    snapshot = await fetch_snapshot(toy(root, {"calc.py": CALC, **BROKEN[said]}), world.cache)
    config = CONFIG.model_copy(update={"suite_cpu_seconds": 2.0})
    with pytest.raises(TaskError, match=said):
        await measure_baseline(snapshot, world.environment, world.venv, boxes, config, world.cache)


async def test_a_repository_without_its_tests_or_package_is_named(world: World) -> None:
    with pytest.raises(TaskError, match="has no tests: name test paths"):
        await fetch_snapshot(toy(world.cache / "untested", {"calc.py": CALC}), world.cache)
    with pytest.raises(TaskError, match="set `package`"):
        await fetch_snapshot(toy(world.cache / "unnamed", {"tests/test_a.py": "", "other.py": ""}), world.cache)


async def test_doing_nothing_scores_nothing(world: World, grader: Grader) -> None:
    note = b"diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+I tried.\n"
    assert (await grader.grade(world.task, b"")).status is Status.NO_PATCH
    verdict = await grader.grade(world.task, note)
    assert verdict.status is Status.NOT_RESOLVED
    assert verdict.outcomes[f"{T}::test_below"] is Outcome.FAILED
