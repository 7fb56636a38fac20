"""The in-process sampler: continuous batching over live rollouts, exact token ids and log-probs from the decode path.

One thread owns the decoder. Rollouts ask with `await engine.generate(…)`; rows that wait for a tool keep their memory and go
on when asked again. Weights change only while no row is live (`refresh`), so every token of a reply has one version.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from frognano.models.decoder import Decoder
from frognano.models.llama import LlamaWeights


@dataclass(frozen=True)
class Generation:
    """`ids` end with the stop token when `finish` is `stop`. `logprobs` are at the sampling temperature."""

    ids: list[int]
    logprobs: list[float]
    finish: str


@dataclass
class _Request:
    session: str
    ids: list[int]
    temperature: float
    limit: int
    seed: int
    answer: Callable[[Generation | BaseException], None]


@dataclass
class _Session:
    """One live row. `held` are the ids in the decoder's memory; `new` the reply being sampled."""

    row: int
    held: list[int]
    rng: random.Random
    request: _Request | None = None
    new: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TorchEngine:
    """`rows` bounds how many rollouts are live at once; further ones wait. `stop_ids` end a reply."""

    def __init__(
        self, weights: LlamaWeights, *, prefix: list[int], stop_ids: tuple[int, ...], rows: int = 64, threads: int = 1
    ) -> None:
        self.weights, self.stop_ids, self.rows, self.threads = weights, set(stop_ids), rows, threads
        self._prefix = prefix
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting: list[_Request] = []
        self._sessions: dict[str, _Session] = {}
        self._free: set[int] = set()
        self._group_of: dict[tuple[int, ...], int] = {}
        self._last_hidden: dict[tuple[int, ...], Tensor] = {}
        self._decoder = self._fresh()
        self.generated = 0
        """Tokens sampled since the start."""
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def _fresh(self) -> Decoder:
        decoder = Decoder(self.weights, self.rows)
        decoder.set_prefix(self._prefix)
        return decoder

    # Called from the event loop.

    async def generate(self, session: str, ids: list[int], *, temperature: float, limit: int, seed: int) -> Generation:
        """Sample a reply after `ids`, at most `limit` tokens. A session asked again must extend what it has seen."""
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

            loop.call_soon_threadsafe(put)

        self._inbox.put(_Request(session, list(ids), temperature, limit, seed, answer))
        return await future

    def release(self, session: str) -> None:
        """The rollout is over: its row may go to another."""
        self._inbox.put(session)

    def refresh(self) -> None:
        """Weights or prefix have changed: forget every key. Waits until the sampler has done so; no row may be live."""
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._inbox.put(done)
        if (error := done.get()) is not None:
            raise error

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    # In the sampler's thread.

    def _run(self) -> None:
        torch.set_num_threads(self.threads)
        hidden: dict[str, Tensor] = {}
        while True:
            idle = not any(s.request for s in self._sessions.values()) and not self._waiting
            try:
                message = self._inbox.get(block=idle)
                while True:
                    if message is None:
                        return
                    self._take(message)
                    message = self._inbox.get_nowait()
            except queue.Empty:
                pass
            try:
                hidden = self._step(hidden)
            except Exception as error:
                # The memory may be half written: every live rollout is told, and the decoder starts anew.
                for s in self._sessions.values():
                    if s.request:
                        s.request.answer(error)
                for r in self._waiting:
                    r.answer(error)
                self._forget_all()
                self._waiting, hidden = [], {}

    def _forget_all(self) -> None:
        self._sessions, self._group_of, self._last_hidden, self._free = {}, {}, {}, set()
        self._decoder = self._fresh()

    def _take(self, message: Any) -> None:
        if isinstance(message, _Request):
            self._waiting.append(message)
        elif isinstance(message, str):
            if session := self._sessions.pop(message, None):
                self._free.add(session.row)
        else:
            live = bool(self._sessions or self._waiting)
            if not live:
                self._forget_all()
            message.put(RuntimeError("weights cannot change while rollouts are live") if live else None)

    def _step(self, hidden: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take in what waits, sample one token for every row that is being answered, feed it."""
        hidden = {**hidden, **self._admit(), **self._go_on()}
        names = [name for name in hidden if name in self._sessions]
        if not names:
            return {}
        tokens, logprobs = self._sample(names, torch.stack([hidden[n] for n in names]))
        feed: list[str] = []
        for name, token, logprob in zip(names, tokens, logprobs, strict=True):
            s = self._sessions[name]
            assert s.request is not None
            s.new.append(token)
            s.logprobs.append(logprob)
            stop = token in self.stop_ids
            if stop or len(s.new) >= s.request.limit:
                s.request.answer(Generation(s.new, s.logprobs, "stop" if stop else "length"))
                s.request, s.new, s.logprobs = None, [], []
            else:
                feed.append(name)
        self.generated += len(names)
        if not feed:
            return {}
        out = self._feed(feed, [[self._sessions[n].new[-1]] for n in feed])
        return dict(zip(feed, out, strict=True))

    def _feed(self, names: list[str], tokens: list[list[int]]) -> Tensor:
        for name, new in zip(names, tokens, strict=True):
            self._sessions[name].held += new
        order = sorted(range(len(names)), key=lambda i: self._sessions[names[i]].row)
        out = self._decoder.extend([self._sessions[names[i]].row for i in order], [tokens[i] for i in order])
        return out[torch.tensor(order).argsort()]

    def _sample(self, names: list[str], hidden: Tensor) -> tuple[list[int], list[float]]:
        """One token a row by inverse transform, with its log-prob at the row's temperature."""
        logits = self._decoder.logits(hidden)
        requests = [self._sessions[n].request for n in names]
        temperature = torch.tensor([r.temperature if r else 1.0 for r in requests])
        greedy = temperature == 0
        logits /= torch.where(greedy, 1.0, temperature)[:, None]
        logp = logits.sub_(logits.logsumexp(-1, keepdim=True))
        cumulative = logp.exp().cumsum(-1)
        u = torch.tensor([[self._sessions[n].rng.random()] for n in names])
        tokens = torch.searchsorted(cumulative, u * cumulative[:, -1:]).clamp_max(logp.shape[-1] - 1)[:, 0]
        tokens = torch.where(greedy, logp.argmax(-1), tokens)
        chosen = logp.gather(1, tokens[:, None])[:, 0].masked_fill(greedy, 0.0)
        return tokens.tolist(), chosen.tolist()

    def _admit(self) -> dict[str, Tensor]:
        """Start waiting sessions that are new, as far as rows allow; prompts not held yet are prefilled together."""
        new = [r for r in self._waiting if r.session not in self._sessions][: self.rows - len(self._sessions)]
        if not new:
            return {}
        self._compact()
        taken = {id(r) for r in new}
        self._waiting = [r for r in self._waiting if id(r) not in taken]
        p = len(self._prefix)
        prompts: dict[tuple[int, ...], list[int]] = {}
        for r in new:
            if tuple(r.ids) not in self._group_of:
                prompts.setdefault(tuple(r.ids), r.ids)
        first = len(self._decoder.group.lengths)
        seen = {key: p > 0 and ids[:p] == self._prefix and len(ids) > p for key, ids in prompts.items()}
        last: dict[tuple[int, ...], Tensor] = {}
        if prompts:
            own = [ids[p:] if seen[key] else ids for key, ids in prompts.items()]
            out = self._decoder.add_groups(own, list(seen.values()))
            for i, key in enumerate(prompts):
                self._group_of[key] = first + i
                last[key] = out[i]
        hidden: dict[str, Tensor] = {}
        for r in new:
            key = tuple(r.ids)
            comes_after = p > 0 and r.ids[:p] == self._prefix and len(r.ids) > p
            (row,) = self._decoder.add_rows(self._group_of[key], comes_after, 1)
            self._sessions[r.session] = _Session(row, list(r.ids), random.Random(r.seed), r)
            hidden[r.session] = last[key] if key in last else self._last_hidden[key]
        self._last_hidden.update(last)
        return hidden

    def _go_on(self) -> dict[str, Tensor]:
        """Feed what was added to sessions that are asked again (a tool's result), rows of equal length together."""
        again = [r for r in self._waiting if r.session in self._sessions]
        if not again:
            return {}
        self._waiting = [r for r in self._waiting if r.session not in self._sessions]
        by_length: dict[int, list[_Request]] = {}
        for r in again:
            s = self._sessions[r.session]
            if r.ids[: len(s.held)] != s.held or len(r.ids) == len(s.held):
                r.answer(
                    ValueError(f"session {r.session} was asked again with ids that do not extend what it has seen")
                )
                continue
            s.request = r
            by_length.setdefault(len(r.ids) - len(s.held), []).append(r)
        hidden: dict[str, Tensor] = {}
        for requests in by_length.values():
            names = [r.session for r in requests]
            out = self._feed(names, [r.ids[len(self._sessions[r.session].held) :] for r in requests])
            hidden.update(zip(names, out, strict=True))
        return hidden

    def _compact(self) -> None:
        """Move rows together once a quarter of them is free."""
        total = len(self._decoder.groups)
        if not self._free or len(self._free) * 4 < total:
            return
        if not self._sessions:
            self._decoder = self._keep_prefix()
            self._group_of, self._last_hidden, self._free = {}, {}, set()
            return
        live = sorted(self._sessions.values(), key=lambda s: s.row)
        groups_before = [self._decoder.groups[s.row] for s in live]
        self._decoder.keep([s.row for s in live])
        renamed = {g: i for i, g in enumerate(sorted(set(groups_before)))}
        self._group_of = {k: renamed[g] for k, g in self._group_of.items() if g in renamed}
        self._last_hidden = {k: h for k, h in self._last_hidden.items() if k in self._group_of}
        for i, s in enumerate(live):
            s.row = i
        self._free = set()

    def _keep_prefix(self) -> Decoder:
        decoder = Decoder(self.weights, self.rows)
        decoder.prefix = self._decoder.prefix
        return decoder
