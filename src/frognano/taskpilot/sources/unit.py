"""Unit: a function or method that a bug may be put in, and the walk over the places inside it.

A nested function belongs to the function around it: tasks are grouped and split by unit, so the two must not part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from frognano.taskpilot.sources.operators import Place
from frognano.taskpilot.sources.source import Source, split_lines


@dataclass(frozen=True, eq=False)
class Unit:
    name: str
    node: cst.FunctionDef
    first_line: int
    def_line: int
    last_line: int
    code_lines: int


def units(source: Source) -> Iterator[Unit]:
    """Functions of the module and methods of its classes, in order; none under TYPE_CHECKING or ``if __name__``."""
    lines = split_lines(source.text)
    for name, node in _definitions(source.module, ""):
        if any(source.code(d.decorator).split(".")[-1] == "overload" for d in node.decorators):
            continue
        first, last = source.lines(node)
        decorated = min([first, *(source.lines(d)[0] for d in node.decorators)])
        body_first = first if not isinstance(node.body, cst.IndentedBlock) else _end_of_docstring(source, node.body)
        header = 1 if isinstance(node.body, cst.IndentedBlock) else 0
        body = [line.strip() for line in lines[body_first - 1 + header : last]]
        code = sum(1 for line in body if line and not line.startswith("#"))
        yield Unit(name, node, decorated, _def_line(source, node), last, code + header)


def _def_line(source: Source, node: cst.FunctionDef) -> int:
    return source.lines(node.asynchronous or node.name)[0]


def _end_of_docstring(source: Source, body: cst.IndentedBlock) -> int:
    """The line before the body's first statement that is not a docstring."""
    first = body.body[0]
    if _docstring(first):
        return source.lines(first)[1]
    return source.lines(first)[0] - 1


def _docstring(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine | cst.SimpleStatementSuite):
        return False
    strings = (cst.SimpleString, cst.ConcatenatedString)
    return all(isinstance(s, cst.Expr) and isinstance(s.value, strings) for s in node.body)


def _definitions(node: cst.CSTNode, prefix: str) -> Iterator[tuple[str, cst.FunctionDef]]:
    body = node.body if isinstance(node, cst.Module | cst.IndentedBlock) else ()
    for child in body if isinstance(body, list | tuple) else ():
        if isinstance(child, cst.FunctionDef):
            yield prefix + child.name.value, child
        elif isinstance(child, cst.ClassDef):
            yield from _definitions(child.body, f"{prefix}{child.name.value}.")
        elif isinstance(child, cst.If):
            guard = {n.value for n in _names(child.test)}
            if not guard & {"TYPE_CHECKING", "__name__"}:
                yield from _definitions(child.body, prefix)
            if isinstance(child.orelse, cst.Else):
                yield from _definitions(child.orelse.body, prefix)
        elif isinstance(child, cst.Try):
            yield from _definitions(child.body, prefix)


class _NameCollector(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[cst.Name] = []

    def visit_Name(self, node: cst.Name) -> None:
        self.names.append(node)


def _names(node: cst.CSTNode) -> list[cst.Name]:
    collector = _NameCollector()
    node.visit(collector)
    return collector.names


# Nothing below these is touched: types, messages of errors, checks, imports, decorators, parameters and their defaults.
_CLOSED = (
    cst.Annotation, cst.Raise, cst.Assert, cst.Import, cst.ImportFrom, cst.Decorator, cst.Parameters, cst.Global,
    cst.Nonlocal,
)  # fmt: skip


class _Walk(cst.CSTVisitor):
    def __init__(self, source: Source, unit: Unit, attributes: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.source, self.unit, self.attributes = source, unit, attributes
        self.parents: list[cst.CSTNode] = []
        self.bound: list[dict[str, None]] = []
        self.found: list[tuple[cst.CSTNode, Place, int]] = []
        self.statement_line = unit.def_line

    def on_visit(self, node: cst.CSTNode) -> bool:
        closed = isinstance(node, _CLOSED) or _docstring(node) or _dunder(node)
        if isinstance(node, cst.FunctionDef):
            params = node.params
            every = [*params.posonly_params, *params.params, *params.kwonly_params]
            every += [p for p in (params.star_arg, params.star_kwarg) if isinstance(p, cst.Param)]
            self.bound.append({p.name.value: None for p in every if p.name.value not in ("self", "cls")})
        elif isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement | cst.SimpleStatementLine):
            self.statement_line = self.source.lines(node)[0]
        if not closed and node in self.source.positions:
            names = tuple(dict.fromkeys(n for scope in self.bound for n in scope))
            place = Place(self.source, tuple(self.parents), names, self.attributes)
            self.found.append((node, place, self.statement_line))
        self.parents.append(node)
        return not closed

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self.parents.pop()
        if isinstance(original_node, cst.FunctionDef):
            self.bound.pop()
        elif isinstance(original_node, cst.AssignTarget) or (
            isinstance(original_node, cst.BaseExpression)
            and self.parents
            and isinstance(self.parents[-1], cst.For)
            and self.parents[-1].target is original_node
        ):
            target = original_node.target if isinstance(original_node, cst.AssignTarget) else original_node
            if isinstance(target, cst.Name | cst.Tuple | cst.List):
                self.bound[-1].update({n.value: None for n in _names(target)})


def _dunder(node: cst.CSTNode) -> bool:
    """``if __name__ …``, ``__version__ = …`` and type-checking blocks, wherever they stand."""
    if isinstance(node, cst.If):
        return bool({n.value for n in _names(node.test)} & {"TYPE_CHECKING", "__name__"})
    if isinstance(node, cst.Assign):
        return any(n.value.startswith("__version") for t in node.targets for n in _names(t.target))
    return False


def sites(
    source: Source, unit: Unit, attributes: Mapping[str, tuple[str, ...]]
) -> list[tuple[cst.CSTNode, Place, int]]:
    """Every open node of the function with its place and the first line of its statement."""
    walk = _Walk(source, unit, attributes)
    unit.node.visit(walk)
    return walk.found
