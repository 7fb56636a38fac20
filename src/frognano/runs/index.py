"""The index of a run: one SQLite file in WAL mode, every change one transaction, every trouble one sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from frognano.runs.files import StoreError, no_space

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE rollouts (
  task_id TEXT NOT NULL, rung INTEGER NOT NULL, policy TEXT NOT NULL, purpose TEXT NOT NULL, idx INTEGER NOT NULL,
  trajectory_id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, exit_reason TEXT NOT NULL,
  resolved INTEGER NOT NULL, counts INTEGER NOT NULL, generated_tokens INTEGER NOT NULL, turns INTEGER NOT NULL,
  valid_edit INTEGER NOT NULL, seconds REAL NOT NULL, fresh TEXT NOT NULL,
  PRIMARY KEY (purpose, policy, task_id, rung, idx));
CREATE INDEX rollouts_by_task ON rollouts (task_id);
CREATE TABLE steps (name TEXT PRIMARY KEY, value TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE grades (task_id TEXT NOT NULL, patch_sha256 TEXT NOT NULL, verdict BLOB NOT NULL,
  PRIMARY KEY (task_id, patch_sha256));
CREATE TABLE decisions (key TEXT PRIMARY KEY, task_id TEXT NOT NULL, action TEXT NOT NULL, detail TEXT NOT NULL,
  at REAL NOT NULL);
CREATE TABLE rejections (candidate_id TEXT PRIMARY KEY, reason TEXT NOT NULL, detail TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE metrics (series TEXT NOT NULL, step INTEGER NOT NULL, vals TEXT NOT NULL, PRIMARY KEY (series, step));
CREATE TABLE tasks (purpose TEXT NOT NULL, id TEXT NOT NULL, task BLOB NOT NULL, PRIMARY KEY (purpose, id));
"""


class Index:
    """A connection that threads share through one lock."""

    def __init__(self, path: Path, *, fresh: bool = False, read_only: bool = False) -> None:
        self.path = path
        self.lock = RLock()
        with self._errors():
            uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc' if fresh else 'rw'}"
            self._db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            with self._errors():
                if not read_only:
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing, see runs/store.py
                self._check_version(fresh)
        except StoreError:
            self._db.close()
            raise

    def _check_version(self, fresh: bool) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and fresh:
            self._db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, this FrogNano reads version {SCHEMA_VERSION}: "
                "use the FrogNano that wrote the run, or start another run folder"
            )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self.lock, self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self.lock, self._errors():
            return self._db.execute(sql, parameters).fetchall()

    def copy(self, file: Path) -> None:
        """Write a consistent copy to a new file, also while another process writes to this one."""
        with self.lock, self._errors():
            copied = sqlite3.connect(file)
            try:
                self._db.backup(copied)
            finally:
                copied.close()

    def close(self) -> None:
        with self.lock:
            self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "full" in text:
                raise no_space(self.path.parent) from error
            if "unable to open" in text:
                raise StoreError(f"cannot open {self.path}: there is no run index in this folder") from error
            if "malformed" in text or "not a database" in text:
                raise StoreError(
                    f"{self.path} is damaged ({text}): restore it from a copy, or start the run in another folder"
                ) from error
            raise StoreError(f"{self.path}: {text}") from error
