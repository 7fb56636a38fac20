"""Operators on values and expressions: each takes one node at its place and yields edits that make a mistake of it.

An operator is a function ``(node, place) -> Iterator[Edit]``; the file is only read. Names and statements are in
``name_operators.py`` and ``statement_operators.py``; the table of all of them is in ``mutation_config.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from frognano.taskpilot.sources.source import Edit, Source


@dataclass(frozen=True, eq=False)
class Place:
    """Where a node stands: its ancestors from the function inwards, and what is known of names there."""

    source: Source
    parents: tuple[cst.CSTNode, ...]
    scope: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]]

    @property
    def parent(self) -> cst.CSTNode | None:
        return self.parents[-1] if self.parents else None

    def inside(self, *kinds: type[cst.CSTNode]) -> bool:
        return any(isinstance(p, kinds) for p in self.parents)


Operator = Callable[[cst.CSTNode, Place], Iterator[Edit]]

_COMPARISON: dict[type[cst.BaseCompOp], str] = {
    cst.Equal: "!=",
    cst.NotEqual: "==",
    cst.LessThan: ">",
    cst.GreaterThan: "<",
    cst.LessThanEqual: ">=",
    cst.GreaterThanEqual: "<=",
    cst.Is: "is not",
    cst.IsNot: "is",
    cst.In: "not in",
    cst.NotIn: "in",
}
_BOUNDARY: dict[type[cst.BaseCompOp], str] = {
    cst.LessThan: "<=",
    cst.LessThanEqual: "<",
    cst.GreaterThan: ">=",
    cst.GreaterThanEqual: ">",
}
_ARITHMETIC: dict[type[cst.BaseBinaryOp], tuple[str, ...]] = {
    cst.Add: ("-",),
    cst.Subtract: ("+",),
    cst.Multiply: ("/", "+"),
    cst.Divide: ("*", "//"),
    cst.FloorDivide: ("/", "%"),
    cst.Modulo: ("//",),
    cst.Power: ("*",),
    cst.LeftShift: (">>",),
    cst.RightShift: ("<<",),
    cst.BitAnd: ("|",),
    cst.BitOr: ("&",),
    cst.BitXor: ("&",),
}
_AUGMENTED: dict[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "-=",
    cst.SubtractAssign: "+=",
    cst.MultiplyAssign: "/=",
    cst.DivideAssign: "*=",
    cst.FloorDivideAssign: "/=",
    cst.ModuloAssign: "//=",
    cst.BitAndAssign: "|=",
    cst.BitOrAssign: "&=",
    cst.LeftShiftAssign: ">>=",
    cst.RightShiftAssign: "<<=",
}


def _token(node: cst.CSTNode, new: str, place: Place) -> Edit:
    """Replace an operator token, keeping the blanks around it (a node of this sort spans only its token)."""
    start, end = place.source.span(node)
    code = place.source.text[start:end]
    return Edit(start + len(code) - len(code.lstrip()), start + len(code.rstrip()), new)


def comparison(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if isinstance(node, cst.BaseCompOp) and (new := _COMPARISON.get(type(node))):
        yield _token(node, new, place)


def boundary(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if isinstance(node, cst.BaseCompOp) and (new := _BOUNDARY.get(type(node))):
        yield _token(node, new, place)


def arithmetic(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if not isinstance(node, cst.BinaryOperation):
        return
    if "'" in place.source.code(node) or '"' in place.source.code(node):
        return  # formatting or joining of text: any other operator is a crash that says its own name
    for new in _ARITHMETIC.get(type(node.operator), ()):
        yield _token(node.operator, new, place)


def augmented_assignment(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if isinstance(node, cst.BaseAugOp) and not place.inside(cst.While) and (new := _AUGMENTED.get(type(node))):
        yield _token(node, new, place)


def boolean(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if isinstance(node, cst.And | cst.Or):
        yield _token(node, "or" if isinstance(node, cst.And) else "and", place)


def negation(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """Drop a ``not``, or put one before an operand of and/or and before a returned truth value."""
    source = place.source
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        yield Edit(source.span(node)[0], source.whole(node.expression)[0], "")
    elif isinstance(node, cst.BooleanOperation):
        for operand in (node.left, node.right):
            if isinstance(operand, cst.Name | cst.Call | cst.Attribute | cst.Subscript):
                start = source.whole(operand)[0]
                yield Edit(start, start, "not ")
    elif isinstance(node, cst.Return) and isinstance(node.value, cst.Call):
        name = source.code(node.value.func)
        if re.search(r"(^|[._])(is|has|can|any|all|isinstance|issubclass|callable|startswith|endswith)", name):
            start = source.whole(node.value)[0]
            yield Edit(start, start, "not ")


def constant(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if place.inside(cst.Slice, cst.Index, cst.FormattedStringExpression):
        return  # bounds belong to off_by_one; a quote inside an f-string may close it
    source = place.source
    start, end = source.span(node)
    code = source.text[start:end]
    if isinstance(node, cst.Name):
        if isinstance(place.parent, cst.ComparisonTarget) and node.value == "None":
            return  # `is False` for `is None` is no mistake that people make
        for new in {"True": ("False",), "False": ("True",), "None": ("False", "0")}.get(node.value, ()):
            yield Edit(start, end, new)
    elif isinstance(node, cst.UnaryOperation) and code == "-1":
        yield Edit(start, end, "1")
    elif isinstance(node, cst.Integer) and not isinstance(place.parent, cst.UnaryOperation):
        small = {"0": ("1",), "1": ("0", "2"), "2": ("1", "3"), "10": ("1", "100"), "60": ("100",), "100": ("10",)}
        for new in small.get(code, ()):
            yield Edit(start, end, new)
    elif isinstance(node, cst.SimpleString) and not isinstance(place.parent, cst.ConcatenatedString):
        for new in {"''": ("' '",), '""': ('" "',), "' '": ("''",), '" "': ('""',), "'_'": ("'-'",)}.get(code, ()):
            yield Edit(start, end, new)


def off_by_one(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """A number or a bound that is one too many or too few."""
    source = place.source
    if isinstance(node, cst.Integer):
        bound = place.inside(cst.Slice, cst.Index)
        value = int(source.code(node), 0)
        if not bound and (value > 99 or value < 3):
            return  # 0, 1 and 2 outside of bounds belong to `constant`; large numbers are rarely counts
        start, end = source.span(node)
        negative = isinstance(place.parent, cst.UnaryOperation) and isinstance(place.parent.operator, cst.Minus)
        for near in (value + 1, value - 1):
            if near > 0 or (near == 0 and not negative):
                yield Edit(start, end, str(near))
    elif isinstance(node, cst.Slice):
        for bound_node in (node.lower, node.upper):
            yield from _shifted(bound_node, place)
    elif isinstance(node, cst.Call) and source.code(node.func) == "range" and 1 <= len(node.args) <= 2:
        last = node.args[-1]
        if not last.star and last.keyword is None:
            yield from _shifted(last.value, place)
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Subtract):
        one = isinstance(node.right, cst.Integer) and source.whole_code(node.right) == "1"
        if one:
            yield Edit(source.whole(node.left)[1], source.span(node)[1], "")


def _shifted(node: cst.BaseExpression | None, place: Place) -> Iterator[Edit]:
    if isinstance(node, cst.Name | cst.Call | cst.Attribute):
        end = place.source.whole(node)[1]
        yield Edit(end, end, " - 1")
        yield Edit(end, end, " + 1")
