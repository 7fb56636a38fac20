"""Bench: boxes that stay open between the candidates of a repository, since most of a short run is its start.

Only for candidates of our own making: a box is used again when nothing but the mutated file has changed in it, and that is
put back; when no process is left in it; and its folders for temporary files are emptied. Grades never share a box.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from frognano.sandbox.base import BoxSpec, Sandbox, Sandboxes
from frognano.tasks.suite import prefork


@dataclass
class _Open:
    spec: BoxSpec
    box: Sandbox
    stack: AsyncExitStack
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


class Bench:
    """Keeps at most ``keep`` boxes that wait; of those the longest unused is closed first."""

    def __init__(self, sandboxes: Sandboxes, keep: int = 12) -> None:
        self.sandboxes, self.keep = sandboxes, keep
        self._waiting: list[_Open] = []
        self._spoilt: set[int] = set()

    @asynccontextmanager
    async def lease(self, spec: BoxSpec, file: str, clean: bytes) -> AsyncIterator[Sandbox]:
        """A box as ``spec`` says, in which ``file`` (``clean`` are its bytes) may be written to and tests be forked."""
        held = self._take(spec) or await self._open(spec)
        again = False
        try:
            yield held.box
            again = id(held.box) not in self._spoilt and await held.box.reset(file, clean) == ""
        finally:
            self._spoilt.discard(id(held.box))
            if again:
                self._waiting.append(held)
            else:
                await held.stack.aclose()
        while len(self._waiting) > self.keep:
            await self._waiting.pop(0).stack.aclose()

    def spoil(self, box: Sandbox) -> None:
        """Do not use a leased box again."""
        self._spoilt.add(id(box))

    async def close(self) -> None:
        """Close the boxes that wait."""
        while self._waiting:
            await self._waiting.pop().stack.aclose()

    def _take(self, spec: BoxSpec) -> _Open | None:
        loop = asyncio.get_running_loop()
        self._waiting = [
            held for held in self._waiting if held.loop is loop
        ]  # boxes of a loop that is gone end by themselves
        for held in reversed(self._waiting):
            if held.spec == spec:
                self._waiting.remove(held)
                return held
        return None

    async def _open(self, spec: BoxSpec) -> _Open:
        async with AsyncExitStack() as stack:
            box = await stack.enter_async_context(self.sandboxes.open(spec))
            await prefork(box, 1)  # the workspace as it is now is what it must be again
            stack = stack.pop_all()
        return _Open(spec, box, stack)
