"""Metrics: numbers by series and step, in the index and beside it as ``metrics.jsonl`` for other tools."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from frognano.runs.files import disk_errors, write_atomically
from frognano.runs.index import Index


class Metrics:
    """One row a (series, step), the last one wins; the file follows the index."""

    def __init__(self, file: Path, index: Index) -> None:
        self.file, self._index = file, index

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        text = json.dumps(finite, sort_keys=True, ensure_ascii=False)
        with self._index.lock:
            with self._index.transaction() as db:
                known = "SELECT 1 FROM metrics WHERE series=? AND step=?"
                again = db.execute(known, (series, step)).fetchone() is not None
                db.execute(
                    "INSERT INTO metrics VALUES (?,?,?) ON CONFLICT DO UPDATE SET vals=excluded.vals",
                    (series, step, text),
                )
            if again:
                self.sync()
            else:
                with disk_errors(self.file.parent), open(self.file, "ab") as file:
                    file.write(_line(series, step, text))

    def of(self, series: str) -> list[tuple[int, dict[str, float]]]:
        """(step, values) in rising step. What was not finite comes back as NaN."""
        rows = self._index.query("SELECT step, vals FROM metrics WHERE series=? ORDER BY step", (series,))
        return [(step, _read(text)) for step, text in rows]

    def all(self) -> list[tuple[str, int, dict[str, float]]]:
        rows = self._index.query("SELECT series, step, vals FROM metrics ORDER BY rowid")
        return [(series, step, _read(text)) for series, step, text in rows]

    def sync(self) -> None:
        """Make the file what the index says: a kill may have come between the two."""
        rows = self._index.query("SELECT series, step, vals FROM metrics ORDER BY rowid")
        wanted = b"".join(_line(*row) for row in rows)
        if (self.file.read_bytes() if self.file.exists() else b"") != wanted:
            write_atomically(self.file, wanted)


def _read(text: str) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in json.loads(text).items()}


def _line(series: str, step: int, text: str) -> bytes:
    return f'{{"series": {json.dumps(series)}, "step": {step}, "values": {text}}}\n'.encode()
