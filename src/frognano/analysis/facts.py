"""Facts: what stands at the head of a report, and how long each phase took."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

from frognano.records import ExitReason, Task
from frognano.runs import RolloutRow


def phases_of(steps: Mapping[str, Any]) -> list[tuple[str, float]]:
    phases: dict[str, float] = {}
    for name, value in steps.items():
        seconds = value.get("seconds") if isinstance(value, dict) else value
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
            phase = name.removeprefix("phase/").split("#")[0]  # parts of one phase, e.g. of a resumed run, add up
            phases[phase] = phases.get(phase, 0.0) + float(seconds)
    return list(phases.items())


def find_setting(config: Mapping[str, Any], *names: str) -> Any:
    """The first setting of one of these names, at the top or one section down."""
    for name in names:
        for table in (config, *(value for value in config.values() if isinstance(value, dict))):
            if name in table and not isinstance(table[name], (dict, list)):
                return table[name]
    return None


def facts_of(
    config: Mapping[str, Any], phases: list[tuple[str, float]], rows: list[RolloutRow], tasks: Mapping[str, Task]
) -> list[tuple[str, str]]:
    model = config.get("model")
    named = (
        model if isinstance(model, str) else find_setting(model, "name", "path") if isinstance(model, dict) else None
    )
    errors = sum(row.exit_reason in (ExitReason.INFRASTRUCTURE_ERROR,) or not row.counts for row in rows)
    facts = [
        ("Model", str(named or find_setting(config, "model", "model_path") or "—")),
        ("Seed", json.dumps(find_setting(config, "seed"))),
        ("Wall time", duration(sum(seconds for _, seconds in phases)) if phases else "—"),
        ("Rollouts", f"{len(rows):,}" + (f", {errors} of them infrastructure errors, left out" if errors else "")),
        ("Tasks", f"{len(tasks):,} of {len({t.origin.name for t in tasks.values()})} repositories"),
        ("Generated tokens", f"{sum(row.generated_tokens for row in rows):,}"),
        ("This report made on", f"{platform.machine()}, Python {platform.python_version()}"),
    ]
    return [(name, value) for name, value in facts if value not in ("—", "null")]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
