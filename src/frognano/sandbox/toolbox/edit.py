"""Edit: replaces one span of bytes and nothing else, or says why it cannot."""

from __future__ import annotations

from .files import open_regular, replace, resolve

_MAX_SHOWN = 10
_NEAR = 0.5
_SEARCHED_LINES = 5_000


def edit(repo: str, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> tuple[bool, str]:
    """Replace ``old_string``, which must occur once (or ``replace_all``). Mode, links and line endings stay."""
    if old_string == new_string:
        return False, "old_string and new_string are the same: nothing to do."
    if not old_string:
        return False, "old_string is empty: give the text to replace (Write creates files)."
    path = resolve(repo, file_path)
    with open_regular(path, writable=True) as f:
        data = f.read()
        encoding = _encoding(data)
        try:
            old, new = old_string.encode(encoding), new_string.encode(encoding)
        except UnicodeEncodeError:
            return False, f"{path} is not UTF-8 but Latin-1, and the strings hold characters that Latin-1 lacks."
        if old not in data and b"\r\n" in data and b"\r" not in old:  # the model was shown lines without their \r
            old, new = old.replace(b"\n", b"\r\n"), new.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        starts = _occurrences(data, old)
        if not starts:
            return False, _missing(path, data.decode(encoding), old_string)
        if len(starts) > 1 and not replace_all:
            return False, _ambiguous(path, data.decode(encoding), [data.count(b"\n", 0, s) + 1 for s in starts])
        replace(
            f, data, data.replace(old, new) if replace_all else data[: starts[0]] + new + data[starts[0] + len(old) :]
        )
    lines = [data.count(b"\n", 0, start) + 1 for start in starts]
    where = (
        f"line {lines[0]}"
        if len(lines) == 1
        else f"{len(lines)} places (lines {', '.join(map(str, lines[:_MAX_SHOWN]))})"
    )
    return True, f"Edited {path} at {where}."


def _encoding(data: bytes) -> str:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _occurrences(data: bytes, old: bytes) -> list[int]:
    """Starts of the non-overlapping matches: those that replacing all would replace."""
    starts, at = [], data.find(old)
    while at >= 0:
        starts.append(at)
        at = data.find(old, at + len(old))
    return starts


def _ambiguous(path: str, text: str, numbers: list[int]) -> str:
    """Each match with the line before it, so that the model can tell them apart."""
    lines = text.split("\n")
    shown = []
    for number in numbers[:_MAX_SHOWN]:
        if number > 1:
            shown.append(f"{number - 1:6d}\t{lines[number - 2][:200]}")
        shown.append(f"{number:6d}>\t{lines[number - 1][:200]}")
    listing = "\n".join(shown)
    return (
        f"old_string occurs {len(numbers)} times in {path}; nothing was changed. Add lines around it until it is "
        f"unique, or set replace_all. The matches (>), each with the line before it:\n{listing}"
    )


def _missing(path: str, text: str, old: str) -> str:
    """The nearest text with its line numbers, and what differs."""
    import difflib  # only here: it would slow the start of every box

    head = f"old_string is not in {path}; nothing was changed."
    lines, wanted = text.split("\n"), old.strip("\n").split("\n")
    if len(lines) > _SEARCHED_LINES:
        return head
    best, at = 0.0, 0
    first = difflib.SequenceMatcher(None, "", wanted[0].strip(), autojunk=False)
    for i in range(max(1, len(lines) - len(wanted) + 1)):
        first.set_seq1(lines[i].strip()[:400])
        if first.real_quick_ratio() < best or first.quick_ratio() < best:
            continue
        score = first.ratio()
        if score > best:
            rest = "\n".join(lines[i : i + len(wanted)])
            if len(wanted) > 1:
                score = (score + difflib.SequenceMatcher(None, rest[:2000], old[:2000], autojunk=False).ratio()) / 2
            if score > best:
                best, at = score, i
    if best < _NEAR:
        return f"{head} Nothing in the file is similar to it."
    near = lines[at : at + len(wanted)]
    shown = "\n".join(f"{at + i + 1:6d}\t{line[:400]}" for i, line in enumerate(near[:40]))
    return f"{head} {_difference(near, wanted)}The nearest text is:\n{shown}"


def _difference(near: list[str], wanted: list[str]) -> str:
    a, b = "\n".join(near), "\n".join(wanted)
    if "".join(a.split()) == "".join(b.split()):
        return "Only white space differs. "
    if a.casefold() == b.casefold():
        return "Only upper and lower case differ. "
    if a.replace('"', "'") == b.replace('"', "'"):
        return "Only the quotes differ. "
    return ""
