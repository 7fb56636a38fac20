"""``frognano doctor``: what works on this machine, and the fix for what does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where runs will be kept.")] = Path("runs"),
) -> None:
    """Tell what works on this machine: sandbox, model, engines, and the fix for what does not."""
    from frognano.cli.checks import all_checks

    failed = 0
    for check in all_checks(out):
        print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<12} {check.detail}", flush=True)
        if not check.ok:
            failed += 1
            print(f"      {'':<12} fix: {check.remedy}")
    print(f"{failed} to fix" if failed else "all is well")
    sys.exit(1 if failed else 0)
