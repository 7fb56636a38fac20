"""The resolved config of a run, ``recipe.json``: compared whenever the run is opened to go on. Only sections that change no
result may be others then."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from frognano.runs.files import StoreError, write_atomically

_ABSENT = "unset"
Fill = Callable[[dict[str, Any]], Mapping[str, Any]]
"""A stored config with the keys that it lacks, at the defaults of today: it was written before there were such keys."""


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    write_atomically(path / "recipe.json", (json.dumps(config, indent=2) + "\n").encode())


def read_config(path: Path) -> dict[str, Any]:
    file = path / "recipe.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} cannot be read ({error}): restore it, or use another folder") from error
    if not isinstance(config, dict):
        raise StoreError(f"{file} holds no table of settings: restore it, or use another folder")
    return config


def go_on_with(path: Path, config: Mapping[str, Any], fill: Fill | None = None, free: Collection[str] = ()) -> None:
    """Refuse to go on with other settings than the run began with, and name them. Sections of `free` may differ: the run has
    them as they are given now."""
    stored, given = read_config(path), json.loads(json.dumps(config))
    whole = dict(fill(stored)) if fill else stored
    now = {name: given[name] for name in free if name in given and given[name] != whole.get(name)}
    held, wanted = _flat({**whole, **now}), _flat(given)
    keys = sorted(k for k in held.keys() | wanted.keys() if held.get(k, _ABSENT) != wanted.get(k, _ABSENT))
    if keys:
        shown = ", ".join(f"{k} ({held.get(k, _ABSENT)} → {wanted.get(k, _ABSENT)})" for k in keys[:5])
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        raise StoreError(
            f"the run in {path} was made with another recipe: {shown}{more}. "
            "Use another folder (--out), or set them back"
        )
    if now:
        write_config(path, {**stored, **now})


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
