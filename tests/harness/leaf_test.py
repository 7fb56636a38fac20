"""Leaf: every way in which a run can end, and what must not be lost, repeated or executed when it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from frognano.harness.base import Budget, Prompt
from frognano.harness.leaf import Leaf, LeafPrompt
from frognano.models.base import Completion, ContextOverflow, Conversation, ModelError, Sampling
from frognano.records import ExitReason, Message, ToolCall, Trajectory, TrajectoryBuilder
from frognano.sandbox.base import BoxSpec, Limits
from frognano.sandbox.bubblewrap import BubblewrapSandboxes

Step = Completion | Exception


class Scripted:
    """A model that says what the test wrote down. It also holds token ids, one per reply and result."""

    policy = "scripted"

    def __init__(self, *steps: Step) -> None:
        self.steps: Iterator[Step] = iter(steps)
        self.seen: list[list[Message]] = []
        self.delay = 0.0

    async def complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        await asyncio.sleep(self.delay)
        self.seen.append(list(conversation.messages))
        step = next(self.steps)
        if isinstance(step, Exception):
            raise step
        if conversation.tokens is None:
            conversation.tokens = TrajectoryBuilder([1, 2, 3])
        conversation.tokens.append_action([7], [-0.5])
        return step


def call(name: str, error: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{abs(hash((name, str(arguments)))) % 10**6}", name=name, arguments=arguments, error=error)


def say(text: str, *calls: ToolCall, finish: Literal["stop", "length"] = "stop") -> Completion:
    return Completion(raw=text, text=text, tool_calls=calls, finish=finish, generated_tokens=1)


EDIT = call("Edit", file_path="a.py", old_string="x = 1", new_string="x = 2")
DONE = say("It is done.")


@pytest.fixture(scope="session")
def sandboxes() -> BubblewrapSandboxes:
    return BubblewrapSandboxes()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.py").write_text("x = 1\n")
    return tmp_path / "repo"


@pytest.fixture
def run(sandboxes: BubblewrapSandboxes, workspace: Path) -> Any:
    async def run(model: Scripted, leaf: Leaf | None = None, **budget: Any) -> Trajectory:
        limits = Limits(memory_mb=128, disk_mb=16)
        async with sandboxes.open(BoxSpec(workspace, limits=limits)) as box:
            prompt = Prompt(task_id="task0001", rung=1, text="Make x {2}.")
            sampling = Sampling(temperature=0.7)
            return await (leaf or Leaf()).run(prompt, box, model, sampling, Budget(**budget))

    return run


async def test_the_patch_or_the_record_is_lost_at_a_natural_end(run: Any) -> None:
    model = Scripted(say("First", EDIT, call("Bash", command="cat a.py")), DONE)
    t = await run(model)
    assert (t.exit_reason, t.error) == (ExitReason.AGENT, "")
    assert b"-x = 1\n+x = 2\n" in t.patch
    assert [r.text for r in t.turns[0].results] == ["Edited /repo/a.py at line 1.", "x = 2\n[exit code 0]"]
    assert t.valid_edit
    assert (t.task_id, t.rung, t.policy, t.temperature) == ("task0001", 1, "scripted", 0.7)
    assert t.harness == "leaf/1/default"
    assert len(t.id) == 32
    assert t.generated_tokens == 2
    assert (t.segments[0].prompt_ids, t.segments[0].ids) == ((1, 2, 3), (7, 7))
    assert [m.role for m in model.seen[1]] == ["system", "user", "assistant", "tool"]
    assert model.seen[1][1].content == "Make x {2}."
    assert [m.role for m in t.messages] == ["system", "user"]


async def test_demonstrations_come_in_the_wrong_place(run: Any) -> None:
    shown = (Message(role="user", content="An example"), Message(role="assistant", content="Done"))
    leaf = Leaf(LeafPrompt(name="pocket", system="", demonstrations=shown, task_format="<task>{text}</task>"))
    t = await run(Scripted(DONE), leaf)
    assert t.messages == (*shown, Message(role="user", content="<task>Make x {2}.</task>"))
    assert t.harness == "leaf/1/pocket"
    assert t.patch == b""
    with pytest.raises(ValueError, match=r"no .text."):
        LeafPrompt(task_format="x")


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (say("  "), ExitReason.EMPTY),
        (ContextOverflow("too long"), ExitReason.MAX_CONTEXT_LEN),
        (ModelError("server is gone"), ExitReason.LLM_QUERY_ERROR),
        (say("cut", call("Bash", command="echo cut >> a.py"), finish="length"), ExitReason.MAX_TOKENS_PER_TURN),
    ],
)
async def test_what_was_done_before_is_lost(run: Any, last: Step, reason: ExitReason) -> None:
    t = await run(Scripted(say("", EDIT), last))
    assert t.exit_reason is reason
    assert b"+x = 2" in t.patch
    assert b"cut" not in t.patch  # a truncated call must not run
    assert t.turns[-1].results == () or isinstance(last, Exception)
    assert t.error == (str(last) if isinstance(last, Exception) else "")


async def test_turns_are_not_counted(run: Any) -> None:
    t = await run(Scripted(*(say("", call("Bash", command=f"echo {i} >> a.py")) for i in range(9))), max_turns=2)
    assert (t.exit_reason, len(t.turns)) == (ExitReason.MAX_TURNS, 2)
    assert b"+0\n+1\n" in t.patch


async def test_time_runs_out_in_a_tool_and_the_work_is_lost(run: Any) -> None:
    quick = call("Bash", command="echo kept > new")
    t = await run(Scripted(say("", quick, call("Bash", command="sleep 60"))), max_seconds=1.5)
    assert t.exit_reason is ExitReason.MAX_TIME
    assert b"+kept" in t.patch
    assert [r.ok for r in t.turns[0].results] == [True]


async def test_time_runs_out_in_the_model(run: Any) -> None:
    model = Scripted(DONE)
    model.delay = 60
    t = await run(model, max_seconds=0.3)
    assert (t.exit_reason, t.patch, t.segments) == (ExitReason.MAX_TIME, b"", ())


async def test_a_run_that_repeats_itself_goes_on(run: Any) -> None:
    same = call("Read", file_path="a.py")
    t = await run(Scripted(*(say("", same) for _ in range(9))))
    assert (t.exit_reason, len(t.turns)) == (ExitReason.STUCK, 5)
    counter = call("Bash", command="echo x >> n; wc -l < n")  # the same call, but something happens
    t = await run(Scripted(*(say("", counter) for _ in range(7)), DONE))
    assert t.exit_reason is ExitReason.AGENT


async def test_a_run_goes_on_after_more_failures_than_it_may_have(run: Any) -> None:
    bad, good = call("Read", file_path="none.py"), call("Read", file_path="a.py")
    other = call("Read", file_path="neither.py")
    t = await run(Scripted(say("", bad), say("", good), say("", bad), say("", other), DONE), max_failures=2)
    assert (t.exit_reason, len(t.turns)) == (ExitReason.STUCK, 4)
    t = await run(Scripted(say("", bad), say("", other), say("", bad), DONE))
    assert t.exit_reason is ExitReason.AGENT


async def test_a_malformed_or_unknown_call_ends_the_run(run: Any) -> None:
    broken = ToolCall(id="1", name="Edit", error="The call has no closing tag.")
    t = await run(Scripted(say("", broken, call("Browse", url="x"), call("Read", path="a.py")), DONE))
    assert t.exit_reason is ExitReason.AGENT
    assert [r.ok for r in t.turns[0].results] == [False, False, False]
    assert t.turns[0].results[0].text == "The call has no closing tag."


async def test_a_box_killed_by_the_agent_is_repeated(run: Any) -> None:
    hog = "for i in 1 2 3; do python3 -I -c 'import time; x = b\"x\" * (70 << 20); time.sleep(20)' & done; wait"
    t = await run(Scripted(say("", EDIT, call("Bash", command=hog)), DONE))
    assert not t.exit_reason.retriable
    assert (t.exit_reason, t.patch) == (ExitReason.EMPTY, b"")
    assert t.error.startswith("box killed: the box used more than 128 MB")
    assert [r.ok for r in t.turns[0].results] == [True]


async def test_a_broken_box_is_scored(sandboxes: BubblewrapSandboxes, workspace: Path) -> None:
    box = sandboxes.open(BoxSpec(workspace))  # never entered: it is not there
    prompt = Prompt(task_id="task0001", rung=1, text="x")
    t = await Leaf().run(prompt, box, Scripted(say("", EDIT), DONE), Sampling(), Budget())
    assert t.exit_reason is ExitReason.INFRASTRUCTURE_ERROR
    assert t.exit_reason.retriable


async def test_a_bug_in_a_model_is_taken_for_a_result(run: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        await run(Scripted(ZeroDivisionError()))
    with pytest.raises(TimeoutError):
        await run(Scripted(TimeoutError()))
