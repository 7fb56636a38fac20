"""The ``frognano`` command: puts the commands together and turns expected errors into one line and an exit code.

Exit codes: 0 done, 1 something failed, 2 wrong usage or config, 130 interrupted. FROGNANO_DEBUG=1 shows tracebacks.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

import typer

from frognano import __version__
from frognano.cli import doctor, experiment, export, report, run, tasks
from frognano.errors import ConfigError, FrogNanoError, is_out_of_memory

INTERRUPTED = 130

app = typer.Typer(
    name="frognano",
    help="Turn a small local language model into a better coding agent, without a teacher.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
run.register(app)
report.register(app)
export.register(app)
experiment.register(app)
doctor.register(app)
app.add_typer(tasks.app, name="tasks")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Leaves by SystemExit."""
    debug = os.environ.get("FROGNANO_DEBUG", "") not in ("", "0")
    signal.signal(signal.SIGTERM, _like_interrupted)
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="frognano", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:  # `frognano tasks show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        known = expected(error)
        if known is None or debug:
            raise
        print(known if type(error).__name__ == "NoArgsIsHelpError" else f"error: {known}", file=sys.stderr)
        sys.exit(known.exit_code)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code by itself
        print("\ninterrupted: the same command goes on from here", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _like_interrupted(number: int, frame: FrameType | None) -> None:
    """`kill`, `docker stop` and a cluster's scheduler end a command as Ctrl-C does: boxes are removed and it says how to go
    on. Where nohup has Ctrl-C ignored, nobody else would raise."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def expected(error: BaseException) -> FrogNanoError | None:
    """The error that people should read, or None for one that nobody foresaw. Looks into groups of concurrent tasks."""
    if isinstance(error, FrogNanoError):
        return error
    if isinstance(error, Exception) and is_out_of_memory(error):
        said = next(iter(str(error).strip().splitlines()), "")
        return FrogNanoError(
            f"out of memory{f' ({said[:200]})' if said else ''}: close other programs or lift the limit, and run the same "
            "command again; nothing is lost. A run needs less with fewer model.trainable_layers, in another folder (--out)"
        )
    if isinstance(error, BaseExceptionGroup):
        found = [expected(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    if isinstance(error, Exception) and type(error).__module__.startswith("frognano."):
        return FrogNanoError(str(error))  # every exception class of our own says the thing and the remedy
    if hasattr(error, "format_message"):  # typer keeps the base class of its usage errors to itself
        return ConfigError(error.format_message())
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "transformers", "libcst", "coverage", "uv"):
        return FrogNanoError(f"{error.name} is not installed: run `make setup`, or pip install 'frognano[tasks,train]'")
    if isinstance(error, shutil.Error) and "No space left" in str(error):  # copies of trees tell of all files at once
        error = OSError(errno.ENOSPC, "", str(error.args[0][0][1]) if isinstance(error.args[0], list) else None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or "the run or temporary folder"
        return FrogNanoError(f"no space left in {where}: free some and run the same command again; nothing is lost")
    if type(error).__name__ == "TimeoutExpired":  # of subprocess: pip, uv or git on a slow network
        return FrogNanoError(f"{str(error)[:300]}: check the network, then run the same command again")
    if isinstance(error, OSError) and error.strerror and error.filename:
        return FrogNanoError(f"{error.filename}: {error.strerror}")
    return None
