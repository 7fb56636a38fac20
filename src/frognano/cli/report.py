"""``frognano report``: the run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write. [default: RUN/report.html]")
    ] = None,
) -> None:
    """Write a run's report as one self-contained HTML file, also while the run is going on."""
    from frognano.analysis.report import write_report
    from frognano.runs import RunStore

    with RunStore.open(run, read_only=True) as store:
        print(write_report(store, out))
