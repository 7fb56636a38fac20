"""Profile: which stage of the run used the cores, in wall and CPU seconds.

    own = sampling + tools + grading + validation + forward + backward + optimizer + publication + other
    cores · wall = own + programs + idle

CPU seconds add up, wall seconds do not: stages overlap, and a stage's wall is the time in which at least one piece of it was at
work. `other` is the rest of this process: event loop, tokenizing, packing, store, checkpoints. `programs` are other programs of
the machine, from /proc/stat; where that tells of other cores than ours they count as idle. A box is booked when it ends.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from frognano.analysis.profile import STAGES

if TYPE_CHECKING:
    from frognano.loop.session import Session

Used = dict[str, float]
"""`wall` of the whole, `cores`, and of each stage `<stage>_wall` and `<stage>_cpu`, in seconds."""


def own_cpu() -> float:
    """CPU seconds of this process and of all its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def used_cpu(session: Session) -> float:
    """`own_cpu`, and that of a sampler which is a server of its own."""
    return own_cpu() + session.engine.outside_cpu


def machine_cpu(cores: int, file: Path = Path("/proc/stat")) -> float | None:
    """CPU seconds that the cores of this machine were busy since it started, or None where ours are others."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    if sum(line.startswith("cpu") for line in lines) - 1 != cores:
        return None
    user, nice, system, _idle, _wait, *rest = map(int, lines[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def read(session: Session) -> Used:
    """What was used since the process started; two of them make a part of it, see `between`."""
    watches = {"sampling": session.engine.watch, **session.sandboxes.watches, **session.trainer.watches}
    cores = len(os.sched_getaffinity(0))
    used = {"wall": time.monotonic(), "cores": float(cores), "own": used_cpu(session)}
    used["machine"] = machine_cpu(cores) or 0.0
    for stage, watch in watches.items():
        used[f"{stage}_wall"], used[f"{stage}_cpu"] = watch.wall, watch.cpu
    return used


def between(before: Used, after: Used, inner: Mapping[str, float] | None = None) -> Used:
    """What was used in between, less `inner`: a sum of what is told elsewhere."""
    less = inner or {}
    spent = {k: v - before.get(k, 0.0) - less.get(k, 0.0) for k, v in after.items()}
    return {**spent, "cores": after["cores"]}


def shares(spent: Used) -> Used:
    """The numbers that are recorded: every stage of the equation above, in seconds."""
    capacity, own = spent["cores"] * spent["wall"], spent["own"]
    measured = [s for s in STAGES if f"{s}_wall" in spent]
    told = {f"{s}_{kind}": spent[f"{s}_{kind}"] for s in measured for kind in ("wall", "cpu")}
    told["other_cpu"] = own - sum(spent[f"{s}_cpu"] for s in measured)
    told["programs_cpu"] = max(0.0, spent["machine"] - own)
    told["idle_cpu"] = capacity - own - told["programs_cpu"]
    return {"wall": spent["wall"], "cores": spent["cores"], **{k: round(v, 3) for k, v in told.items()}}
