"""``frognano export``: the trained policy as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the model; must not exist.")],
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="VERSION", help="Such as i2u4. [default: the last selected one]")
    ] = None,
) -> None:
    """Write a run's policy as a transformers folder: for vLLM, llama.cpp's converter, or model.path of another recipe."""
    from frognano.loop.export import export_policy
    from frognano.runs.rows import BASE

    version = export_policy(run, folder, policy)
    print(f"{version}{' (untrained)' if version == BASE else ''}: {folder}")
