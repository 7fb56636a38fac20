"""What goes wrong with a repository or a task, said so that a person can act on it."""

from __future__ import annotations


class TaskError(RuntimeError):
    """A repository or task that cannot be used. The message names the thing and the remedy."""
