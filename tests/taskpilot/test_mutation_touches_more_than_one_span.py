"""A mutation that re-renders the file, breaks it, or lands in a test, a docstring or an annotation."""

from __future__ import annotations

import ast
import bisect
import codecs
import colorsys
import textwrap
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frognano.taskpilot.sources.mutation import Mutation, propose
from frognano.taskpilot.sources.mutation_config import KINDS, OPERATORS, POCKET, MutationConfig
from frognano.taskpilot.sources.site import is_source

STDLIB = [Path(m) for m in (bisect.__file__, textwrap.__file__, colorsys.__file__)]
WIDE = MutationConfig.model_validate({"max_per_function": 99, "max_function_lines": 400})


def mutants(
    text: str | bytes, config: MutationConfig = WIDE, path: str = "pkg/mod.py", seed: int = 0
) -> list[Mutation]:
    raw = text.encode() if isinstance(text, str) else text
    lines = set(range(1, raw.count(b"\n") + raw.count(b"\r") + 3))
    return list(propose({path: raw}, {path: lines}, seed, config))


def assert_one_span(old: bytes, mutation: Mutation) -> None:
    new = mutation.new_source
    assert new != old
    prefix = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    suffix = 0
    while suffix < min(len(old), len(new)) - prefix and old[-1 - suffix] == new[-1 - suffix]:
        suffix += 1
    changed = old[prefix : len(old) - suffix] + new[prefix : len(new) - suffix]
    assert len(changed) <= len(mutation.before_line.encode()) + len(mutation.after_line.encode()) + 4
    assert old[:prefix].count(b"\n") in (mutation.line - 1, mutation.line)
    assert ast.dump(ast.parse(old)) != ast.dump(ast.parse(new))


@pytest.mark.parametrize("path", STDLIB, ids=lambda p: p.stem)
def test_every_mutation_of_a_real_file_compiles_and_differs_in_one_span(path: Path) -> None:
    raw = path.read_bytes()
    found = list(islice(propose({"a.py": raw}, {"a.py": set(range(1, 2000))}, 0, WIDE), 24))
    assert len(found) >= 20
    for mutation in found:
        assert_one_span(raw, mutation)


BODY = """\
# -*- coding: {coding} -*-
\"\"\"Wörter: docstring with 1 < 2 and not True.\"\"\"
import os{gap}

def größe(a, b, text='é'):
    \"\"\"Say 1 + 1.\"\"\"
    name = 'ü' + str(a)  # Wert
    if a < b and name:
        return [a, 1][0]
    return b + 1
"""


@given(
    newline=st.sampled_from(["\n", "\r\n"]),
    coding=st.sampled_from(["utf-8", "latin-1", "cp1252"]),
    bom=st.booleans(),
    gap=st.sampled_from(["", "\n\x0c", "\n\n   \n"]),
    final=st.booleans(),
    seed=st.integers(0, 50),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_bytes_outside_the_span_stay(newline: str, coding: str, bom: bool, gap: str, final: bool, seed: int) -> None:
    coding = "utf-8" if bom else coding
    text = BODY.format(coding=coding, gap=gap).replace("\n", newline)
    raw = (codecs.BOM_UTF8 if bom else b"") + (text if final else text.rstrip()).encode(coding)
    found = mutants(raw, seed=seed)
    assert len(found) > 5
    for mutation in found:
        assert_one_span(raw, mutation)
        assert mutation.new_source.count(b"\r") in (raw.count(b"\r"), raw.count(b"\r") - 1)
        assert mutation.new_source.startswith(raw[:40])


EXAMPLES = {
    "comparison": ("return a == b", "return a != b"),
    "boundary": ("return a < b", "return a <= b"),
    "arithmetic": ("return a + b", "return a - b"),
    "boolean": ("return a and b", "return a or b"),
    "negation": ("return not a", "return a"),
    "constant": ("return f(a, None)", "return f(a, 0)"),
    "off_by_one": ("return a[1:]", "return a[2:]"),
    "augmented_assignment": ("a += b", "a -= b"),
    "swapped_arguments": ("return f(a, b)", "return f(b, a)"),
    "wrong_name": ("return a * 7", "return b * 7"),
    "wrong_attribute": ("return a.startswith(b)", "return a.endswith(b)"),
    "wrong_function": ("return min(a)", "return max(a)"),
    "unwrapped_call": ("return list(a)", "return a"),
    "dropped_statement": ("a.sort()", ""),
    "dropped_return": ("return a.b", "return None"),
    "inverted_condition": ("return a if b else 5", "return 5 if b else a"),
    "loop_control": ("for x in a: break", "for x in a: continue"),
}


def test_no_operator_is_without_an_example_and_a_kind() -> None:
    assert set(EXAMPLES) == set(OPERATORS) == set(KINDS)


@pytest.mark.parametrize("operator", EXAMPLES)
def test_the_operator_finds_its_example(operator: str) -> None:
    before, after = EXAMPLES[operator]
    config = MutationConfig.model_validate({"operators": (operator,), "max_per_function": 99})
    found = mutants(f"def g(a, b):\n    {before}\n    return (a, b)\n", config)
    assert after in [m.after_line.strip() for m in found]
    assert all(m.operator == operator and m.function == "g" for m in found)


def test_a_line_that_no_test_reaches_is_never_touched() -> None:
    text = b"def g(a):\n    b = a + 1\n    return b < 3\n"
    assert {m.line for m in propose({"m.py": text}, {"m.py": {2}}, 0, WIDE)} == {2}
    assert list(propose({"m.py": text}, {}, 0, WIDE)) == []


FORBIDDEN = '''\
from typing import TYPE_CHECKING, Optional, overload
import os
__version__ = "1.0"
LIMIT = 1 + 1
if TYPE_CHECKING:
    def hidden(a):
        return a + 1
@overload
def typed(a: int) -> int:
    return a + 1
def g(a: Optional["int"] = None, n=1) -> "dict[str, None]":
    """True and not 1 < 2."""
    x: "list[None]" = h(a)
    assert n == 1
    if n > 1:
        raise ValueError(1 + 1, None)
    return x
if __name__ == "__main__":
    def main(a):
        return a + 1
'''


def test_docstrings_annotations_guards_and_checks_stay() -> None:
    found = mutants(FORBIDDEN)
    assert {m.function for m in found} == {"g"}
    assert {m.line for m in found} <= {13, 15, 17}
    for m in found:
        assert '"list[None]"' in m.new_source.decode() or m.operator == "dropped_statement"


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_a.py",
        "pkg/test_a.py",
        "pkg/tests/util.py",
        "conftest.py",
        "a_test.py",
        "setup.py",
        "docs/conf.py",
        "a.txt",
    ],
)
def test_files_of_tests_and_builds_are_no_source(path: str) -> None:
    assert not is_source(path)
    assert mutants("def g(a):\n    b = a + 1\n    return b\n", path=path) == []


def test_a_file_that_does_not_parse_stops_nothing() -> None:
    files = {
        "bad.py": b"def f(:\n",
        "worse.py": b"# coding: latin-9000\n",
        "good.py": b"def g(a):\n    b = a + 1\n    return b\n",
    }
    lines = {name: {1, 2, 3} for name in files}
    assert {m.file for m in propose(files, lines, 0, WIDE)} == {"good.py"}


def test_a_faulty_line_that_an_edit_cannot_name_is_not_proposed() -> None:
    text = "def g(a):\n    b = a + 1\n    return b\n\n\ndef h(a):\n    b = a - 1\n    return b\n"
    config = MutationConfig.model_validate({"operators": ("arithmetic",), "unique_line": True})
    assert mutants(text, config) == []
    assert len(mutants(text, config.model_copy(update={"unique_line": False}))) == 2


def test_pocket_filters_hold_on_what_is_proposed() -> None:
    raw = Path(textwrap.__file__).read_bytes()
    for m in propose({"a.py": raw}, {"a.py": set(range(1, 600))}, 1, POCKET):
        assert len(m.before_line) <= 88
        assert len(m.after_line) <= 88
        assert m.new_source.decode().count(m.after_line.strip()) == 1
        assert m.after_line in m.function_source


def test_one_big_function_or_operator_does_not_fill_the_queue() -> None:
    big = "def big(a, b):\n" + "".join(f"    x{i} = a.y{i} + b\n" for i in range(40)) + "    return x1\n"
    small = "".join(f"def s{i}(a, b):\n    c = a < b\n    return c\n" for i in range(5))
    first = mutants(big + small, WIDE.model_copy(update={"max_per_function": 4}))
    assert max(Counter(m.function for m in first).values()) <= 4
    assert len({m.operator for m in first[:5]}) >= 4
    assert {m.function for m in first} == {"big", *(f"s{i}" for i in range(5))}


def test_the_same_seed_gives_the_same_order_and_another_does_not() -> None:
    raw = Path(bisect.__file__).read_bytes()
    runs = [[(m.operator, m.line, m.column, m.new_source) for m in mutants(raw, seed=s)] for s in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_misspelt_operator_is_named() -> None:
    with pytest.raises(ValueError, match="bondary"):
        MutationConfig.model_validate({"operators": ("bondary",)})
