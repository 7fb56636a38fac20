"""Versions: the policies of one iteration by their names, and which of them have their weights on disk.

`i2u4` is what update 4 of iteration 2 made.
"""

from __future__ import annotations

import shutil

from frognano.loop.session import Session
from frognano.rl.checkpoint import STATE


class Versions:
    """`start` is the policy that the iteration begins with; each update makes the next one of it."""

    def __init__(self, session: Session, iteration: int, start: str) -> None:
        self.session, self.iteration, self.start = session, iteration, start

    def step(self, update: int) -> int:
        """Of an update in the metric series, which count through all iterations."""
        return (self.iteration - 1) * self.session.recipe.train.updates + update

    def after(self, update: int) -> str:
        """The policy that an update makes; what the iteration begins with for 0."""
        return f"i{self.iteration}u{update}" if update else self.start

    def lag(self, update: int, policy: str) -> int:
        """Updates that the policy of a rollout is behind the one that the update moves."""
        sampled = 0 if policy == self.start else int(policy.rpartition("u")[2])
        return update - 1 - sampled

    def saved(self, version: str) -> bool:
        return (self.session.checkpoint(version) / STATE).is_file()

    def last_saved(self, finished: int) -> int:
        """The last of the finished updates whose weights are on disk; 0 for none."""
        return next((u for u in range(finished, 0, -1) if self.saved(self.after(u))), 0)

    def forget(self, keep: str) -> None:
        """Remove the checkpoints of the iteration but one."""
        for folder in (self.session.store.path / "checkpoints").glob(f"i{self.iteration}u*"):
            if folder.name != keep:
                shutil.rmtree(folder, ignore_errors=True)
