"""Fork: a new run that begins with what another one made and measured, so that both are compared on the same things."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from frognano.records import Task
from frognano.runs.config import write_config
from frognano.runs.files import TEMP_SUFFIX, StoreError
from frognano.runs.index import Index
from frognano.runs.store import FOLDERS, RunStore
from frognano.runs.trajectories import SUFFIX

FORK = "fork"
"""Step of a forked run: what tells it from the run that it came from and from other forks of that one."""


def fork_run(
    source: Path,
    target: Path,
    config: Mapping[str, Any],
    *,
    steps: Collection[str],
    tasks: Collection[str],
    rollouts: Collection[tuple[str, str]],
    renew: Callable[[Path, Task], object] = lambda folder, task: None,
) -> None:
    """Make `target` with the steps that begin like one of `steps`, the tasks of the purposes `tasks` and the rollouts of each
    (purpose, policy) of `rollouts`; grades and refusals of candidates come along, since they depend on no policy. `renew` gets
    the folder of tasks and each of them as it was made: its directory may tell what the other run's policies did with it.
    What is there already stays. The new folder appears whole or not at all."""
    if (target / "index.sqlite").exists():
        return
    building = target.with_name(f"{target.name}{TEMP_SUFFIX}")
    shutil.rmtree(building, ignore_errors=True)
    for name in FOLDERS:
        (building / name).mkdir(parents=True)
    with RunStore.open(source, read_only=True) as held:
        kept = [r.trajectory_id for purpose, policy in rollouts for r in held.rollouts(purpose=purpose, policy=policy)]
        known = {t.id: t for purpose in tasks for t in held.tasks(purpose)}
        held.copy_index(building / "index.sqlite")
    _thin(building / "index.sqlite", steps, tasks, set(kept))
    for trajectory in kept:
        shutil.copy2(source / "trajectories" / f"{trajectory}{SUFFIX}", building / "trajectories")
    for task in known.values():
        shutil.copytree(source / "tasks" / task.id, building / "tasks" / task.id, symlinks=True)
        renew(building / "tasks", task)
    write_config(building, config)
    if target.exists():
        raise StoreError(f"{target} exists but holds no run: name another folder")
    building.rename(target)


def _thin(file: Path, steps: Collection[str], tasks: Collection[str], trajectories: Collection[str]) -> None:
    index = Index(file)
    try:
        with index.transaction() as db:
            names = [name for (name,) in db.execute("SELECT name FROM steps") if not name.startswith(tuple(steps))]
            db.executemany("DELETE FROM steps WHERE name=?", [(name,) for name in names])
            purposes = [p for (p,) in db.execute("SELECT DISTINCT purpose FROM tasks") if p not in tasks]
            db.executemany("DELETE FROM tasks WHERE purpose=?", [(p,) for p in purposes])
            gone = [t for (t,) in db.execute("SELECT trajectory_id FROM rollouts") if t not in trajectories]
            db.executemany("DELETE FROM rollouts WHERE trajectory_id=?", [(t,) for t in gone])
            for table in ("decisions", "metrics"):
                db.execute(f"DELETE FROM {table}")
            db.execute("INSERT INTO steps VALUES (?,?,?)", (FORK, json.dumps(os.urandom(8).hex()), time.time()))
    finally:
        index.close()
