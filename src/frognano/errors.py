"""The error that people see: its message is the whole text, names the thing and says the remedy."""

from __future__ import annotations

import errno


class FrogNanoError(RuntimeError):
    """Expected trouble. The command line prints the message without a traceback and exits with ``exit_code``."""

    exit_code = 1


_MEMORY = ("allocate memory", "out of memory", "can't start new thread")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. torch says so as a RuntimeError, a failed fork as an OSError; a thread needs it for its stack."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in said for words in _MEMORY)


class ConfigError(FrogNanoError):
    """A recipe, an option or an argument is wrong: nothing was started."""

    exit_code = 2
