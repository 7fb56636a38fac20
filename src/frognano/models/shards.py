"""One sampler a core. Two threads on one batch gain a fifth, since every matrix product waits for both; two batches, each in
a thread of its own, gain what two cores have, and a box that needs a core slows only one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frognano.models.engine import Generation, SamplerEngine
from frognano.stopwatch import Stopwatch


class ShardedEngine:
    """Engines of the same weights behind the interface of one. A session stays where it began; a task's rollouts, which
    share their prompt, stay together as long as that leaves no engine idle."""

    def __init__(self, engines: Sequence[SamplerEngine]) -> None:
        self.engines = list(engines)
        self.watch = Stopwatch()
        for engine in self.engines:
            engine.watch = self.watch
        self._home: dict[str, tuple[int, tuple[int, ...]]] = {}
        """Of every live session: its engine and its prompt."""

    @property
    def generated(self) -> int:
        """Tokens sampled since the start."""
        return sum(e.generated for e in self.engines)

    @property
    def outside_cpu(self) -> float:
        """CPU seconds of other processes: none here."""
        return 0.0

    def _choose(self, prompt: tuple[int, ...]) -> int:
        load = Counter(engine for engine, _ in self._home.values())
        least = min(range(len(self.engines)), key=load.__getitem__)
        same = {engine for engine, p in self._home.values() if p == prompt}
        close = [e for e in same if load[e] <= load[least] + 8]
        return min(close, key=load.__getitem__, default=least)

    async def generate(self, session: str, ids: list[int], *, temperature: float, limit: int, seed: int) -> Generation:
        """As `SamplerEngine.generate`."""
        if session not in self._home:
            self._home[session] = (self._choose(tuple(ids)), tuple(ids))
        engine = self.engines[self._home[session][0]]
        return await engine.generate(session, ids, temperature=temperature, limit=limit, seed=seed)

    def release(self, session: str) -> None:
        """The rollout is over."""
        if home := self._home.pop(session, None):
            self.engines[home[0]].release(session)

    def refresh(self) -> None:
        """Weights have changed; no row may be live. All at once: each computes the prefix anew on a core of its own."""
        for wait in [engine.ask_refresh() for engine in self.engines]:
            wait()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
