"""Source: one Python file as bytes, with the exact character span of every libcst node. Text: the same without the nodes.

The file is never rendered back. An edit is a span of the decoded text; it is spliced into the original bytes, so line
ends, encoding, byte order mark, form feeds and trailing blanks of everything else stay as they are.
"""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

_LINE_END = re.compile(r"\r\n|\r|\n")
_UNREADABLE = (SyntaxError, UnicodeError, LookupError)
"""What Python's own codecs say of a file with a wrong or unknown encoding."""


class UnreadableSource(ValueError):
    """The file does not decode, does not parse, or libcst does not give it back letter by letter."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``text[start:end]`` by ``new``; offsets in characters of the decoded file without its byte order mark."""

    start: int
    end: int
    new: str


@dataclass(frozen=True, eq=False)
class Text:
    """The file as characters and lines: all that placing an edit needs. Made without parsing anything."""

    path: str
    raw: bytes
    text: str
    encoding: str
    line_starts: tuple[int, ...]

    @classmethod
    def read(cls, path: str, raw: bytes) -> Self:
        """UnreadableSource where the file does not decode."""
        return cls(*_decoded(path, raw))

    def line_of(self, offset: int) -> int:
        """1-based number of the line that holds the character."""
        low, high = 0, len(self.line_starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.line_starts[middle] <= offset else (low, middle)
        return low + 1

    def splice(self, edit: Edit) -> bytes:
        """The file's bytes with one span replaced."""
        bom = codecs.BOM_UTF8 if self.raw.startswith(codecs.BOM_UTF8) else b""
        start = len(bom) + len(self.text[: edit.start].encode(self.encoding))
        end = start + len(self.text[edit.start : edit.end].encode(self.encoding))
        return self.raw[:start] + edit.new.encode(self.encoding) + self.raw[end:]


def _decoded(path: str, raw: bytes) -> tuple[str, bytes, str, str, tuple[int, ...]]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        text = raw.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except _UNREADABLE as error:
        raise UnreadableSource(f"{path}: {error}") from error
    return path, raw, text, encoding, (0, *(m.end() for m in _LINE_END.finditer(text)))


@dataclass(frozen=True, eq=False)
class Source(Text):
    module: cst.Module
    positions: Mapping[cst.CSTNode, CodeRange]

    @classmethod
    def read(cls, path: str, raw: bytes) -> Self:
        """UnreadableSource where the file does not decode or parse, or is not given back letter by letter."""
        path, raw, text, encoding, starts = _decoded(path, raw)
        try:
            module = cst.parse_module(text)
        except (*_UNREADABLE, cst.ParserSyntaxError, RecursionError) as error:
            raise UnreadableSource(f"{path}: {error}") from error
        if module.code != text:
            raise UnreadableSource(f"{path}: libcst does not reproduce the file, positions would be wrong")
        positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
        return cls(path, raw, text, encoding, starts, module, positions)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Characters of the node without its own parentheses."""
        r = self.positions[node]
        return self._offset(r.start), self._offset(r.end)

    def _offset(self, at: CodePosition) -> int:
        """libcst ends a file without a final newline in a line that is not there."""
        if at.line > len(self.line_starts):
            return len(self.text)
        return min(self.line_starts[at.line - 1] + at.column, len(self.text))

    def whole(self, node: cst.BaseExpression) -> tuple[int, int]:
        """Characters of the expression with its own parentheses."""
        start, end = self.span(node)
        lpar, rpar = getattr(node, "lpar", ()), getattr(node, "rpar", ())
        return (self.span(lpar[0])[0] if lpar else start), (self.span(rpar[-1])[1] if rpar else end)

    def code(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def whole_code(self, node: cst.BaseExpression) -> str:
        start, end = self.whole(node)
        return self.text[start:end]

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        r = self.positions[node]
        return r.start.line, min(r.end.line, len(self.line_starts))

    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Base name (``self``, ``re``, …) to the attributes that this file takes from it, in order of first use."""
        seen: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for node in self.positions:
            if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
                seen[node.value.value].setdefault(node.attr.value)
        return {base: tuple(names) for base, names in seen.items()}


def split_lines(text: str) -> list[str]:
    """Lines without their ends, split only where Python ends a line (not at form feeds or U+2028)."""
    return _LINE_END.split(text)


def decode(raw: bytes) -> str:
    """The text of a Python file by its own declared encoding, without a byte order mark."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    return raw.removeprefix(codecs.BOM_UTF8).decode("utf-8" if encoding == "utf-8-sig" else encoding)
