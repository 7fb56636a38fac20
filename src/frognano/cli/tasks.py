"""``frognano tasks``: what tasks a run holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Look at the tasks of a run.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look at the tasks of a run."""


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="One task's id, or how it begins.")] = None,
    purpose: Annotated[str | None, typer.Option(metavar="NAME", help="Only this set, e.g. heldout.")] = None,
    solution: Annotated[bool, typer.Option("--solution", help="With TASK: also the gold patch.")] = False,
) -> None:
    """List the tasks, or print one with its statements."""
    from frognano.errors import FrogNanoError
    from frognano.runs import RunStore

    with RunStore.open(run, read_only=True) as store:
        names = store.task_purposes()
        sets = {name: store.tasks(name) for name in names if purpose in (None, name)}
        rollouts = store.rollouts()
    if purpose is not None and not sets:
        raise FrogNanoError(f"{run} has no tasks for `{purpose}`; it has {', '.join(names) or 'none at all'}")
    if task is None:
        print("`solved` counts all rollouts of a task: measuring, screening, confirming and training.")
        for name, tasks in sets.items():
            print(f"{name}: {len(tasks)} {'candidates, tried or not' if name == 'train' else 'tasks'}")
            print(f"  {'task':<18} {'given':<6}  {'solved':>7}  {'repository':<16} {'mutation':<18} function")
            for t in tasks:
                mine = [r for r in rollouts if r.key.task_id == t.id and r.counts]
                solved = f"{sum(r.resolved for r in mine)}/{len(mine)}"
                operator = t.lineage.operator or t.lineage.generator
                print(
                    f"  {t.id:<18} rung {t.rung}  {solved:>7}  {t.origin.name:<16} {operator:<18} {t.lineage.function}"
                )
        return
    found = {t.id: t for tasks in sets.values() for t in tasks if t.id.startswith(task)}
    if len(found) != 1:
        many = f"{len(found)} tasks begin with `{task}`" if found else f"no task `{task}`"
        raise FrogNanoError(f"{many} in {run}: `frognano tasks show {run}` lists them")
    (one,) = found.values()
    print(f"{one.id} · {one.kind} · {one.origin.name} {one.origin.version} · {one.lineage.file}:{one.lineage.line}")
    print(f"made by {one.lineage.generator} {one.lineage.operator} in {one.lineage.function or 'the module'}")
    for statement in one.statements:
        print(f"\n── rung {statement.rung}, {statement.name}{' (given)' if statement.rung == one.rung else ''} ──")
        print(statement.text)
    print(f"\nfail to pass: {', '.join(one.f2p)}\npass to pass: {len(one.p2p)}, dropped {len(one.p2p_excluded)}")
    if solution:
        print(f"\n── gold ──\n{one.gold_patch.decode(errors='replace')}")
