"""Recipes: TOML in, a typed config out. A wrong recipe is one short error that names file, key and what was meant."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from frognano.errors import ConfigError

Config = TypeVar("Config", bound=BaseModel)


def load_recipe(path: Path, model: type[Config], overrides: Mapping[str, str] | None = None) -> Config:
    """Read ``path``, lay ``overrides`` (``section.key`` to a TOML value, else plain text) over it, check it whole."""
    data = read_toml(path)
    overrides = overrides or {}
    for dotted, text in overrides.items():
        _set(data, dotted, toml_value(text))
    try:
        return model.model_validate(data, extra="forbid")
    except ValidationError as error:
        raise ConfigError("\n".join(explain(error, path, model, overrides))) from error


def read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        there = f"{path.parent} holds {', '.join(near)}" if near else f"there is no .toml file in {path.parent}"
        raise ConfigError(f"{path}: no such recipe; {there}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a UTF-8 text file ({error})") from error
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """A ConfigError names the line of ``path`` that is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.splitlines() or [""]
        found = re.search(r"^(.*) \(at line (\d+), column (\d+)\)$", str(error))
        what, line = (found[1], int(found[2])) if found else (str(error).split(" (at")[0], len(lines))
        shown = lines[min(line, len(lines)) - 1].strip()
        raise ConfigError(f"{path}, line {line}: not valid TOML: {what}, at `{shown:.80}`") from error


def toml_value(text: str) -> Any:
    """``3`` is a number, ``true`` a bool, ``[1, 2]`` a list, ``"3"`` and everything else text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """``--rl.lr 1e-5`` and ``--rl.lr=1e-5``, as they stand after the recipe's path."""
    overrides: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", name):
            raise ConfigError(f"`{argument}` is no option: overrides look like --section.key value")
        if not equals:
            following = next(rest, None)
            if following is None or (following.startswith("--") and len(following) > 2):
                raise ConfigError(f"--{name} needs a value: --{name} VALUE")
            value = following
        if name in overrides:
            raise ConfigError(f"--{name} is given twice")
        overrides[name] = value
    return overrides


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    for depth, section in enumerate(sections, 1):
        below = data.setdefault(section, {})
        if not isinstance(below, dict):
            raise ConfigError(f"--{dotted}: {'.'.join(sections[:depth])} is a value, not a section")
        data = below
    data[key] = value


def explain(
    error: ValidationError,
    path: Path,
    model: type[BaseModel],
    overrides: Mapping[str, str] | None = None,
    within: str = "",
) -> Iterator[str]:
    """What is wrong, a line each: where it stands, which key, what was meant. ``within``: the section that was read."""
    overrides = overrides or {}
    problems = error.errors(include_url=False)
    for problem in problems[:3]:
        places = [str(place) for place in problem["loc"]]
        key = ".".join([*([within] if within else []), *places])
        where = f"--{key}" if key in overrides else f"{path}"
        if problem["type"] == "extra_forbidden":
            yield f"{where}: unknown key `{key}`{_nearest(model, places, within)}"
        elif problem["type"] == "missing":
            yield f"{path}: the key `{key}` is missing: it has no default"
        elif not places:
            yield f"{path}: {f'{within}: ' if within else ''}{problem['msg'].removeprefix('Value error, ')}"
        else:
            yield f"{where}: `{key}` = {_shown(problem.get('input'))}: {_said(problem)}"
    if len(problems) > 3:
        yield f"… and {len(problems) - 3} more"


def _said(problem: ErrorDetails) -> str:
    """In words of TOML, where pydantic's are of Python."""
    if problem["type"] in ("tuple_type", "list_type"):
        return 'a list is needed, such as [1, 2] or ["a", "b"]'
    if problem["type"] == "too_short":
        return f"name at least {problem['ctx']['min_length']}"
    what = problem["msg"].removeprefix("Value error, ")
    return f"{what[:1].lower()}{what[1:]}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _nearest(model: type[BaseModel], places: Sequence[str], within: str = "") -> str:
    """Which key was meant: in the same section first, in the whole recipe otherwise."""
    *sections, key = places
    section = _section(model, sections)
    known = sorted(section.model_fields) if section else []
    if close := difflib.get_close_matches(key, known, 1, 0.6):
        return f", did you mean `{'.'.join([*([within] if within else []), *sections, close[0]])}`?"
    elsewhere: dict[str, list[str]] = {}
    for dotted in sorted(_all_keys(model), key=lambda dotted: dotted.count(".")):
        elsewhere.setdefault(dotted.rsplit(".", 1)[-1], []).append(dotted)
    if close := difflib.get_close_matches(key, elsewhere, 1, 0.8):
        return f", did you mean {' or '.join(f'`{dotted}`' for dotted in elsewhere[close[0]][:3])}?"
    return f"; known here: {', '.join(known)}" if known else ""


def _section(model: type[BaseModel], places: Sequence[str]) -> type[BaseModel] | None:
    found: type[BaseModel] | None = model
    for place in places:
        if place.isdigit():
            continue
        if found is None or place not in found.model_fields:
            return None
        found = next(_models(found.model_fields[place].annotation), None)
    return found


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, list, tuple, dict):
        for argument in get_args(annotation):
            yield from _models(argument)


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for below in _models(field.annotation):
            yield from _all_keys(below, f"{prefix}{name}.")
