"""Phases: what the run is doing now, for the person who waits, and how long each took, for the report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from frognano.analysis.live import Phase

if TYPE_CHECKING:
    from frognano.loop.session import Session


@contextmanager
def phase(session: Session, name: str, total: int | None = None) -> Iterator[Phase]:
    """Phases do not overlap. A phase that is entered again, in a resumed run too, adds to its seconds."""
    started = time.monotonic()
    with session.live.phase(name, total) as progress:
        yield progress
    part = len(session.store.steps(f"phase/{name}#"))
    session.store.finish(f"phase/{name}#{part}", round(time.monotonic() - started, 3))
