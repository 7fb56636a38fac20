"""The files of a run's rollouts: ``trajectories/<id>.json.gz``, each a trajectory with its verdict."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection
from pathlib import Path

from frognano.records import Trajectory, Verdict
from frognano.records.base import Record
from frognano.runs.files import StoreError, write_atomically

SUFFIX = ".json.gz"


class Rollout(Record):
    trajectory: Trajectory
    verdict: Verdict


class TrajectoryFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, trajectory_id: str) -> Path:
        if not trajectory_id or "/" in trajectory_id or trajectory_id.startswith("."):
            raise ValueError(f"trajectory id {trajectory_id!r} is not a file name")
        return self.folder / f"{trajectory_id}{SUFFIX}"

    def read(self, trajectory_id: str) -> Rollout:
        file = self.file(trajectory_id)
        try:
            return Rollout.model_validate_json(gzip.decompress(file.read_bytes()))
        except FileNotFoundError as error:
            raise StoreError(f"{file} is missing: no such trajectory in this run") from error
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise StoreError(f"{file} is damaged: {str(error).splitlines()[0]}") from error

    def write(self, trajectory_id: str, packed: bytes) -> None:
        write_atomically(self.file(trajectory_id), packed)

    def sweep(self, known: Collection[str]) -> None:
        """Remove what has no row: a kill came before it was written."""
        for file in self.folder.iterdir():
            if file.name.removesuffix(SUFFIX) not in known:
                file.unlink()


def pack(trajectory: Trajectory, verdict: Verdict) -> bytes:
    return gzip.compress(
        Rollout(trajectory=trajectory, verdict=verdict).model_dump_json().encode(), compresslevel=4, mtime=0
    )
