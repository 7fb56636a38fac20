"""Prompts like those of real rollouts: the static prefix that every prompt of a pocket run shares, and statements of own.

A statement shows a short function and the line that is said to be wrong, as the ladder's `line` and `kind` rungs do. The
functions come from the standard library of the Python that runs this, so that nothing has to be fetched.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frognano.harness.leaf.pocket import POCKET
from frognano.harness.leaf.tools import TOOLS
from frognano.models.packed import common_prefix
from frognano.models.renderer import XmlRenderer

OWN = range(40, 121)
"""Tokens of a prompt after the shared prefix."""
KINDS = ("A comparison", "A constant", "An arithmetic operator", "A boolean operator")


@dataclass(frozen=True)
class Workload:
    """`prompts` begin with `prefix`, each goes on with a statement of its own."""

    prefix: list[int]
    prompts: list[list[int]]


def _statements() -> Iterator[str]:
    """Of functions of two to five lines, in the order of file names."""
    folder = Path(sysconfig.get_path("stdlib"))
    number = 0
    for file in sorted(folder.glob("*.py")):
        source = file.read_text(errors="replace")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef) or not 2 <= (node.end_lineno or 0) - node.lineno + 1 <= 5:
                continue
            code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            path, wrong = f"lib/{file.name}", lines[(node.end_lineno or 0) - 1].strip()
            yield f"{path}:\n{code}\n{KINDS[number % len(KINDS)]} is wrong in this line of {path}:\n{wrong}"
            number += 1


def workload(model: Path, rows: int) -> Workload:
    """`rows` prompts, no two alike. Raises RuntimeError where the standard library has too few short functions."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    renderer = XmlRenderer(tokenizer)

    def ids(statement: str) -> list[int]:
        return renderer.prompt_ids(POCKET.messages(statement), TOOLS)

    one, two = ids("a"), ids("Zebra: 7")  # as `Session._static_prefix` finds it
    prefix = one[: common_prefix([tuple(one), tuple(two)])]
    prompts: dict[tuple[int, ...], list[int]] = {}
    for i, statement in enumerate(_statements()):
        if i % 7:  # neighbours are too much alike
            continue
        prompt = ids(statement)
        if len(prompt) - len(prefix) in OWN and prompt[: len(prefix)] == prefix:
            prompts[tuple(prompt)] = prompt
        if len(prompts) == rows:
            return Workload(prefix, list(prompts.values()))
    raise RuntimeError(
        f"{len(prompts)} statements of {rows} found in {sysconfig.get_path('stdlib')}: ask for fewer rows"
    )
