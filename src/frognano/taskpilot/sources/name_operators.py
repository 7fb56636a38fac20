"""Operators on names: another variable, another attribute or method, another function, arguments in the wrong order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from frognano.taskpilot.sources.operators import Place
from frognano.taskpilot.sources.source import Edit


def _pairs(*groups: str) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for group in groups:
        names = group.split()
        for name in names:
            table[name] = (*table.get(name, ()), *(other for other in names if other != name))
    return table


# Methods and functions that people take for one another.
SIBLING_METHODS = _pairs(
    "startswith endswith", "lower upper", "append extend", "lstrip rstrip strip", "split rsplit",
    "partition rpartition", "find rfind",
    "index rindex", "ljust rjust", "keys values items", "add discard", "update add", "pop popleft",
    "appendleft append", "match search fullmatch", "capitalize title", "encode decode", "union intersection",
    "issubset issuperset", "difference symmetric_difference", "removeprefix removesuffix", "isdigit isalpha isalnum",
    "islower isupper", "floor ceil", "bisect_left bisect_right", "findall finditer", "start end", "get pop",
)  # fmt: skip
SIBLING_FUNCTIONS = _pairs(
    "min max", "any all", "sum len", "sorted reversed", "int float", "str repr", "list tuple", "set frozenset",
    "hasattr getattr", "map filter", "next iter", "floor ceil", "abs int",
    "takewhile dropwhile", "islice chain", "imap ifilter", "zip_longest zip",
)  # fmt: skip


def _read(node: cst.Name, place: Place) -> bool:
    """The name is an expression that is read: no target, keyword, attribute, parameter or called function."""
    parent = place.parent
    if isinstance(parent, cst.Arg):
        return parent.value is node
    if isinstance(parent, cst.Call):
        return parent.func is not node
    if isinstance(parent, cst.Attribute | cst.Subscript):
        return parent.value is node
    if isinstance(parent, cst.CompFor | cst.For):
        return parent.iter is node
    if isinstance(parent, cst.NamedExpr | cst.AnnAssign | cst.AugAssign):
        return parent.value is node
    if isinstance(parent, cst.Element | cst.Tuple | cst.List | cst.StarredElement):
        return not place.inside(cst.AssignTarget, cst.Del) and not _in_loop_target(place)
    refused = (
        cst.AssignTarget, cst.Param, cst.NameItem, cst.Del, cst.AsName, cst.Annotation, cst.ExceptHandler,
        cst.FunctionDef, cst.ClassDef, cst.ImportAlias,
    )  # fmt: skip
    return not isinstance(parent, refused)


def _in_loop_target(place: Place) -> bool:
    loops = (cst.CompFor, cst.For)
    return any(isinstance(outer, loops) and outer.target is inner for outer, inner in pairwise(place.parents))


def wrong_name(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """Another parameter or local that is bound by now. The two nearest in the order of binding."""
    if not isinstance(node, cst.Name) or node.value not in place.scope or not _read(node, place):
        return
    here = place.scope.index(node.value)
    others = sorted((abs(i - here), i) for i in range(len(place.scope)) if i != here)
    start, end = place.source.span(node)
    for _, i in others[:2]:
        yield Edit(start, end, place.scope[i])


def wrong_attribute(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """A sibling method, else another attribute that this file takes from the same name, of the same case."""
    if not isinstance(node, cst.Attribute):
        return
    start, end = place.source.span(node.attr)
    name = node.attr.value
    siblings = SIBLING_METHODS.get(name, ())
    if not siblings and isinstance(node.value, cst.Name):
        used = place.attributes.get(node.value.value, ())
        kind = (name.startswith("_"), name.islower())
        alike = [u for u in used if u != name and (u.startswith("_"), u.islower()) == kind and not u.startswith("__")]
        siblings = tuple(sorted(alike, key=lambda u: (-len(_common(u, name)), u)))[:2]
    for sibling in siblings[:2]:
        yield Edit(start, end, sibling)


def _common(a: str, b: str) -> str:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def wrong_function(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        start, end = place.source.span(node.func)
        for sibling in SIBLING_FUNCTIONS.get(node.func.value, ())[:2]:
            yield Edit(start, end, sibling)


def swapped_arguments(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """Two neighbouring positional arguments change places."""
    if not isinstance(node, cst.Call):
        return
    text = place.source.text
    for first, second in pairwise(node.args):
        if first.star or second.star or first.keyword or second.keyword:
            continue
        a0, a1 = place.source.whole(first.value)
        b0, b1 = place.source.whole(second.value)
        if isinstance(second.value, cst.GeneratorExp) and not second.value.lpar:
            continue
        if text[a0:a1] != text[b0:b1]:
            yield Edit(a0, b1, text[b0:b1] + text[a1:b0] + text[a0:a1])


def unwrapped_call(node: cst.CSTNode, place: Place) -> Iterator[Edit]:
    """``return f(x)`` loses the call and returns x; so do assigned values."""
    value = getattr(node, "value", None)
    if not isinstance(node, cst.Return | cst.Assign) or not isinstance(value, cst.Call) or len(value.args) != 1:
        return
    arg = value.args[0]
    odd = (cst.GeneratorExp, cst.SimpleString, cst.Integer)
    if not arg.star and arg.keyword is None and not isinstance(arg.value, odd):
        start, end = place.source.whole(value)
        yield Edit(start, end, place.source.whole_code(arg.value))
