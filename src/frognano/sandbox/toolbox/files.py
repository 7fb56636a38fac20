"""Read, Write and Glob."""

from __future__ import annotations

import os
import re
import stat

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

READ_CHARS = 20_000
LINE_CHARS = 2_000
GLOB_PATHS = 1_000
_BINARY_PROBE = 8192


def resolve(repo: str, path: str) -> str:
    return os.path.normpath(os.path.join(repo, os.path.expanduser(path)))


def open_regular(path: str, writable: bool = False) -> BinaryIO:
    """Open a file that is one: a FIFO would hang us, a directory or device makes no sense. Links are followed."""
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(21, "This is a directory (Glob lists it)", path)
    if not stat.S_ISREG(kind):
        raise OSError(22, "Not a regular file", path)
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK)
    return open(fd, "r+b" if writable else "rb")


def read(repo: str, file_path: str, offset: int = 1, limit: int | None = None) -> tuple[bool, str]:
    """Numbered lines from ``offset`` on (the first is 1), at most 20,000 characters; the file is streamed."""
    path = resolve(repo, file_path)
    lines: list[str] = []
    size = number = 0
    more = False
    with open_regular(path) as f:
        if b"\0" in f.read(_BINARY_PROBE):
            return False, f"{path} is a binary file of {os.path.getsize(path):,} bytes."
        f.seek(0)
        for number, line, length in _lines(f):
            if number < offset:
                continue
            text = line.decode("utf-8", "backslashreplace")
            if length > LINE_CHARS:
                text = f"{text[:LINE_CHARS]} [... line of {length:,} bytes cut]"
            row = f"{number:6d}\t{text}"
            if (limit is not None and len(lines) >= limit) or (lines and size + len(row) + 1 > READ_CHARS):
                more = True
                break
            lines.append(row)
            size += len(row) + 1
    if number == 0:
        return True, "(the file is empty)"
    if not lines:
        return False, f"{path} has {number} lines; offset {offset} is beyond its end."
    if more:
        lines.append(f"[more lines follow; continue with offset={offset + len(lines)}]")
    return True, "\n".join(lines)


def _lines(f: BinaryIO) -> Iterator[tuple[int, bytes, int]]:
    """(number, at most a few KB of the line, its length); lines end at \\n only, as for an edit."""
    keep = 4 * LINE_CHARS
    number = 0
    while True:
        line = f.readline(1 << 16)
        if not line:
            return
        number += 1
        length, end = len(line), line
        while not end.endswith(b"\n") and len(end) == 1 << 16:
            end = f.readline(1 << 16)
            length += len(end)
        ending = 2 if end.endswith(b"\r\n") else 1 if end.endswith(b"\n") else 0
        yield number, line[: min(keep, length - ending)], length - ending


def write(repo: str, file_path: str, content: str) -> tuple[bool, str]:
    """Create or replace. An existing file keeps its mode and, if reached by a link, its place."""
    path = resolve(repo, file_path)
    data = content.encode("utf-8")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        with open_regular(path, writable=True) as f:
            replace(f, f.read(), data)
        verb = "Replaced"
    else:
        with open(path, "wb") as f:
            f.write(data)
        verb = "Created"
    real = os.path.realpath(path)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return True, f"{verb} {real} ({lines} lines)."


def replace(f: BinaryIO, old: bytes, new: bytes) -> None:
    """New content in the same file (mode, owner, links stay); the old content is put back if the disk is full."""
    try:
        _overwrite(f, new)
    except OSError:
        _overwrite(f, old)
        raise


def _overwrite(f: BinaryIO, data: bytes) -> None:
    f.seek(0)
    f.write(data)
    f.flush()
    f.truncate()


def glob(repo: str, pattern: str, path: str = ".") -> tuple[bool, str]:
    """Paths that match, sorted. ``**`` crosses directories but no links; directories end in a slash."""
    root = resolve(repo, path)
    if not os.path.isdir(root):
        return False, f"{root} is not a directory."
    if os.path.isabs(pattern):
        pattern = os.path.relpath(pattern, root)
    try:
        matches = re.compile(_regex(os.path.normpath(pattern))).fullmatch
    except re.error as e:
        return False, f"The pattern {pattern!r} is not one: {e}."
    prefix = "" if root == repo else (root[len(repo) + 1 :] if root.startswith(repo + "/") else root).rstrip("/") + "/"
    found = [prefix + p for p in _walk(root, "") if matches(p.rstrip("/"))]
    if not found:
        hint = f" Try **/{pattern} to look in every directory." if "/" not in pattern else ""
        return True, f"Nothing matches {pattern} in {root}.{hint}"
    text = "\n".join(found[:GLOB_PATHS]).encode("utf-8", "backslashreplace").decode()
    if len(found) > GLOB_PATHS:
        text += f"\n[{len(found) - GLOB_PATHS} more paths match; narrow the pattern]"
    return True, text


def _walk(root: str, directory: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(os.path.join(root, directory)), key=lambda e: e.name)
    except PermissionError:
        return
    for entry in entries:
        path = os.path.join(directory, entry.name)
        if not entry.is_dir(follow_symlinks=False):
            yield path
        elif entry.name not in (".git", "__pycache__"):
            yield path + "/"
            yield from _walk(root, path)


def _regex(pattern: str) -> str:
    """A glob as a regular expression: ``*`` and ``?`` stay in one component, ``{a,b}`` are choices."""
    out, i, depth = "", 0, 0
    while i < len(pattern):
        c = pattern[i]
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
            continue
        if pattern.startswith("**", i):
            out, i = out + ".*", i + 2
            continue
        end = pattern.find("]", i + 2)
        if c == "[" and end > 0:
            inside = pattern[i + 1 : end].replace("\\", "\\\\")
            out, i = out + "[" + ("^" + inside[1:] if inside[0] == "!" else inside) + "]", end + 1
            continue
        if c == "{" and "}" in pattern[i:]:
            out, depth = out + "(?:", depth + 1
        elif c == "}" and depth:
            out, depth = out + ")", depth - 1
        elif c == "," and depth:
            out += "|"
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(c, re.escape(c))
        i += 1
    return "(?s:" + out + ")"
