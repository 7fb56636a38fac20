"""Small records to store."""

from __future__ import annotations

from frognano.records import (
    Environment,
    ExitReason,
    Lineage,
    Message,
    Origin,
    Outcome,
    Segment,
    Statement,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Validation,
    Verdict,
)
from frognano.runs import RolloutKey


def task(task_id: str = "task0001", function: str = "chunk") -> Task:
    return Task(
        id=task_id,
        origin=Origin(name="frogs", version="1.0", source="sdist", tree="0" * 40),
        environment=Environment(key="e", python="3.11", lock=("pytest==9.0.0",)),
        base="1" * 40,
        statements=(
            Statement(rung=0, name="symptom", text="It fails."),
            Statement(rung=1, name="line", text="Line 3."),
        ),
        rung=1,
        gold_patch=b"--- a\n+++ b\n\xff",
        f2p=("tests/test_a.py::test_a",),
        lineage=Lineage(generator="mutation", operator="comparison", file="frogs/core.py", function=function, line=3),
        validation=Validation(bug_runs=3, gold_runs=3, noop_resolved=False, seconds=1.0),
    )


def trajectory(trajectory_id: str, task_id: str = "task0001", policy: str = "pi0") -> Trajectory:
    turn = Turn(
        raw="<edit/>",
        text="",
        tool_calls=(ToolCall(id="c1", name="Edit", arguments={"file_path": "a"}),),
        results=(ToolResult(call_id="c1", ok=True, text="done"),),
        finish="stop",
        generated_tokens=7,
    )
    return Trajectory(
        id=trajectory_id,
        task_id=task_id,
        rung=1,
        policy=policy,
        harness="leaf",
        temperature=0.7,
        turns=(turn,),
        messages=(Message(role="user", content="fix it"),),
        exit_reason=ExitReason.AGENT,
        patch=b"+x\xff\n",
        segments=(Segment(prompt_ids=(1, 2), ids=(3, 4), loss_mask=(1, 0), logprobs=(-0.25, 0.0)),),
        seconds=1.5,
    )


def verdict(status: Status = Status.RESOLVED) -> Verdict:
    return Verdict(status=status, outcomes={"tests/test_a.py::test_a": Outcome.PASSED}, evidence="all passed")


def key(index: int = 0, purpose: str = "iter1/train/1", task_id: str = "task0001", policy: str = "pi0") -> RolloutKey:
    return RolloutKey(task_id=task_id, rung=1, policy=policy, purpose=purpose, index=index)
