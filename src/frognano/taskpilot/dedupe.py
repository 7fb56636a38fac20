"""Dedupe: one key for one bug, so that it is admitted once, over all iterations.

Two bugs are the same when they sit in the same function, are caught by the same tests, and their gold diffs are equal
after blanks are collapsed and identifiers are renamed in order of appearance (alpha-renaming).
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections.abc import Collection, Iterable

from frognano.records import Task
from frognano.taskpilot.sources.mutation import Mutation

_TOKEN = re.compile(r"""[^\W\d]\w*|\d[\w.]*|'[^']*'|"[^"]*"|[^\w\s]""")
_KEPT = frozenset(keyword.kwlist) | frozenset(dir(builtins))


def alpha_renamed(removed: Iterable[str], added: Iterable[str]) -> str:
    """The diff with every identifier numbered by its first appearance; keywords and builtins keep their names."""
    numbers: dict[str, str] = {}
    out: list[str] = []
    for sign, lines in (("-", removed), ("+", added)):
        for line in lines:
            out.append(sign)
            for token in _TOKEN.findall(line):
                named = token.isidentifier() and token not in _KEPT
                out.append(numbers.setdefault(token, f"v{len(numbers)}") if named else token)
    return " ".join(out)


def bug_key(removed: Iterable[str], added: Iterable[str], function: str, f2p: Collection[str]) -> str:
    """``removed`` and ``added`` are the lines of gold; ``function`` names repository, file and function."""
    parts = [alpha_renamed(removed, added), function, *sorted(f2p)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def mutation_key(mutation: Mutation, repository: str, f2p: Collection[str]) -> str:
    place = f"{repository}:{mutation.file}:{mutation.function}"
    return bug_key(_some(mutation.after_line), _some(mutation.before_line), place, f2p)


def _some(line: str) -> tuple[str, ...]:
    return (line,) if line else ()


def gold_lines(patch: bytes) -> tuple[list[str], list[str]]:
    """Removed and added lines of a unified diff; bytes that are not UTF-8 are kept as surrogates."""
    removed: list[str] = []
    added: list[str] = []
    in_hunk = False
    for line in patch.decode("utf-8", "surrogateescape").split("\n"):
        if line.startswith("diff --git") or line.startswith("@@"):
            in_hunk = line.startswith("@@")
        elif in_hunk and line[:1] in ("-", "+"):
            (removed if line[0] == "-" else added).append(line[1:].rstrip("\r"))
    return removed, added


def task_key(task: Task) -> str:
    return bug_key(*gold_lines(task.gold_patch), task.group, task.f2p)
