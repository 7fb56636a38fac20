"""The failing example: what a hidden test called, what it expected and what came instead."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FailingExample:
    """One failure of a hidden test. ``source_line`` is the statement that failed, without the test's name."""

    exception: str
    message: str
    source_line: str
    call: str = ""
    expected: str = ""
    actual: str = ""

    @property
    def says(self) -> str:
        """The first line of the message without folders, short."""
        first = next((line.strip() for line in self.message.splitlines() if line.strip()), "")
        first = re.sub(r"(?:/[\w.+-]+)+/(?=[\w.+-])", "", first)
        return first if len(first) <= 160 else first[:157] + "..."


def read_example(exception: str, message: str, source_line: str) -> FailingExample:
    """Fill call, expected and actual from ``assert f(x) == y`` or ``assertEqual(f(x), y)`` and the message."""
    line = source_line.strip()
    left, right = _sides(line)
    if "(" in right and "(" not in left:
        left, right = right, left
        swapped = True
    else:
        swapped = False
    shown = re.search(
        r"(?:assert|AssertionError:)\s+(.+?) (?:==|!=|is) (.+)", message.splitlines()[0] if message else ""
    )
    actual = (shown.group(2) if swapped else shown.group(1)) if shown and right else ""
    actual = re.sub(r"^assert ", "", actual)
    return FailingExample(exception, message, line, left, right, actual if len(actual) <= 120 else "")


def _sides(line: str) -> tuple[str, str]:
    try:
        body = ast.parse(line).body
    except SyntaxError:
        return "", ""
    statement = body[0] if body else None
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is):
            return ast.unparse(test.left), ast.unparse(test.comparators[0])
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return ast.unparse(test.operand), "False"
        return (ast.unparse(test), "True") if isinstance(test, ast.Call) else ("", "")
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("assertEqual", "assertEquals")
            and len(call.args) > 1
        ):
            return ast.unparse(call.args[0]), ast.unparse(call.args[1])
    return "", ""
