"""Live sessions on one memory: who is answered, what is fed, what is drawn. Synchronous; one thread owns it.

A *state* is what a row's next token is drawn from; log-probs come from the very logits that the token was drawn from.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Generation:
    """`ids` end with the stop token when `finish` is `stop`. `logprobs` are at the sampling temperature."""

    ids: list[int]
    logprobs: list[float]
    finish: str


@dataclass
class Request:
    """A reply asked for: after `ids`, at most `limit` tokens. `answer` is called once, from the sampler's thread."""

    session: str
    ids: list[int]
    temperature: float
    limit: int
    seed: int
    answer: Callable[[Generation | BaseException], None]


class Memory(Protocol):
    """What the model holds of live rows, each known by its session's name."""

    @property
    def vocabulary(self) -> int: ...

    def reset(self) -> None:
        """Forget all rows, and all that was computed with the weights as they were."""
        ...

    def start(self, prompts: dict[str, list[int]]) -> list[Tensor]:
        """Take in new rows; the state after each prompt."""
        ...

    def extend(self, names: list[str], tokens: list[list[int]]) -> Tensor:
        """Append `tokens[i]` (all of one length) to row i; the states after the last ones, [n, ·]."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """[n, ·] to fp32 logits [n, V] that the caller may overwrite."""
        ...

    def leave(self, name: str) -> None:
        """The row is over."""
        ...


@dataclass
class _Session:
    """One live row. `ids` are all it has seen and said; the memory holds the first `fed` of them."""

    ids: list[int]
    fed: int
    rng: random.Random
    request: Request | None
    logprobs: list[float] = field(default_factory=list)

    def next(self, request: Request) -> None:
        self.request, self.ids, self.logprobs = request, list(request.ids), []
        self.rng = random.Random(request.seed)


class Sessions:
    """`rows` bounds the live sessions; further ones wait until one is released."""

    def __init__(self, memory: Memory, *, stop_ids: tuple[int, ...], rows: int) -> None:
        self._memory, self.stop_ids, self.rows = memory, set(stop_ids), rows
        self.generated = 0
        """Tokens sampled since the start."""
        self._stale = True
        self._clear()

    def _clear(self) -> None:
        self._waiting: list[Request] = []
        self._sessions: dict[str, _Session] = {}
        self._state: dict[str, Tensor] = {}
        """State of each session whose next token is to be drawn."""

    @property
    def memory(self) -> Memory:
        """Reset, under the current weights, after `forget` and `fail`."""
        if self._stale:
            self._memory.reset()
            self._stale = False
        return self._memory

    @property
    def live(self) -> bool:
        return bool(self._sessions or self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: rows may all wait for tools while others wait for a row."""
        return (
            any(s.request for s in self._sessions.values())
            or any(r.session in self._sessions for r in self._waiting)
            or bool(self._waiting and len(self._sessions) < self.rows)
        )

    def ask(self, request: Request) -> None:
        s = self._sessions.get(request.session)
        if (s and s.request) or any(r.session == request.session for r in self._waiting):
            request.answer(ValueError(f"session {request.session} was asked again before it had answered"))
        elif s and request.ids[: len(s.ids)] != s.ids:
            request.answer(
                ValueError(f"session {request.session} was asked with ids that do not extend what it has seen and said")
            )
        else:
            self._waiting.append(request)

    def release(self, session: str) -> None:
        """Whatever it still waits for is dropped: an abandoned request must not take a row for ever."""
        self._waiting = [r for r in self._waiting if r.session != session]
        self._state.pop(session, None)
        if self._sessions.pop(session, None):
            self._memory.leave(session)

    def forget(self) -> None:
        """Weights have changed: no key or value of the old ones may stay."""
        if self.live:
            raise RuntimeError("weights cannot change while rollouts are live")
        self._stale = True
        self._clear()
        _ = self.memory

    def fail(self, error: BaseException) -> None:
        """The memory may be half written: every waiting rollout is told, and the memory starts anew."""
        asked = [s.request for s in self._sessions.values() if s.request] + self._waiting
        self._stale = True
        self._clear()
        for request in asked:
            request.answer(error)

    @torch.no_grad()
    def step(self) -> None:
        """Take in what waits, sample one token for every row that is being answered, feed it."""
        self._admit()
        self._go_on()
        names = list(self._state)
        if not names:
            return
        tokens, logprobs = self._draw(names)
        self._state = {}
        feed: list[str] = []
        for name, token, logprob in zip(names, tokens, logprobs, strict=True):
            s = self._sessions[name]
            assert s.request is not None
            s.ids.append(token)
            s.logprobs.append(logprob)
            stop = token in self.stop_ids
            if stop or len(s.logprobs) >= s.request.limit:
                s.request.answer(Generation(s.ids[-len(s.logprobs) :], s.logprobs, "stop" if stop else "length"))
                s.request = None
            else:
                feed.append(name)
        self.generated += len(names)
        if feed:
            self._feed(feed)

    def _feed(self, names: list[str]) -> None:
        """Bring the memory up to the ids of these sessions; all lag by the same number of tokens."""
        sessions = [self._sessions[n] for n in names]
        out = self.memory.extend(names, [s.ids[s.fed :] for s in sessions])
        for s in sessions:
            s.fed = len(s.ids)
        self._state.update(zip(names, out, strict=True))

    def _draw(self, names: list[str]) -> tuple[list[int], list[float]]:
        """One token a row by inverse transform, with its log-prob at the row's temperature (0, certain, when greedy)."""
        logits = self.memory.logits(torch.stack([self._state[n] for n in names]))
        requests = [self._sessions[n].request for n in names]
        temperature = torch.tensor([r.temperature if r else 1.0 for r in requests])
        greedy = temperature == 0
        logits /= torch.where(greedy, 1.0, temperature)[:, None]
        logits -= logits.amax(-1, keepdim=True)
        weight = logits.exp()
        cumulative = weight.cumsum(-1)
        u = torch.tensor([[self._sessions[n].rng.random()] for n in names])
        tokens = torch.searchsorted(cumulative, u * cumulative[:, -1:]).clamp_max(logits.shape[-1] - 1)[:, 0]
        if greedy.any():
            tokens = torch.where(greedy, logits.argmax(-1), tokens)
        logp = logits.gather(1, tokens[:, None])[:, 0] - weight.sum(-1).log()
        chosen: list[float] = logp.masked_fill(greedy, 0.0).tolist()
        if not all(map(math.isfinite, chosen)):
            raise RuntimeError("the model gave log-probs that are not finite: its weights are broken")
        return tokens.tolist(), chosen

    def _admit(self) -> None:
        """Start waiting sessions that are new, as far as rows allow."""
        new = [r for r in self._waiting if r.session not in self._sessions][: self.rows - len(self._sessions)]
        if not new:
            return
        states = self.memory.start({r.session: r.ids for r in new})
        for r, state in zip(new, states, strict=True):
            self._sessions[r.session] = _Session(list(r.ids), len(r.ids), random.Random(r.seed), r)
            self._state[r.session] = state
        names = {r.session for r in new}
        self._waiting = [r for r in self._waiting if r.session not in names]

    def _go_on(self) -> None:
        """Feed what was added to sessions that are asked again (a tool's result), rows of equal length together."""
        by_length: dict[int, list[str]] = {}
        for r in self._waiting:
            if s := self._sessions.get(r.session):
                s.next(r)
                by_length.setdefault(len(s.ids) - s.fed, []).append(r.session)
        self._waiting = [r for r in self._waiting if r.session not in self._sessions]
        for names in by_length.values():
            self._feed(names)
