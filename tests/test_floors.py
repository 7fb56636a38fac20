"""Imports only go down: the floors of docs/architecture.md, and what each room must never import."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "frognano"

FLOORS = [
    {"errors", "stopwatch", "records"},
    {"runs", "models", "sandbox"},
    {"harness", "tasks"},
    {"rollouts"},
    {"rl", "taskpilot"},
    {"analysis"},
    {"loop"},
    {"cli"},
]
NEVER = {
    "sandbox": {"torch"},
    "tasks": {"torch"},
    "harness": {"torch"},
    "rollouts": {"torch"},
    "taskpilot": {"torch"},
    "analysis": {"torch"},
    "rl": {"typer", "rich"},
}
"""Besides what the floors rule out. `transformers` brings torch along and is ruled out with it."""

ROOMS = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.stem in ("errors", "stopwatch"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, path: Path) -> Iterator[str]:
    """Every imported module by its full name, wherever in the file it is imported; types-only imports do not count."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {inner for statement in node.body for inner in ast.walk(statement)}
    package = ["frognano", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "frognano" else [module]


def breaches(room: str, names: Iterator[str]) -> list[str]:
    found = []
    for name in names:
        top, *rest = name.split(".")
        if top == "frognano" and rest and rest[0] in ROOMS:
            if rest[0] != room and ROOMS[rest[0]] >= ROOMS[room]:
                found.append(f"{room} (floor {ROOMS[room]}) imports {name} (floor {ROOMS[rest[0]]})")
        elif top in NEVER.get(room, set()) or (top == "transformers" and "torch" in NEVER.get(room, set())):
            found.append(f"{room} imports {name}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_only_go_down(path: Path):
    room = room_of(path)
    assert room in ROOMS, f"{room} has no floor: give it one here and in docs/architecture.md"
    assert breaches(room, imports(ast.parse(path.read_text()), path)) == []


def test_the_check_sees_a_breach():
    path = SOURCE / "tasks" / "leaf" / "x.py"
    source = "from ...rl import dppo\nfrom frognano import loop\nimport torch.nn\ndef f():\n import frognano.cli.app"
    assert breaches("tasks", imports(ast.parse(source), path)) == [
        "tasks (floor 2) imports frognano.rl (floor 4)",
        "tasks (floor 2) imports frognano.loop (floor 6)",
        "tasks imports torch.nn",
        "tasks (floor 2) imports frognano.cli.app (floor 7)",
    ]


def test_the_floors_are_those_of_the_map():
    text = (ROOT / "docs" / "architecture.md").read_text()
    sentence = re.search(r"Floors, imports only go down: (.*?)\.\s", text, re.DOTALL)
    assert sentence
    floors = [set(re.findall(r"`(\w+)`", part)) for part in sentence[1].split("→")]
    assert floors[::-1] == [floor - {"errors", "stopwatch"} for floor in FLOORS]


def test_every_file_says_what_it_is():
    silent = [
        str(p.relative_to(SOURCE))
        for p in MODULES
        if p.stat().st_size and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert [p for p in silent if not p.endswith("__init__.py")] == []


@pytest.mark.parametrize("folder", ["benchmarks", "scripts"])
def test_a_script_hides_a_module_of_the_standard_library(folder: str):
    """Python looks beside a script first: a profile.py there broke every script that imports torch."""
    assert sorted({p.stem for p in (ROOT / folder).glob("*.py")} & sys.stdlib_module_names) == []
