"""The pocket prompt: four worked episodes, so that a 135M model learns what a call looks like before it is trained.

Without demonstrations it never calls a tool; with them and an XML-like syntax a few percent of its edits are right, which is
what reinforcement needs to start from. The demonstrations show other code than any task.
"""

from __future__ import annotations

from frognano.harness.leaf.prompt import LeafPrompt
from frognano.records import Message, ToolCall, ToolResult

SYSTEM = (
    "You are a coding agent. Fix the bug in the Python file by calling one tool per reply: "
    "edit, write, read, glob or bash. A reply without a tool call ends the task."
)


def _episode(path: str, code: str, old: str, new: str, kind: str) -> tuple[Message, ...]:
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    where = 1 + code.split("\n").index(next(line for line in code.split("\n") if old in line))
    return (
        Message(role="user", content=f"{path}:\n{code}\n{kind} in this line of {path}:\n{old}"),
        Message(role="assistant", tool_calls=(ToolCall(id="demo", name="Edit", arguments=arguments),)),
        Message(
            role="tool", results=(ToolResult(call_id="demo", ok=True, text=f"Edited /repo/{path} at line {where}."),)
        ),
        Message(role="assistant", content="Done."),
    )


DEMONSTRATIONS = (
    *_episode(
        "lib/util.py",
        "def triple(x):\n    return x + 3",
        "return x + 3",
        "return x * 3",
        "An arithmetic operator is wrong",
    ),
    *_episode(
        "text.py",
        "def last_char(s):\n    return s[0]",
        "return s[0]",
        "return s[-1]",
        "A constant is wrong",
    ),
    *_episode(
        "pkg/check.py",
        "def is_small(n):\n    if n > 5:\n        return True\n    return False",
        "if n > 5:",
        "if n < 5:",
        "A comparison is wrong",
    ),
    *_episode(
        "src/tools/pairs.py",
        "class Pair:\n    def both(self, strict=True):\n        return self.left or self.right",
        "return self.left or self.right",
        "return self.left and self.right",
        "A boolean operator is wrong",
    ),
)

POCKET = LeafPrompt(name="pocket", system=SYSTEM, demonstrations=DEMONSTRATIONS)
