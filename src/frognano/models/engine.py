"""The in-process sampler: continuous batching over live rollouts, exact token ids and log-probs from the decode path.

One thread owns the memory. Rollouts ask with `await engine.generate(…)`; rows that wait for a tool keep their memory and go
on when asked again. Weights change only while no row is live (`refresh`), so every token of a reply has one version.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable

import torch

from frognano.models.decoder_memory import DecoderMemory
from frognano.models.llama import LlamaWeights
from frognano.models.sessions import Generation, Memory, Request, Sessions
from frognano.stopwatch import Stopwatch

__all__ = ["Generation", "SamplerEngine", "TorchEngine"]


class _Close:
    """The last message."""


_Done = queue.SimpleQueue[BaseException | None]
"""Where `refresh` waits for the sampler's word."""


class SamplerEngine:
    """`rows` bounds how many rollouts are live at once; further ones wait. `stop_ids` end a reply."""

    def __init__(self, memory: Memory, *, stop_ids: tuple[int, ...], rows: int, threads: int) -> None:
        self.memory, self.threads = memory, threads
        self.watch = Stopwatch()
        self._sessions = Sessions(memory, stop_ids=stop_ids, rows=rows)
        self._inbox: queue.SimpleQueue[Request | str | _Done | _Close] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    @property
    def generated(self) -> int:
        """Tokens sampled since the start."""
        return self._sessions.generated

    @property
    def outside_cpu(self) -> float:
        """CPU seconds of other processes: none here."""
        return 0.0

    # Called from the event loop.

    async def generate(self, session: str, ids: list[int], *, temperature: float, limit: int, seed: int) -> Generation:
        """Sample a reply after `ids`, at most `limit` tokens. A session asked again must extend what it has seen and said.

        `seed` alone decides what is drawn, whatever else is in the batch. Raises ValueError on ids that cannot be answered.
        """
        vocabulary = self.memory.vocabulary
        if not ids or min(ids) < 0 or max(ids) >= vocabulary or limit < 1:
            raise ValueError(
                f"{len(ids)} ids, limit {limit}: at least one each, and ids below {vocabulary}, are needed"
            )
        if not self._thread.is_alive():
            raise RuntimeError("the sampler is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()

        def answer(result: Generation | BaseException) -> None:
            def put() -> None:
                if future.done():
                    return
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(put)

        self._inbox.put(Request(session, list(ids), temperature, limit, seed, answer))
        return await future

    def release(self, session: str) -> None:
        """The rollout is over: its row may go to another."""
        self._inbox.put(session)

    def refresh(self) -> None:
        """Weights have changed: forget every key. Waits until the sampler has done so; no row may be live."""
        self.ask_refresh()()

    def ask_refresh(self) -> Callable[[], None]:
        """`refresh` in two: it begins now, and what is given back waits for its end. Several samplers forget at once so."""
        if not self._thread.is_alive():
            raise RuntimeError("the sampler is closed")
        done: _Done = queue.SimpleQueue()
        self._inbox.put(done)

        def wait() -> None:
            if (error := done.get()) is not None:
                raise error

        return wait

    def close(self) -> None:
        """Whoever still waits is told."""
        self._inbox.put(_Close())
        self._thread.join()

    # In the sampler's thread.

    def _run(self) -> None:
        while self._take_all():
            # Every time: MKL's count is the process's, and the trainer sets its own.
            torch.set_num_threads(self.threads)
            try:
                with self.watch.running(time.thread_time):
                    self._sessions.step()
            except Exception as error:
                self._sessions.fail(error)
        self._sessions.fail(RuntimeError("the sampler was closed"))

    def _take_all(self) -> bool:
        """Read the inbox, waiting while there is nothing to sample; False once closed."""
        try:
            message = self._inbox.get(block=not self._sessions.busy)
            while not isinstance(message, _Close):
                self._take(message)
                message = self._inbox.get_nowait()
            return False
        except queue.Empty:
            return True

    def _take(self, message: Request | str | _Done) -> None:
        if isinstance(message, Request):
            self._sessions.ask(message)
        elif isinstance(message, str):
            self._sessions.release(message)
        else:
            try:
                self._sessions.forget()
            except Exception as error:
                message.put(error)
            else:
                message.put(None)


class TorchEngine(SamplerEngine):
    """The engine of the Llama family, on the shared-prefix decoder."""

    def __init__(
        self, weights: LlamaWeights, *, prefix: list[int], stop_ids: tuple[int, ...], rows: int = 64, threads: int = 1
    ) -> None:
        self.weights = weights
        super().__init__(DecoderMemory(weights, prefix), stop_ids=stop_ids, rows=rows, threads=threads)
