"""A model on an engine that takes and gives token ids: the conversation's ids are append-only and never re-tokenised."""

from __future__ import annotations

import time
from typing import Protocol

from frognano.errors import FrogNanoError, is_out_of_memory
from frognano.models.base import Completion, ContextOverflow, Conversation, ModelError, Sampling
from frognano.models.engine import Generation
from frognano.models.renderer import Renderer
from frognano.records import TrajectoryBuilder


class Engine(Protocol):
    async def generate(
        self, session: str, ids: list[int], *, temperature: float, limit: int, seed: int
    ) -> Generation: ...

    def release(self, session: str) -> None: ...


class TokenModel:
    """One rollout's view of an engine. `context` bounds the ids of a conversation; `seed` fixes what is drawn."""

    def __init__(
        self, engine: Engine, renderer: Renderer, *, policy: str, session: str, context: int, seed: int
    ) -> None:
        self.engine, self.renderer, self.policy, self.session = engine, renderer, policy, session
        self.context, self.seed = context, seed
        self._turn = 0

    async def complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        if conversation.tokens is None:
            prompt = self.renderer.prompt_ids(conversation.messages, conversation.tools)
            conversation.tokens = TrajectoryBuilder(prompt)
        else:
            for message in conversation.messages[conversation.rendered :]:
                if message.role != "assistant":  # the assistant's own tokens are held as they were sampled
                    conversation.tokens.append_observation(self.renderer.observation_ids(message))
        conversation.rendered = len(conversation.messages)
        ids = conversation.tokens.all_ids
        room = self.context - len(ids)
        if room < 1:
            raise ContextOverflow(f"{len(ids)} tokens do not fit a context of {self.context}")
        limit = min(sampling.max_tokens_per_turn, room)
        started = time.monotonic()
        self._turn += 1
        try:
            out = await self.engine.generate(
                self.session, ids, temperature=sampling.temperature, limit=limit, seed=self.seed + self._turn
            )
        except FrogNanoError:  # the engine is gone for good, and the message says what to do
            raise
        except (RuntimeError, ValueError) as error:
            if is_out_of_memory(error):  # no fault of this rollout: the next one would fail too
                raise MemoryError(str(error)) from error
            raise ModelError(f"the engine failed: {error}") from error
        conversation.tokens.append_action(out.ids, out.logprobs)
        raw = self.renderer.decode(out.ids)
        text, calls = self.renderer.parse(raw)
        return Completion(
            raw=raw,
            text=text,
            tool_calls=calls,
            finish="stop" if out.finish == "stop" else "length",
            generated_tokens=len(out.ids),
            seconds=time.monotonic() - started,
        )

    def close(self) -> None:
        """Give the row back; the rollout is over."""
        self.engine.release(self.session)
