"""The C library's allocator, told to keep what is freed: tensors of one step have the sizes of the step before.

By default glibc gives large blocks back to the kernel at once and gets zeroed pages for the next tensor; a quarter of a decode
step went into that.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """For the whole process; memory stays at its peak. False where the C library has no `mallopt` (it then stays as it is)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # One arena: those of threads live in heaps of 64 MB, too small for tensors.
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
    return all([mallopt(name, value) for name, value in settings])
