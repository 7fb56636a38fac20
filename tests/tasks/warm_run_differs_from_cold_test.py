"""A fast verdict must be the cold one: the same candidates with and without what is shared between them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from frognano.records import Outcome
from frognano.sandbox.base import BoxSpec, Sandbox
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.tasks.bench import Bench
from frognano.tasks.bytecode import BYTECODE_AT, compile_tree
from frognano.tasks.git import tree_id
from frognano.tasks.harbor import read_files, tree_id_of
from frognano.tasks.suite import RUNNER, RunSettings, prefork, run_suites
from frognano.tasks.validation import Candidate, Reason, Rejected, Validated, validate

from .bad_task_is_admitted_test import CASES
from .conftest import BUG, CALC, CONFIG, World

T = "tests/test_calc.py"
LEAVES_FILES = BUG.replace(
    "    if x > low:",
    '    open("/tmp/seen", "a").write("x")\n    open("left.txt", "w").write("x")\n    if x > low:',
)
READS_THEM = CALC.replace(
    "    if x < low:",
    '    import os\n    if os.path.exists("/tmp/seen") or os.path.exists("left.txt"):\n        return None\n    if x < low:',
)
DAEMON = CALC.replace(
    "    if x < low:",
    "    import os, time\n    if not os.fork():\n        os.setsid()\n        time.sleep(60)\n    if x < low:",
)
SUICIDE = CALC.replace("        return low", "        import os; os.kill(-1, 9)")
CANDIDATES = [BUG, LEAVES_FILES, READS_THEM, DAEMON, BUG, SUICIDE, *CASES.values(), BUG]
"""In this order in the boxes of one bench: what a bad one leaves must not be seen by the next."""


@pytest.fixture
async def bench(boxes: BubblewrapSandboxes) -> AsyncIterator[Bench]:
    bench = Bench(boxes)
    yield bench
    await bench.close()


def verdict(out: Validated | Rejected) -> object:
    if isinstance(out, Rejected):
        return out.reason
    failures = {t: (f.type, f.message, f.line) for t, f in out.failures.items()}
    return out.f2p, out.p2p, out.p2p_excluded, out.hidden_files, out.gold_patch, failures


async def test_every_verdict_is_that_of_a_cold_run(world: World, boxes: BubblewrapSandboxes, bench: Bench) -> None:
    config = CONFIG.model_copy(update={"cpu_seconds": 2.0})
    bound = await compile_tree(world.snapshot, world.environment, world.venv, boxes, world.cache)
    covering = world.baseline.touching("calc.py")
    warm, cold = [], []
    for content in CANDIDATES:
        candidate = Candidate("calc.py", content.encode(), covering)
        where = (world.snapshot, world.environment, world.venv, boxes, world.baseline, config)
        warm.append(verdict(await validate(candidate, *where, bound=bound, bench=bench)))
        cold.append(verdict(await validate(candidate, *where)))
    assert warm == cold
    assert {Reason.SURVIVED, Reason.TIMEOUT, Reason.KILLED, Reason.BREAKS_IMPORT} <= set(filter(_is_reason, warm))
    assert sum(not _is_reason(w) for w in warm) >= 4


def _is_reason(said: object) -> bool:
    return isinstance(said, Reason)


async def test_a_box_is_used_again_only_when_nothing_is_left_in_it(world: World, bench: Bench) -> None:
    spec = BoxSpec(world.snapshot.root, world.venv, CONFIG.limits, RUNNER)
    clean = CALC.encode()

    async def use(*argv: str) -> Sandbox:
        async with bench.lease(spec, "calc.py", clean) as box:
            await box.write_bytes("/repo/calc.py", BUG.encode())
            done = await box.exec(list(argv))
            assert done.exit_code == 0, done.stderr
        return box

    first = await use("sh", "-c", "echo x > /tmp/x; mkdir -p /tmp/home/y /dev/shm/z; echo > /dev/shm/z/w")
    again = await use("sh", "-c", "! ls -d /tmp/x /tmp/home/y /dev/shm/z")
    assert again is first
    assert (await use("grep", "-q", "x > low", "calc.py")) is first
    async with bench.lease(spec, "calc.py", clean) as box:
        assert await box.read_bytes("/repo/calc.py") == clean
    for spoils in (
        "echo > new.txt",
        "mkdir __pycache__",
        "chmod 600 tests/test_other.py",
        "touch tests/test_other.py",
        "rm calc.py; ln -s tests/test_other.py calc.py",
        "setsid sleep 60 > /dev/null 2>&1 &",
    ):
        before = await use("true")
        assert (await use("sh", "-c", spoils)) is before
        assert (await use("true")) is not before, spoils


async def test_old_bytecode_is_never_run(world: World, boxes: BubblewrapSandboxes) -> None:
    """Same path, same size, same time, other content: in a fresh box, and from one fork of a warm process to the next."""
    bound = await compile_tree(world.snapshot, world.environment, world.venv, boxes, world.cache)
    assert any(bound[BYTECODE_AT].iterdir())
    wrong = CALC.replace("return x + x", "return x - x").encode()
    test = (world.snapshot.root / T).read_bytes()
    weak = re.sub(rb"assert double\(n\) == 2 \* n", b"assert double(n) == 3 * n", test)
    ids = [f"{T}::TestDouble::test_number[1]"]
    passed, failed = {ids[0]: Outcome.PASSED}, {ids[0]: Outcome.FAILED}
    spec = BoxSpec(world.snapshot.root, world.venv, CONFIG.limits, {**RUNNER, **bound})
    for forked in (True, False):
        settings = RunSettings(6, 60, forked=forked)
        async with boxes.open(spec) as box:
            if forked:
                await prefork(box, 0)
            for name, data, expected in (
                ("calc.py", CALC.encode(), passed),
                ("calc.py", wrong, failed),
                ("calc.py", CALC.encode(), passed),
                (T, weak, failed),
                (T, test, passed),
            ):
                await box.write_bytes(f"/repo/{name}", data)
                await box.exec(["touch", "-d", "2001-01-01", name])
                [report] = await run_suites(box, [ids], replace(settings, changed=("calc.py",)))
                assert report.complete, report.output
                assert report.outcomes == expected, (forked, name)


async def test_what_is_clean_is_not_compiled_again(world: World, boxes: BubblewrapSandboxes) -> None:
    """Else the whole gain is gone and nothing says so: a run writes bytecode only of what it had to compile."""
    bound = await compile_tree(world.snapshot, world.environment, world.venv, boxes, world.cache)
    made: list[set[str]] = []
    for read_only in ({**RUNNER, **bound}, RUNNER):
        async with boxes.open(BoxSpec(world.snapshot.root, world.venv, CONFIG.limits, read_only)) as box:
            [report] = await run_suites(box, [world.baseline.ids[:3]], RunSettings(6, 60))
            assert report.complete, report.output
            found = await box.exec(["find", "/tmp", "-name", "*.pyc", "-path", "*/repo/*"])
            made.append({Path(p).name.split(".")[0] for p in found.stdout.decode().split()})
    assert made == [set(), {"calc", "test_calc"}]


def test_a_tree_id_without_git_is_that_of_git(tmp_path: Path) -> None:
    """Order of names with and without a slash, folders of folders, modes, links, names beyond ASCII, ignored files."""
    root = tmp_path / "tree"
    for name in ("a.b", "a/x", "a-b/y", "a0", "deep/er/est/z", "é/ü", ".gitignore", "ignored.log", "a/x.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("*.log\n" + name)
    (root / "a/x").chmod(0o755)
    (root / "link").symlink_to("a/x")
    assert tree_id_of(read_files(root)) == tree_id(root)
    subprocess.run(["rm", "-r", root / "deep"], check=True)
    assert tree_id_of(read_files(root)) == tree_id(root)
