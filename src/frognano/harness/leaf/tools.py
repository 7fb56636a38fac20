"""The five tools, as the model is told of them. What they do is in ``sandbox/toolbox``."""

from __future__ import annotations

from typing import Any

from frognano.models.base import ToolSpec


def _object(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _count(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "description": description}


_FILE = _text("Path of the file, absolute or relative to /repo.")

READ = ToolSpec(
    "Read",
    "Show a text file as numbered lines, at most 20,000 characters at once.",
    _object(
        ("file_path",),
        file_path=_FILE,
        offset=_count("First line to show; lines count from 1."),
        limit=_count("How many lines to show."),
    ),
)
WRITE = ToolSpec(
    "Write",
    "Create a file, or replace all of it.",
    _object(("file_path", "content"), file_path=_FILE, content=_text("The whole content.")),
)
EDIT = ToolSpec(
    "Edit",
    "Replace a piece of a file, and nothing else. old_string must occur exactly once, unless replace_all is set.",
    _object(
        ("file_path", "old_string", "new_string"),
        file_path=_FILE,
        old_string=_text("The text as it is in the file, without line numbers."),
        new_string=_text("The text to put in its place."),
        replace_all={"type": "boolean", "description": "Replace every occurrence."},
    ),
)
GLOB = ToolSpec(
    "Glob",
    "List paths that match a pattern, such as src/**/*.py; at most 1,000.",
    _object(
        ("pattern",),
        pattern=_text("* and ? match inside a name, ** crosses directories."),
        path=_text("Directory to look in; /repo if left out."),
    ),
)
BASH = ToolSpec(
    "Bash",
    "Run a bash command in /repo. No network, no input. Shows output (at most 30,000 characters) and exit code.",
    _object(
        ("command",),
        command=_text("The command."),
        description=_text("What it is for, in a few words."),
        timeout={
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "Seconds until it is killed; 120 if left out.",
        },
    ),
)

TOOLS: tuple[ToolSpec, ...] = (READ, WRITE, EDIT, GLOB, BASH)
