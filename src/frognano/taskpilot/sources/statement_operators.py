"""Operators on statements: dropped, without its value, its condition turned round, leaving the loop the wrong way."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from frognano.taskpilot.sources.operators import Place
from frognano.taskpilot.sources.source import Edit


def dropped_statement(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """A plain statement goes with its whole line; where it is the only one of its block, ``pass`` stands for it."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1 or place.inside(cst.While):
        return
    statement = node.body[0]
    if isinstance(statement, cst.Pass | cst.Raise | cst.Return | cst.Global | cst.Nonlocal | cst.Assert):
        return
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.SimpleString | cst.Ellipsis):
        return
    block = place.parent
    start, end = place.source.span(node)
    if not isinstance(block, cst.IndentedBlock):
        return
    rest = [s for s in block.body if s is not node]
    if all(_is_text(s) for s in rest):
        yield Edit(start, end, "pass")
        return
    first, last = place.source.line_of(start), place.source.line_of(end)
    starts = place.source.line_starts
    if first == last and last < len(starts):
        yield Edit(starts[first - 1], starts[last], "")


def _is_text(statement: cst.BaseStatement) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    return all(isinstance(s, cst.Expr) and isinstance(s.value, cst.SimpleString) for s in statement.body)


def dropped_return(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """The value is computed but not returned, or None is returned for it."""
    if isinstance(node, cst.Return) and node.value is not None and place.source.code(node.value) != "None":
        start, end = place.source.whole(node.value)
        yield Edit(start, end, "None")
        if isinstance(node.value, cst.Call) and not place.inside(cst.If, cst.While):
            yield Edit(place.source.span(node)[0], start, "")


def inverted_condition(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """The two ends of a conditional change places, or a test is negated as a whole."""
    source = place.source
    if isinstance(node, cst.IfExp):
        a0, a1 = source.whole(node.body)
        b0, b1 = source.whole(node.orelse)
        if source.text[a0:a1] != source.text[b0:b1]:
            yield Edit(a0, b1, source.text[b0:b1] + source.text[a1:b0] + source.text[a0:a1])
    elif isinstance(node, cst.If | cst.CompIf):
        start, end = source.whole(node.test)
        test = source.text[start:end]
        if isinstance(node.test, cst.UnaryOperation) and isinstance(node.test.operator, cst.Not):
            return  # `negation` drops it
        simple = isinstance(node.test, cst.Name | cst.Call | cst.Attribute | cst.Subscript)
        if simple or node.test.lpar:
            yield Edit(start, end, f"not {test}")
        elif isinstance(node.test, cst.BooleanOperation):
            yield Edit(start, end, f"not ({test})")


def loop_control(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if isinstance(node, cst.Break | cst.Continue) and not place.inside(cst.While):
        start, end = place.source.span(node)
        yield Edit(start, end, "continue" if isinstance(node, cst.Break) else "break")
