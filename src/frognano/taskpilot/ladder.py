"""The statement ladder: one bug told at rising specificity, never with its repair.

0 symptom · 1 contract with the failing example · 2 file · 3 function with its code · 4 faulty line · 5 kind of
mistake. A statement that held the repair taught the policy to copy, not to repair (DESIGN.md): every rung is checked
against the gold lines. Where code around the bug happens to hold a gold line, that line is cut from what is shown; a
rung that cannot be told without it is refused (``statement_leak``).
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from frognano.records import Statement
from frognano.taskpilot.example import FailingExample
from frognano.taskpilot.sources.mutation import Mutation
from frognano.taskpilot.sources.mutation_config import KINDS
from frognano.taskpilot.sources.source import decode, split_lines

Style = Literal["plain", "pocket"]
RUNGS = ("symptom", "contract", "file", "function", "line", "kind")
CODE, LINE = RUNGS.index("function"), RUNGS.index("line")


class StatementRefused(ValueError):
    """No honest statement can be made. ``reason`` is the code for the ledger."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def leaks(statement: str, gold: Iterable[str]) -> bool:
    """A line of gold stands in the statement, whatever the blanks, be it as part of a longer line."""
    said = _bare(statement)
    return any(_bare(line) in said for line in gold if _bare(line))


def _bare(text: str) -> str:
    return re.sub(r"\s+", "", text)


def lint(statement: str, tests: Iterable[str]) -> list[str]:
    """What of the hidden tests is named verbatim: ids, files and functions."""
    found: list[str] = []
    for test in tests:
        path, _, rest = test.partition("::")
        name = re.sub(r"\[.*", "", rest, flags=re.S).split("::")[-1]
        for said in (test, path, name):
            if said and said not in found and re.search(rf"(?<![\w.]){re.escape(said)}(?!\w)", statement):
                found.append(said)
    return found


@dataclass(frozen=True, slots=True)
class _Code:
    """The function as the solver finds it: signature, first sentence of its docstring, and the lines to show."""

    signature: str
    sentence: str
    shown: tuple[tuple[int, str], ...]
    anchor: int


def ladder(mutation: Mutation, example: FailingExample, tests: Sequence[str], style: Style) -> tuple[Statement, ...]:
    """All rungs of one mutation. Raises ``StatementRefused`` if a rung leaks gold or names a hidden test."""
    gold = [mutation.before_line]
    code = _read(mutation, style)
    out: list[Statement] = []
    for rung, name in enumerate(RUNGS):
        text = next((t for t in _versions(rung, mutation, example, code, gold, style) if not leaks(t, gold)), None)
        if text is None:
            raise StatementRefused("statement_leak", f"rung {name} holds the gold line")
        if named := lint(text, tests):
            raise StatementRefused("statement_lint", f"rung {name} names {named[0]}")
        out.append(Statement(rung=rung, name=name, text=text))
    return tuple(out)


def _versions(
    rung: int, mutation: Mutation, example: FailingExample, code: _Code, gold: list[str], style: Style
) -> Iterable[str]:
    """The statement, then with less shown: without lines that hold gold, without prose, the faulty line alone."""
    render = _pocket if style == "pocket" else _plain
    yield render(rung, mutation, example, code)
    kept = tuple((n, line) for n, line in code.shown if n == code.anchor or not leaks(line, gold))
    yield render(rung, mutation, example, _Code(code.signature, code.sentence, kept, code.anchor))
    yield render(rung, mutation, example, _Code(code.signature, "", kept, code.anchor))
    alone = tuple((n, line) for n, line in kept if n == code.anchor)
    if rung >= CODE:
        yield render(rung, mutation, example, _Code(code.signature, "", alone, code.anchor))


def _read(mutation: Mutation, style: Style) -> _Code:
    lines = split_lines(decode(mutation.new_source))
    first, last = mutation.function_line, mutation.function_end
    block = lines[first - 1 : last]
    node = _definition(block)
    anchor = mutation.line if mutation.after_line else mutation.line - 1
    hidden: set[int] = set()
    if (doc := _docstring(node)) is not None and (style == "pocket" or doc[1] - doc[0] > 30):
        hidden = set(range(first + doc[0] - 1, first + doc[1]))
    shown = [(n, lines[n - 1]) for n in range(first, last + 1) if n not in hidden]
    if style == "pocket":
        shown = [(n, line) for n, line in shown if line.strip()]
    elif len(shown) > 80:
        shown = [(n, line) for n, line in shown if abs(n - anchor) <= 20]
    sentence = (ast.get_docstring(node) or "").split("\n\n")[0]
    sentence = re.split(r"(?<=[.!?])\s", " ".join(sentence.split()))[0]
    arguments = ast.unparse(node.args)
    return _Code(f"{mutation.function}({arguments})", sentence[:200], tuple(shown), anchor)


def _definition(block: list[str]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    tree = ast.parse("\n".join(["if 1:", *block] if block[0].lstrip("\f")[:1] in (" ", "\t") else ["", *block]))
    return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def _docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int] | None:
    """First and last line of the docstring, counted from 1 in the function (the parse has one line before it)."""
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is None or first.lineno == node.lineno:
        return None
    return first.lineno - 1, (first.end_lineno or first.lineno) - 1


def is_whole(line: str) -> bool:
    """A statement of its own, not the first line of a longer one."""
    try:
        ast.parse(line)
    except SyntaxError:
        return False
    return bool(line)


def _happened(example: FailingExample) -> str:
    if example.exception in ("AssertionError", ""):
        if example.actual and example.expected:
            return f"expected `{example.expected}`, got `{example.actual}`"
        return f"a result is wrong: {example.says}" if example.says else "a result is wrong"
    return f"{example.exception}: {example.says}" if example.says else example.exception


def _contract(example: FailingExample) -> str:
    if example.call and example.expected:
        tail = f", not `{example.actual}`" if example.actual else ""
        crash = f", but {_happened(example)}" if example.exception not in ("AssertionError", "") else ""
        return f"`{example.call}` must be `{example.expected}`{tail}{crash}."
    happened = _happened(example)
    return f"`{example.source_line}` fails: {happened}." if is_whole(example.source_line) else f"{happened}."


def _lines(code: _Code) -> str:
    """Shown code with its indentation; a cut is visible as a gap, never as invented text."""
    return "\n".join(line for _, line in code.shown)


def _fault(code: _Code) -> str:
    return next((line.strip() for n, line in code.shown if n == code.anchor), "")


def _pocket(rung: int, mutation: Mutation, example: FailingExample, code: _Code) -> str:
    name = mutation.file
    if rung == 0:
        return f"Bug: {_happened(example)}."
    if rung < CODE:
        where = f"\nFix {name}." if rung == 2 else ""
        said = f" {code.sentence}" if code.sentence else ""
        return f"`{code.signature}`:{said}\nBug: {_contract(example)}{where}"
    if rung < LINE:
        fails = f"`{example.source_line}` fails" if is_whole(example.source_line) else _happened(example)
        return f"{name}:\n{_lines(code)}\nBug: {fails}.\nFix {name}."
    # Measured on the base model with the whole function shown: no assertion, and the line at the very end, doubled the share of
    # replies that copy path and line without a slip. The window gave as many right replies as the whole function.
    what = KINDS[mutation.operator] if rung > LINE else "A mistake is"
    where = "in" if mutation.after_line else "after"
    return f"{name}:\n{_lines(_window(code))}\n{what} {where} this line of {name}:\n{_fault(code)}"


def _window(code: _Code) -> _Code:
    """The signature and the two lines before and after the faulty one."""
    signature = next((n for n, line in code.shown if line.lstrip().startswith(("def ", "async def "))), 0)
    near = tuple((n, line) for n, line in code.shown if n == signature or abs(n - code.anchor) <= 2)
    return _Code(code.signature, code.sentence, near, code.anchor)


def _plain(rung: int, mutation: Mutation, example: FailingExample, code: _Code) -> str:
    if rung == 0:
        return f"Something in this library is broken: {_happened(example)}. Find the cause and repair it."
    parts = [f"`{code.signature}` does not do what it should."]
    if code.sentence:
        parts.append(f"Documented behaviour: {code.sentence}")
    parts.append(f"Failing example: {_contract(example)}")
    if rung >= 2:
        kind = f" It shows as {example.exception}." if example.exception else ""
        parts.append(f"The fault is in `{mutation.file}`.{kind}")
    if rung >= CODE:
        parts.append(f"It is in the function `{mutation.function}`:\n\n```python\n{_lines(code)}\n```")
    if rung >= LINE:
        place = (
            f"Line {code.anchor} is wrong" if mutation.after_line else f"Something is missing after line {code.anchor}"
        )
        parts.append(f"{place}: `{_fault(code)}`.")
    if rung > LINE:
        parts.append(f"{KINDS[mutation.operator]}.")
    return "\n\n".join(textwrap.dedent(p) if "\n" not in p else p for p in parts)
