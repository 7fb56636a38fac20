"""Leaf: a small harness. The model calls tools until it answers without a call; then the repository is judged.

Whatever ends a run early raises ``Finished`` with the reason, wherever it happens."""

from __future__ import annotations

import asyncio
import time
import uuid

from frognano.harness.base import Budget, Prompt
from frognano.harness.leaf.prompt import DEFAULT, LeafPrompt
from frognano.harness.leaf.tools import TOOLS
from frognano.models.base import Completion, ContextOverflow, Conversation, Model, ModelError, Sampling
from frognano.records import ExitReason, Message, ToolCall, ToolResult, Trajectory, Turn
from frognano.sandbox.base import BoxKilled, Sandbox, SandboxError

VERSION = 1
STUCK_AFTER = 5


class Finished(Exception):
    """The run is over. ``lost`` says that the repository went with the box: there is no patch to judge."""

    def __init__(self, reason: ExitReason, error: str = "", *, lost: bool = False) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.error = error
        self.lost = lost


class Leaf:
    """The harness. It holds only its prompt, so that one object serves any number of runs at once."""

    def __init__(self, prompt: LeafPrompt = DEFAULT) -> None:
        self.prompt = prompt
        self.name = f"leaf/{VERSION}/{prompt.name}"

    async def run(
        self, prompt: Prompt, sandbox: Sandbox, model: Model, sampling: Sampling, budget: Budget
    ) -> Trajectory:
        """Step until something ends the run, then take the patch. Cancellation passes through."""
        run = _Run(self.prompt.messages(prompt.text), sandbox, model, sampling, budget)
        end, patch = await run.to_the_end()
        tokens = run.conversation.tokens
        return Trajectory(
            id=uuid.uuid4().hex,
            task_id=prompt.task_id,
            rung=prompt.rung,
            policy=run.policy,
            harness=self.name,
            temperature=sampling.temperature,
            turns=tuple(run.turns),
            messages=run.first,
            exit_reason=end.reason,
            error=end.error,
            patch=patch,
            segments=tokens.freeze() if tokens is not None else (),
            seconds=time.monotonic() - run.started,
        )


class _Run:
    """One run in progress: the conversation so far, and what it may still spend."""

    def __init__(
        self, messages: list[Message], sandbox: Sandbox, model: Model, sampling: Sampling, budget: Budget
    ) -> None:
        self.first = tuple(messages)
        self.conversation = Conversation(messages, TOOLS)
        self.sandbox = sandbox
        self.model = model
        self.policy = model.policy
        self.sampling = sampling
        self.budget = budget
        self.turns: list[Turn] = []
        self.started = time.monotonic()
        self._last: tuple[str, str] | None = None
        self._repeats = self._failures = 0

    async def to_the_end(self) -> tuple[Finished, bytes]:
        try:
            async with asyncio.timeout(self.budget.max_seconds) as clock:
                while True:
                    await self.step()
        except Finished as finished:
            end = finished
        except TimeoutError:
            if not clock.expired():  # not ours: somebody's bug
                raise
            end = Finished(ExitReason.MAX_TIME)
        if end.lost:
            return end, b""
        try:
            return end, await self.sandbox.diff()
        except BoxKilled as e:
            return _box_killed(e), b""
        except SandboxError as e:
            return Finished(ExitReason.INFRASTRUCTURE_ERROR, str(e)), b""

    async def step(self) -> None:
        """One reply and its calls."""
        if len(self.turns) >= self.budget.max_turns:
            raise Finished(ExitReason.MAX_TURNS)
        reply = await self.query()
        self.conversation.messages.append(Message(role="assistant", content=reply.text, tool_calls=reply.tool_calls))
        self._record(reply, ())
        if reply.finish == "length":
            raise Finished(ExitReason.MAX_TOKENS_PER_TURN)
        if not reply.tool_calls:
            raise Finished(ExitReason.AGENT if reply.text.strip() else ExitReason.EMPTY)
        results: list[ToolResult] = []
        try:
            for call in reply.tool_calls:
                results.append(await self.execute(call))
                self._check_stuck(call, results[-1])
        finally:  # what was done is recorded, also when the run ends in the middle of a reply
            self.turns.pop()
            self._record(reply, tuple(results))
        self.conversation.messages.append(Message(role="tool", results=tuple(results)))

    async def query(self) -> Completion:
        try:
            return await self.model.complete(self.conversation, self.sampling)
        except ContextOverflow as e:
            raise Finished(ExitReason.MAX_CONTEXT_LEN, str(e)) from e
        except ModelError as e:
            raise Finished(ExitReason.LLM_QUERY_ERROR, str(e)) from e

    async def execute(self, call: ToolCall) -> ToolResult:
        """A call that could not be parsed is answered with what is wrong with it."""
        if call.error:
            return ToolResult(call_id=call.id, ok=False, text=call.error)
        started = time.monotonic()
        try:
            ok, text = await self.sandbox.call_tool(call.name, call.arguments)
        except BoxKilled as e:
            raise _box_killed(e) from e
        except SandboxError as e:
            raise Finished(ExitReason.INFRASTRUCTURE_ERROR, str(e), lost=True) from e
        return ToolResult(call_id=call.id, ok=ok, text=text, seconds=time.monotonic() - started)

    def _record(self, reply: Completion, results: tuple[ToolResult, ...]) -> None:
        self.turns.append(
            Turn(
                raw=reply.raw,
                text=reply.text,
                tool_calls=reply.tool_calls,
                results=results,
                finish=reply.finish,
                generated_tokens=reply.generated_tokens,
                model_seconds=reply.seconds,
            )
        )

    def _check_stuck(self, call: ToolCall, result: ToolResult) -> None:
        """The same call with the same result, five times in a row: it will not get better. Nor will a model that the budget
        allows so many failed calls and no more."""
        now = (f"{call.name} {sorted(call.arguments.items())!r} {call.error}", result.text)
        self._repeats = self._repeats + 1 if now == self._last else 1
        self._last = now
        self._failures = 0 if result.ok else self._failures + 1
        if self._repeats >= STUCK_AFTER or self._failures == self.budget.max_failures:
            raise Finished(ExitReason.STUCK)


def _box_killed(e: BoxKilled) -> Finished:
    """What ran in the box destroyed it: a failed run, judged as one without a patch, and never repeated."""
    return Finished(ExitReason.EMPTY, f"box killed: {e}", lost=True)
