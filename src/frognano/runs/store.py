"""The run store: everything a run did, so that kill -9 at any moment loses nothing and nothing is done twice.

A run folder holds ``index.sqlite``, ``trajectories/<id>.json.gz`` (one rollout each: trajectory and verdict),
``tasks/`` (Harbor directories), ``checkpoints/``, ``recipe.json`` (the resolved config), ``metrics.jsonl`` and
``report.html``.

Two rules carry the promise. A file is whole before its row exists, so a row never names a missing file; a file without
its row is an orphan and is swept away at the next opening. And every change is keyed by what it is (task, rung, policy,
purpose, index), so that doing it again is refused or ignored. A committed WAL frame is in the kernel's hands and
survives the death of the process without an fsync; only a power cut may take back the last transactions, as a whole.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Self

from frognano.records import ExitReason, Status, Task, Trajectory, Verdict
from frognano.runs.config import Fill, go_on_with, read_config, write_config
from frognano.runs.files import TEMP_SUFFIX, StoreError, disk_errors
from frognano.runs.index import Index
from frognano.runs.lock import RunLock
from frognano.runs.metrics import Metrics
from frognano.runs.rows import Decision, Rejection, RolloutKey, RolloutRow
from frognano.runs.trajectories import SUFFIX, TrajectoryFiles, pack

FOLDERS = ("trajectories", "tasks", "checkpoints")
_COLUMNS = (
    "task_id, rung, policy, purpose, idx, trajectory_id, status, exit_reason, resolved, counts, generated_tokens, "
    "turns, valid_edit, seconds, fresh"
)


class AlreadyRecorded(StoreError):
    """This rollout is in the store: whoever asked for it again has lost count."""


class RunStore:
    """Synchronous, safe to share between threads. One writing process a run; readers are free (``read_only``)."""

    def __init__(self, path: Path, index: Index, lock: RunLock | None) -> None:
        self.path = path
        self._index = index
        self._lock = lock
        self._files = TrajectoryFiles(path / "trajectories")
        self._metrics = Metrics(path / "metrics.jsonl", index)
        self.watcher: Callable[[str, int, Mapping[str, float]], None] | None = None
        """Told of each row that is logged, after it is written; it must not raise."""

    # -- opening ------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, path: Path, config: Mapping[str, Any], fill: Fill | None = None, free: Collection[str] = ()
    ) -> Self:
        """Start the run, or come back to it: an existing run must have been made with the same resolved config, where keys
        that came later count as `fill` sets them. Sections of `free` may be others: the run takes them over."""
        if (path / "index.sqlite").exists():
            return cls.open(path, config, fill=fill, free=free)
        with disk_errors(path):
            for name in FOLDERS:
                (path / name).mkdir(parents=True, exist_ok=True)
        lock = RunLock(path / "lock")
        try:
            if any((path / "trajectories").glob(f"*{SUFFIX}")):
                raise StoreError(f"{path} holds trajectories but no index.sqlite: restore it, or use another folder")
            write_config(path, config)
            # A kill inside the next line leaves an index without schema; so it is made elsewhere and renamed.
            building = path / f"index.sqlite{TEMP_SUFFIX}"
            for leftover in path.glob(f"{building.name}*"):
                leftover.unlink()
            Index(building, fresh=True).close()
            building.rename(path / "index.sqlite")
            return cls(path, Index(path / "index.sqlite"), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        config: Mapping[str, Any] | None = None,
        *,
        read_only: bool = False,
        fill: Fill | None = None,
        free: Collection[str] = (),
    ) -> Self:
        """Open a run for writing (alone), or ``read_only`` beside its writer."""
        if not (path / "index.sqlite").is_file():
            raise StoreError(f"{path} is not a run folder: it has no index.sqlite")
        lock = None if read_only else RunLock(path / "lock")
        try:
            if config is not None:
                go_on_with(path, config, fill, free)
            store = cls(path, Index(path / "index.sqlite", read_only=read_only), lock)
        except BaseException:
            if lock:
                lock.release()
            raise
        if not read_only:
            try:
                store._files.sweep({row[0] for row in store._index.query("SELECT trajectory_id FROM rollouts")})
                store._metrics.sync()
            except BaseException:
                store.close()
                raise
        return store

    def close(self) -> None:
        self._index.close()
        if self._lock:
            self._lock.release()

    def copy_index(self, file: Path) -> None:
        self._index.copy(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> dict[str, Any]:
        return read_config(self.path)

    # -- rollouts -----------------------------------------------------------------------------------------------

    def put_rollout(
        self, key: RolloutKey, trajectory: Trajectory, verdict: Verdict, fresh: Mapping[str, Any] | None = None
    ) -> None:
        packed = pack(trajectory, verdict)
        values = (
            *(key.task_id, key.rung, key.policy, key.purpose, key.index),
            *(trajectory.id, verdict.status, trajectory.exit_reason, verdict.resolved, verdict.counts),
            *(trajectory.generated_tokens, len(trajectory.turns), trajectory.valid_edit, trajectory.seconds),
            _dump(fresh or {}),
        )
        with self._index.transaction() as db:
            for known in ("task_id=? AND rung=? AND policy=? AND purpose=? AND idx=?", "trajectory_id=?"):
                match = values[:5] if known.startswith("task") else (trajectory.id,)
                if db.execute(f"SELECT 1 FROM rollouts WHERE {known}", match).fetchone():
                    raise AlreadyRecorded(f"{self.path}: {key} (trajectory {trajectory.id}) is already recorded")
            self._files.write(trajectory.id, packed)
            db.execute(f"INSERT INTO rollouts ({_COLUMNS}) VALUES ({','.join('?' * len(values))})", values)

    def get(self, key: RolloutKey) -> RolloutRow | None:
        rows = self._index.query(
            f"SELECT {_COLUMNS} FROM rollouts WHERE task_id=? AND rung=? AND policy=? AND purpose=? AND idx=?",
            (key.task_id, key.rung, key.policy, key.purpose, key.index),
        )
        return _row(rows[0]) if rows else None

    def rollouts(
        self, *, purpose: str | None = None, policy: str | None = None, task_id: str | None = None
    ) -> list[RolloutRow]:
        """Rows in the order they were recorded. ``purpose`` is exact, or a prefix when it ends in ``/``."""
        where, values = ["1"], list[str]()
        for column, value in (("purpose", purpose), ("policy", policy), ("task_id", task_id)):
            if value is not None:
                prefix = column == "purpose" and value.endswith("/")
                where.append(f"substr({column}, 1, length(?)) = ?" if prefix else f"{column} = ?")
                values += [value, value] if prefix else [value]
        sql = f"SELECT {_COLUMNS} FROM rollouts WHERE {' AND '.join(where)} ORDER BY rowid"
        return [_row(row) for row in self._index.query(sql, tuple(values))]

    def trajectory(self, trajectory_id: str) -> Trajectory:
        return self._files.read(trajectory_id).trajectory

    def verdict(self, trajectory_id: str) -> Verdict:
        return self._files.read(trajectory_id).verdict

    # -- the journal of resumable phases ------------------------------------------------------------------------

    def done(self, name: str) -> Any | None:
        """The value a step was finished with, or None if it was not."""
        rows = self._index.query("SELECT value FROM steps WHERE name=?", (name,))
        return json.loads(rows[0][0]) if rows else None

    def finish(self, name: str, value: Any = True) -> None:
        """Idempotent. A second finish with another value means that something ran twice, and raises."""
        if value is None:
            raise ValueError(f"step {name}: None cannot be told from a step that is not done")
        text = _dump(value)
        with self._index.transaction() as db:
            held = db.execute("SELECT value FROM steps WHERE name=?", (name,)).fetchone()
            if held is None:
                db.execute("INSERT INTO steps VALUES (?,?,?)", (name, text, time.time()))
            elif held[0] != text:
                raise StoreError(f"{self.path}: step {name} was finished with {held[0]:.120}, not with {text:.120}")

    def steps(self, prefix: str = "") -> dict[str, Any]:
        """Finished steps in order, with their values."""
        rows = self._index.query(
            "SELECT name, value FROM steps WHERE substr(name, 1, length(?)) = ? ORDER BY rowid", (prefix, prefix)
        )
        return {name: json.loads(value) for name, value in rows}

    # -- grades -------------------------------------------------------------------------------------------------

    def grade(self, task_id: str, patch_sha256: str) -> Verdict | None:
        sql = "SELECT verdict FROM grades WHERE task_id=? AND patch_sha256=?"
        rows = self._index.query(sql, (task_id, patch_sha256))
        return Verdict.model_validate_json(zlib.decompress(rows[0][0])) if rows else None

    def put_grade(self, task_id: str, patch_sha256: str, verdict: Verdict) -> None:
        if not verdict.counts:
            raise ValueError(f"task {task_id}: an infrastructure error is no grade to keep")
        packed = zlib.compress(verdict.model_dump_json().encode())
        with self._index.transaction() as db:
            db.execute("INSERT OR IGNORE INTO grades VALUES (?,?,?)", (task_id, patch_sha256, packed))

    # -- the pilot's ledger -------------------------------------------------------------------------------------

    def reject(self, candidate_id: str, reason: str, detail: Any = "") -> None:
        """The first reason stands."""
        with self._index.transaction() as db:
            row = (candidate_id, reason, _dump(detail), time.time())
            db.execute("INSERT OR IGNORE INTO rejections VALUES (?,?,?,?)", row)

    def decide(self, key: str, task_id: str, action: str, detail: Any = "") -> None:
        """Idempotent by key; the same key with another task or action raises."""
        with self._index.transaction() as db:
            held = db.execute("SELECT task_id, action FROM decisions WHERE key=?", (key,)).fetchone()
            if held is None:
                row = (key, task_id, action, _dump(detail), time.time())
                db.execute("INSERT INTO decisions VALUES (?,?,?,?,?)", row)
            elif held != (task_id, action):
                raise StoreError(f"{self.path}: decision {key} is {held[1]} of {held[0]}, not {action} of {task_id}")

    def decisions(self) -> list[Decision]:
        rows = self._index.query("SELECT key, task_id, action, detail, at FROM decisions ORDER BY rowid")
        return [Decision(key, task, action, json.loads(detail), at) for key, task, action, detail, at in rows]

    def rejections(self) -> list[Rejection]:
        rows = self._index.query("SELECT candidate_id, reason, detail, at FROM rejections ORDER BY rowid")
        return [Rejection(candidate, reason, json.loads(detail), at) for candidate, reason, detail, at in rows]

    # -- tasks --------------------------------------------------------------------------------------------------

    def put_task(self, task: Task, purpose: str) -> None:
        """Record or renew a task; its place in the order stays."""
        packed = zlib.compress(task.model_dump_json().encode())
        with self._index.transaction() as db:
            sql = "INSERT INTO tasks VALUES (?,?,?) ON CONFLICT DO UPDATE SET task=excluded.task"
            db.execute(sql, (purpose, task.id, packed))

    def tasks(self, purpose: str | None = None) -> list[Task]:
        sql = "SELECT task FROM tasks" + (" WHERE purpose=?" if purpose is not None else "") + " ORDER BY rowid"
        rows = self._index.query(sql, () if purpose is None else (purpose,))
        return [Task.model_validate_json(zlib.decompress(row[0])) for row in rows]

    def task_purposes(self) -> list[str]:
        return [row[0] for row in self._index.query("SELECT purpose FROM tasks GROUP BY purpose ORDER BY min(rowid)")]

    # -- metrics ------------------------------------------------------------------------------------------------

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """One row a (series, step), the last one wins; ``metrics.jsonl`` follows the index."""
        self._metrics.log(series, step, values)
        if self.watcher:
            self.watcher(series, step, values)

    def metrics(self, series: str) -> list[tuple[int, dict[str, float]]]:
        """(step, values) in rising step. What was not finite comes back as NaN."""
        return self._metrics.of(series)

    def all_metrics(self) -> list[tuple[str, int, dict[str, float]]]:
        """(series, step, values) of everything logged, in the order of its first writing."""
        return self._metrics.all()


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _row(row: tuple[Any, ...]) -> RolloutRow:
    status, exit_reason, resolved, counts, tokens, turns, valid_edit, seconds, fresh = row[6:]
    return RolloutRow(
        key=RolloutKey(*row[:5]),
        trajectory_id=row[5],
        status=Status(status),
        exit_reason=ExitReason(exit_reason),
        resolved=bool(resolved),
        counts=bool(counts),
        generated_tokens=tokens,
        turns=turns,
        valid_edit=bool(valid_edit),
        seconds=seconds,
        fresh=json.loads(fresh),
    )
