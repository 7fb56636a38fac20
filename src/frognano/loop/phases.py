"""Phases: what the run is doing now, for the person who waits, and how long each took, for the report."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from frognano.analysis.live import Phase
from frognano.loop.profile import between, read, shares, used_cpu

if TYPE_CHECKING:
    from frognano.loop.session import Session


@contextmanager
def phase(session: Session, name: str, total: int | None = None) -> Iterator[Phase]:
    """A phase within another takes what it used from that one, so that all of them add up to the whole. A phase that is
    entered again, in a resumed run too, adds to what it used."""
    before = read(session)
    session.inner_used.append({})
    try:
        with session.live.phase(name, total) as progress:
            yield progress
    finally:
        whole, inner = between(before, read(session)), session.inner_used.pop()
        if session.inner_used:
            outer = session.inner_used[-1]
            outer.update({k: outer.get(k, 0.0) + v for k, v in whole.items()})
    spent = shares(between({}, whole, inner))
    part = len(session.store.steps(f"phase/{name}#"))
    session.store.finish(f"phase/{name}#{part}", {"seconds": round(spent["wall"], 3), "profile": spent})
    _record_cost(session)


def _record_cost(session: Session) -> None:
    """What this process has used so far; a run that was resumed has one row a process. Written after every phase, so that
    a process that is killed leaves what it had used by then."""
    spent = {
        "wall_seconds": time.monotonic() - session.started,
        "cpu_seconds": used_cpu(session),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "generated_tokens": session.engine.generated,
        "threads": session.threads,
    }
    session.store.log("cost", session.part, spent)
