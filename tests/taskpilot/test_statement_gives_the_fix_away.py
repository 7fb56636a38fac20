"""The ladder: no rung holds the gold line or names a hidden test, code is shown letter by letter."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from frognano.taskpilot.example import FailingExample, read_example
from frognano.taskpilot.ladder import RUNGS, StatementRefused, Style, ladder, leaks, lint
from frognano.taskpilot.sources.mutation import Mutation, propose
from frognano.taskpilot.sources.mutation_config import MutationConfig

SOURCE = '''\
def clamp(x, low, high):
    """Return x within bounds. Never fails.

    More text.
    """
    # order matters
    if x < low:
        return low
    return min(x, high)
'''
TESTS = ("tests/test_clamp.py::test_clamp_low[1-2]", "tests/test_clamp.py::TestClamp::test_high")
STYLES: tuple[Style, ...] = ("plain", "pocket")


def mutations(source: str, operator: str) -> list[Mutation]:
    config = MutationConfig.model_validate({"operators": (operator,), "max_per_function": 99})
    return list(propose({"pkg/clamp.py": source.encode()}, {"pkg/clamp.py": set(range(1, 99))}, 0, config))


EXAMPLE = read_example(
    "AssertionError", "assert 3 == 1\n +  where 3 = clamp(0, 1, 3)", "    assert clamp(0, 1, 3) == 1"
)


def test_the_example_is_read_from_the_failing_line() -> None:
    assert (EXAMPLE.call, EXAMPLE.expected, EXAMPLE.actual) == ("clamp(0, 1, 3)", "1", "3")
    unit = read_example("AssertionError", "AssertionError: 3 != 1", "self.assertEqual(1, clamp(0, 1, 3))")
    assert (unit.call, unit.expected) == ("clamp(0, 1, 3)", "1")
    odd = read_example("KeyError", "KeyError: 'x'\nat /tmp/box/x/pkg/a.py", "for a in")
    assert (odd.call, odd.says) == ("", "KeyError: 'x'")


@pytest.mark.parametrize("style", STYLES)
def test_each_rung_says_what_it_should_and_no_more(style: Style) -> None:
    mutation = next(m for m in mutations(SOURCE, "comparison") if m.line == 7)
    rungs = ladder(mutation, EXAMPLE, TESTS, style)
    assert [s.name for s in rungs] == list(RUNGS)
    said = [s.text for s in rungs]
    assert all("pkg/clamp.py" not in t for t in said[:2])
    assert all("pkg/clamp.py" in t for t in said[2:])
    assert "clamp" not in said[0]
    assert "Return x within bounds." in said[1]
    assert all("if x > low:" not in t for t in said[:3])
    assert all("    if x > low:\n        return low" in t for t in said[3:])
    assert all("`if x > low:`" in t or t.endswith(":\nif x > low:") for t in said[4:])
    assert "`if x > low:`" not in said[3]
    assert "comparison" in said[5]
    assert "comparison" not in said[4]


def test_pocket_statements_are_short_and_leave_the_docstring_out() -> None:
    mutation = next(m for m in mutations(SOURCE, "comparison") if m.line == 7)
    plain, pocket = (ladder(mutation, EXAMPLE, TESTS, style) for style in STYLES)
    assert "Never fails" not in pocket[4].text
    assert all(len(b.text) < len(a.text) for a, b in zip(plain, pocket, strict=True))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("operator", ["dropped_statement", "off_by_one", "negation", "wrong_name", "constant"])
def test_no_rung_of_real_mutations_holds_gold(style: Style, operator: str) -> None:
    raw = Path(textwrap.__file__).read_bytes()
    config = MutationConfig.model_validate({"operators": (operator,), "max_per_function": 3})
    told = refused = 0
    for mutation in propose({"t.py": raw}, {"t.py": set(range(1, 600))}, 0, config):
        try:
            rungs = ladder(mutation, EXAMPLE, TESTS, style)
        except StatementRefused as refusal:
            refused += refusal.reason == "statement_leak"
            continue
        told += 1
        shown = mutation.new_source.decode().splitlines()
        for statement in rungs:
            assert "".join(mutation.before_line.split()) not in "".join(statement.text.split())
        for line in rungs[4].text.splitlines():
            if line.startswith("    "):
                assert line in shown
    assert told > refused


def test_a_gold_line_elsewhere_in_the_code_is_cut_from_what_is_shown() -> None:
    source = "def g(a, b):\n    if a:\n        b = a + 1\n        return b\n    b = a + 1\n    return a, b\n"
    mutation = next(m for m in mutations(source, "arithmetic") if m.line == 3)
    for style in STYLES:
        text = ladder(mutation, EXAMPLE, TESTS, style)[4].text
        assert not leaks(text, [mutation.before_line])
        assert "b = a - 1" in text


def test_a_faulty_line_that_contains_its_own_repair_is_refused() -> None:
    source = "def g(a):\n    b = 1\n    return len(a)\n"
    mutation = Mutation(
        "off_by_one", "m.py", "g", 3, 4, "    return len(a)", "    return len(a) - 1", 1, 3,
        source.replace("len(a)", "len(a) - 1").encode(),
    )  # fmt: skip
    with pytest.raises(StatementRefused, match="statement_leak"):
        ladder(mutation, EXAMPLE, TESTS, "pocket")


def test_a_message_that_names_the_hidden_test_is_refused() -> None:
    mutation = mutations(SOURCE, "comparison")[0]
    example = FailingExample("RuntimeError", "in test_clamp_low: bad", "clamp(0, 1, 3)")
    with pytest.raises(StatementRefused, match="test_clamp_low"):
        ladder(mutation, example, TESTS, "plain")


def test_leaks_sees_through_blanks_and_lint_through_parameters() -> None:
    assert leaks("so:\n  return   a+b", ["    return a + b"])
    assert not leaks("return a - b", ["return a + b", ""])
    assert lint("see test_high", TESTS) == ["test_high"]
    assert lint("see tests/test_clamp.py", TESTS) == ["tests/test_clamp.py"]
    assert lint("the highest", TESTS) == []
