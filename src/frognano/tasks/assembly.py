"""Assembly: a validated bug and its statements become a task with a directory of its own."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from frognano.records import Environment, Lineage, Statement, Task
from frognano.tasks.harbor import write_task
from frognano.tasks.snapshot import Snapshot
from frognano.tasks.trees import plant
from frognano.tasks.validation import Validated


async def assemble(
    root: Path,
    snapshot: Snapshot,
    environment: Environment,
    validated: Validated,
    *,
    statements: tuple[Statement, ...],
    rung: int,
    lineage: Lineage,
    task_id: str = "",
) -> Task:
    """Write ``root/<id>`` and return the task. The id is random unless given: it must mean nothing to a solver."""
    return await asyncio.to_thread(
        _assemble, root, snapshot, environment, validated, statements, rung, lineage, task_id or secrets.token_hex(6)
    )


def _assemble(
    root: Path,
    snapshot: Snapshot,
    environment: Environment,
    validated: Validated,
    statements: tuple[Statement, ...],
    rung: int,
    lineage: Lineage,
    task_id: str,
) -> Task:
    candidate = validated.candidate
    tree, base = plant(snapshot, {candidate.file: candidate.content}, validated.hidden_files)
    task = Task(
        id=task_id,
        origin=snapshot.origin,
        environment=environment,
        base=base,
        statements=statements,
        rung=rung,
        gold_patch=validated.gold_patch,
        f2p=validated.f2p,
        p2p=validated.p2p,
        p2p_excluded=validated.p2p_excluded,
        hidden_files=validated.hidden_files,
        lineage=lineage,
        validation=validated.validation,
    )
    hidden = {name: (snapshot.root / name).read_bytes() for name in validated.hidden_files}
    write_task(root, task, tree, hidden)
    return task
