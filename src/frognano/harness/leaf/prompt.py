"""What a Leaf run starts from: a short system prompt, demonstrations if the policy needs some, and the task."""

from __future__ import annotations

from dataclasses import dataclass

from frognano.records import Message

SYSTEM = """\
You are a software engineer at work on the repository in /repo. Do the task by calling tools: look at the code, \
change it, and check the change by running it. There is nobody to ask. When the task is done, answer without \
calling a tool: the repository is then judged as you leave it."""


@dataclass(frozen=True)
class LeafPrompt:
    """``name`` goes into the name of the harness: a pass rate is bound to the prompt it was measured with."""

    name: str = "default"
    system: str = SYSTEM
    """Left out of the conversation when empty."""
    demonstrations: tuple[Message, ...] = ()
    """Whole episodes between system prompt and task, for models that must be shown what a call looks like."""
    task_format: str = "{text}"
    """The task's text goes where ``{text}`` stands; any other brace is literal."""

    def __post_init__(self) -> None:
        if "{text}" not in self.task_format:
            raise ValueError(f"prompt {self.name}: task_format has no {{text}}")

    def messages(self, text: str) -> list[Message]:
        system = [Message(role="system", content=self.system)] if self.system else []
        task = Message(role="user", content=self.task_format.replace("{text}", text))
        return [*system, *self.demonstrations, task]


DEFAULT = LeafPrompt()
