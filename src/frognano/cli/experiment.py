"""``frognano experiment``: arms and seeds of one recipe, and the tables that compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("experiment")(experiment)


def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file, e.g. recipes/pocket-experiment.toml.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The folder of all its runs. [default: runs/NAME]")
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Run nothing: only write the tables of what is there.")
    ] = False,
) -> None:
    """Run a recipe in several arms over several seeds, and compare them. What was stopped goes on from there."""
    from frognano.errors import ConfigError
    from frognano.loop.arms import load_experiment
    from frognano.runs.recipe import read_toml

    if {"run", "repositories"} <= read_toml(file).keys():
        raise ConfigError(f"{file} is a recipe, not an experiment: frognano loop {file}")
    config = load_experiment(file)
    from frognano.cli.run import _share_cores

    _share_cores()
    from frognano.analysis.experiment import write_summary
    from frognano.loop.experiment import Runner, is_done, jobs_of

    root = (out or Path("runs") / config.name).absolute()
    if not summary:
        Runner(file.absolute(), config, root).run()
    jobs = jobs_of(config, root)
    unfinished = {job.name for job in jobs if not is_done(job)}
    print(write_summary(root, {job.name: job.folder for job in jobs}, str(file), unfinished))
