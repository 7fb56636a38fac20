"""Phases: what the run is doing now, for the person who waits, and how long each took, for the report."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from frognano.analysis.live import Phase

if TYPE_CHECKING:
    from frognano.loop.session import Session


@contextmanager
def phase(session: Session, name: str, total: int | None = None) -> Iterator[Phase]:
    """A phase within another takes its seconds from that one, so that all of them add up to the whole. A phase that is
    entered again, in a resumed run too, adds to its seconds."""
    started = time.monotonic()
    session.inner_seconds.append(0.0)
    try:
        with session.live.phase(name, total) as progress:
            yield progress
    finally:
        took, inner = time.monotonic() - started, session.inner_seconds.pop()
        if session.inner_seconds:
            session.inner_seconds[-1] += took
    part = len(session.store.steps(f"phase/{name}#"))
    session.store.finish(f"phase/{name}#{part}", round(took - inner, 3))
    _record_cost(session)


def _record_cost(session: Session) -> None:
    """What this process has used so far; a run that was resumed has one row a process. Written after every phase, so that
    a process that is killed leaves what it had used by then."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    spent = {
        "wall_seconds": time.monotonic() - session.started,
        "cpu_seconds": sum(u.ru_utime + u.ru_stime for u in used),
        "peak_gb": used[0].ru_maxrss / 1e6,
        "generated_tokens": session.engine.generated,
        "threads": session.threads,
    }
    session.store.log("cost", session.part, spent)
