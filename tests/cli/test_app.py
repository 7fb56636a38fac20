"""What people type and read: one line for what went wrong, exit codes, and a start that is not slow."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from frognano.cli.app import main
from frognano.errors import ConfigError, FrogNanoError
from frognano.runs import RunStore
from runs import made

POCKET = Path(__file__).parents[2] / "recipes" / "pocket.toml"


@pytest.fixture
def frognano(capsys, monkeypatch):
    monkeypatch.delenv("FROGNANO_DEBUG", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.fixture
def loop_commands(monkeypatch):
    """frognano.loop.commands, with functions that only record what they were given."""
    calls: list[tuple[object, ...]] = []
    module = types.ModuleType("frognano.loop.commands")
    for name in ("run_loop", "run_pilot", "run_train", "run_eval"):
        setattr(module, name, lambda *given, name=name: calls.append((name, *given)))
    monkeypatch.setitem(sys.modules, "frognano.loop.commands", module)
    return module, calls


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunStore.create(tmp_path / "run", {"seed": 1}) as store:
        store.put_task(made.task("task0001"), "heldout")
        store.put_task(made.task("tusk0002"), "iter1")
        store.put_rollout(made.key(), made.trajectory("t1"), made.verdict())
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["loop", "pilot", "train", "eval"])
def test_recipe_out_and_overrides_reach_the_command(frognano, loop_commands, command: str):
    code, _, err = frognano(
        command, POCKET, "--dppo.delta", "1e-5", "--out", "o", "--run.seed=3", "--sampling.temperature", "0.7"
    )
    assert (code, err) == (0, "")
    overrides = {"dppo.delta": "1e-5", "run.seed": "3", "sampling.temperature": "0.7"}
    assert loop_commands[1] == [(f"run_{command}", POCKET, Path("o"), overrides)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loop", POCKET, "--dppo.detla", "0.2"], "did you mean `dppo.delta`"),
        (["pilot", POCKET, "--eval.rungs", "[9]"], "`eval.rungs.0` = 9"),
        (["pilot", POCKET, "--eval.rungs", "0,3"], "a list is needed, such as [1, 2]"),
        (["pilot", POCKET, "--repositories.train", "[]"], "name at least 1"),
        (["pilot", POCKET, "--target", "3"], "did you mean `pilot.target` or"),
        (["eval", POCKET.with_name("pocket-experiment.toml")], "is an experiment, not a recipe: frognano experiment"),
        (["experiment", POCKET], "is a recipe, not an experiment: frognano loop"),
        (["export", "nowhere", "model"], "nowhere is not a run folder"),
    ],
)
def test_a_wrong_argument_is_told_after_seconds_of_importing_torch(arguments: list[object], said: str):
    code = f"import sys; from frognano.cli.app import main\ntry: main({[str(a) for a in arguments]})\n"
    code += "finally: sys.exit(9) if 'torch' in sys.modules else None"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == (1 if arguments[0] == "export" else 2), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loop"], "Missing argument 'RECIPE'"),
        (["loop", "--rl.lr", "1", "r.toml"], "give the recipe first"),
        (["loop", "r.toml", "--rl.lr"], "--rl.lr needs a value"),
        (["loop", "r.toml", "stray"], "`stray` is no option"),
        (["lop"], "No such command 'lop'"),
        (["report", "--nope"], "No such option"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_two(frognano, arguments, said: str):
    code, _, err = frognano(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert said in err
    assert len(err.splitlines()) <= 2


def raising(error: BaseException):
    def command(*_: object) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FrogNanoError("the pond is dry: add water"), 1, "error: the pond is dry: add water\n"),
        (ConfigError("r.toml: unknown key `x`"), 2, "error: r.toml: unknown key `x`\n"),
        (ExceptionGroup("g", [FrogNanoError("one"), FrogNanoError("two")]), 1, "error: one\n"),
        (OSError(28, "No space left on device", "/tmp/x"), 1, "error: no space left in /tmp/x"),
        (PermissionError(13, "Permission denied", "/x"), 1, "error: /x: Permission denied\n"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 1, "error: torch is not installed: run `make"),
        (KeyboardInterrupt(), 130, "\ninterrupted"),
    ],
)
def test_expected_errors_have_no_traceback(frognano, loop_commands, error, code: int, said: str):
    loop_commands[0].run_loop = raising(error)
    got, _, err = frognano("loop", POCKET)
    assert got == code
    assert err.startswith(said)


def test_errors_of_every_room_are_expected(frognano, loop_commands):
    from frognano.sandbox.base import SandboxError

    loop_commands[0].run_loop = raising(SandboxError("bwrap is missing: install it"))
    assert frognano("loop", POCKET)[::2] == (1, "error: bwrap is missing: install it\n")


def test_a_bug_is_not_dressed_up_as_an_expected_error(loop_commands, monkeypatch):
    loop_commands[0].run_loop = raising(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main(["loop", str(POCKET)])
    loop_commands[0].run_loop = raising(FrogNanoError("dry"))
    monkeypatch.setenv("FROGNANO_DEBUG", "1")
    with pytest.raises(FrogNanoError):
        main(["loop", str(POCKET)])


def test_tasks_are_listed_and_shown_but_gold_only_on_request(frognano, run: Path):
    code, out, _ = frognano("tasks", "show", run)
    assert code == 0
    assert "heldout: 1 tasks" in out
    assert "1/1" in out
    _, out, _ = frognano("tasks", "show", run, "task")
    assert "rung 1, line (given)" in out
    assert "+++ b" not in out
    assert "+++ b" in frognano("tasks", "show", run, "task", "--solution")[1]
    assert frognano("tasks", "show", run, "t")[::2] == (
        1,
        f"error: 2 tasks begin with `t` in {run}: `frognano tasks show {run}` lists them\n",
    )
    assert "no tasks for `nope`" in frognano("tasks", "show", run, "--purpose", "nope")[2]


def test_a_folder_that_is_no_run(frognano, tmp_path: Path):
    assert frognano("tasks", "show", tmp_path)[::2] == (
        1,
        f"error: {tmp_path} is not a run folder: it has no index.sqlite\n",
    )


def test_doctor_gives_a_fix_for_everything_that_fails(frognano, tmp_path: Path):
    code, out, _ = frognano("doctor", "--out", tmp_path)
    lines = out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith(("ok", "FAIL"))][:3] == ["python", "git", "uv"]
    assert out.count("FAIL") == out.count("fix: ") == (0 if code == 0 else int(lines[-1].split()[0]))
    assert "disk" in out


def test_version_and_help(frognano):
    assert frognano("--version")[:2] == (0, "0.1.0\n")
    assert frognano("--help")[0] == 0
    code, _, err = frognano()
    assert code == 2
    assert err.startswith("Usage: frognano")


LIGHT = """
import sys
sys.argv = ["frognano", *{arguments!r}]
import frognano
from frognano.cli.app import main
try:
    main()
except SystemExit:
    pass
heavy = sorted({{m.split(".")[0] for m in sys.modules}} & {{"torch", "transformers", "numpy", "rich"}})
print("heavy:", heavy, file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["loop", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]):
    done = subprocess.run([sys.executable, "-c", LIGHT.format(arguments=arguments)], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "heavy: []"
