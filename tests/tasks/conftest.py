"""A tiny repository of our own, its real environment, and one task made of it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from frognano.records import Environment, Lineage, Statement, Task
from frognano.sandbox.base import Limits
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.sandbox.scratch import scratch_root
from frognano.tasks.assembly import assemble
from frognano.tasks.baseline import Baseline, measure_baseline
from frognano.tasks.environment import build_environment
from frognano.tasks.grading import Grader, GradingConfig
from frognano.tasks.repository import RepositoryConfig
from frognano.tasks.snapshot import Snapshot, fetch_snapshot
from frognano.tasks.trees import Trees
from frognano.tasks.validation import Candidate, Rejected, Validated, validate
from frognano.tasks.validation_config import ValidationConfig

CALC = '''\
"""Arithmetic."""


def clamp(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x


def double(x):
    return x + x


def unused(x):
    return -x
'''
BUG = CALC.replace("if x < low", "if x > low")

TESTS = """\
import os
import pathlib
import pytest
from calc import clamp, double

@pytest.mark.parametrize("x", [1, 2, 3])
def test_inside(x):
    assert clamp(x, 0, 5) == x

def test_below():
    assert clamp(-1, 0, 5) == 0

def test_above():
    assert clamp(9, 0, 5) == 5

class TestDouble:
    @pytest.mark.parametrize("text", ["a b", "a c", "x::y", "[z]", "é", "-", "a/b.py::q"])
    def test_text(self, text):
        assert double(text) == text * 2

    @pytest.mark.parametrize("n", range(12))
    def test_number(self, n):
        assert double(n) == 2 * n

def test_skipped():
    pytest.skip("never")

@pytest.mark.xfail
def test_expected_to_fail():
    assert double(1) == 3

@pytest.mark.xfail
def test_unexpectedly_passes():
    assert double(1) == 2

@pytest.fixture
def broken():
    raise RuntimeError("no set-up")

def test_set_up_fails(broken):
    pass

@pytest.fixture
def unclean():
    yield
    raise RuntimeError("no tear-down")

def test_tear_down_fails(unclean):
    pass

def test_fails_when_clean():
    assert double(1) == 5, "as ever"

def test_by_hash_seed():
    clamp(1, 0, 2)
    assert os.environ["PYTHONHASHSEED"] == "1"
"""
OTHER = "from calc import double\n\ndef test_other():\n    assert double(2) == 4\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def toy(root: Path, files: dict[str, str], **settings: object) -> RepositoryConfig:
    """A repository of these files in the folder ``root``."""
    config = {"name": "calc", "version": "1.0", "path": write(root, files), "tests": ("tests",), **settings}
    return RepositoryConfig.model_validate(config)


@dataclass(frozen=True)
class World:
    """What tests share, since it takes seconds to make."""

    cache: Path
    snapshot: Snapshot
    environment: Environment
    venv: Path
    baseline: Baseline
    validated: Validated
    task: Task
    trees: Trees


CONFIG = ValidationConfig(
    cpu_seconds=6, suite_cpu_seconds=6, wall_seconds=60, limits=Limits.model_validate({"memory_mb": 768, "pids": 64})
)


@pytest.fixture(scope="session")
def boxes() -> BubblewrapSandboxes:
    return BubblewrapSandboxes()


@pytest.fixture(scope="session")
def cache() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tasks-", dir=scratch_root()))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def world(cache: Path, boxes: BubblewrapSandboxes) -> World:
    return asyncio.run(make_world(cache, boxes))


async def make_world(cache: Path, boxes: BubblewrapSandboxes) -> World:
    files = {"calc.py": CALC, "tests/test_calc.py": TESTS, "tests/test_other.py": OTHER}
    snapshot = await fetch_snapshot(toy(cache / "calc", files), cache)
    environment, venv = await build_environment(snapshot, cache)
    baseline = await measure_baseline(snapshot, environment, venv, boxes, CONFIG, cache)
    candidate = Candidate("calc.py", BUG.encode(), baseline.covering("calc.py", 5, 9))
    validated = await validate(candidate, snapshot, environment, venv, boxes, baseline, CONFIG)
    assert not isinstance(validated, Rejected), validated
    task = await assemble(
        cache / "tasks",
        snapshot,
        environment,
        validated,
        statements=(Statement(rung=0, name="symptom", text="clamp is wrong below its range"),),
        rung=0,
        lineage=Lineage(generator="hand", file="calc.py", function="clamp"),
    )
    return World(
        cache, snapshot, environment, venv, baseline, validated, task, Trees(cache / "tasks", cache, cache / "s")
    )


@pytest.fixture
def grader(world: World, boxes: BubblewrapSandboxes) -> Grader:
    config = GradingConfig(cpu_seconds=6, wall_seconds=60, limits=CONFIG.limits)
    return Grader(boxes, world.trees, config)
