"""The five tools of Leaf, as they are carried out in the box."""

from __future__ import annotations

from .edit import edit
from .files import glob, read, write
from .process import Processes
from .shell import bash

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TEXT, _COUNT, _FLAG, _SECONDS = "a string", "a whole number from 1", "true or false", "a number of seconds above 0"
PARAMETERS = {
    "Read": {"file_path": _TEXT, "offset?": _COUNT, "limit?": _COUNT},
    "Write": {"file_path": _TEXT, "content": _TEXT},
    "Edit": {"file_path": _TEXT, "old_string": _TEXT, "new_string": _TEXT, "replace_all?": _FLAG},
    "Glob": {"pattern": _TEXT, "path?": _TEXT},
    "Bash": {"command": _TEXT, "description?": _TEXT, "timeout?": _SECONDS},
}


_FUNCTIONS: dict[str, Callable[..., tuple[bool, str]]] = {"Read": read, "Write": write, "Edit": edit, "Glob": glob}


class Tools:
    def __init__(self, config: dict[str, Any], processes: Processes) -> None:
        self.repo = config["repo"]
        self.config = config
        self.processes = processes

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        """(succeeded, text for the model). Whatever is wrong with the call is told, never raised."""
        if name not in PARAMETERS:
            return False, f"There is no tool {name!r}. The tools are {', '.join(PARAMETERS)}."
        problem = _problem(name, arguments)
        if problem:
            return False, problem
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            if name == "Bash":
                return bash(self.config, self.processes, **given)
            return _FUNCTIONS[name](self.repo, **given)
        except OSError as e:
            return False, f"{e.strerror or e}: {e.filename}" if e.filename else f"{e.strerror or e}"
        except UnicodeEncodeError:
            return False, "The text holds characters that UTF-8 cannot write (lone surrogates)."


def _problem(name: str, arguments: dict[str, Any]) -> str:
    parameters = PARAMETERS[name]
    kinds = {key.rstrip("?"): kind for key, kind in parameters.items()}
    usage = f"{name} takes " + ", ".join(f"{key} ({kind})" for key, kind in parameters.items()) + "; ? is optional."
    unknown = sorted(set(arguments) - set(kinds))
    if unknown:
        return f"Unknown parameter {', '.join(unknown)}. {usage}"
    for key in parameters:
        if not key.endswith("?") and arguments.get(key) is None:
            return f"Missing parameter {key}. {usage}"
    for key, value in arguments.items():
        if value is not None and not _fits(kinds[key], value):
            return f"{key} must be {kinds[key]}, not {value!r:.60}. {usage}"
        if isinstance(value, str) and key != "content" and not key.endswith("_string") and "\0" in value:
            return f"{key} holds a NUL character."
    return ""


def _fits(kind: str, value: Any) -> bool:
    if kind is _TEXT:
        return isinstance(value, str)
    if kind is _FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value > 0 and (kind is _SECONDS or isinstance(value, int))
