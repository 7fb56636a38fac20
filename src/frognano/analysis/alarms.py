"""Alarms: what in the numbers of a run says that it is going wrong, since when, and what to do about it.

A pure function of the `train` series and the limits. An alarm begins with the last of `patience` measured updates in a row that
are beyond its limit, and is over at the first one within it. Nothing is kept beside the series, so a run that was resumed has
the alarms it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

Series = Sequence[tuple[int, dict[str, float]]]
Values = dict[str, float]
Limit = float | Literal[False]


class AlarmsConfig(BaseModel):
    """When a run says that it is going wrong. `false` switches an alarm off; docs/alarms.md gives the reasons."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    patience: int = Field(2, ge=1, description="Updates in a row beyond a limit that begin an alarm; one is noisy.")
    entropy_fall: Limit = Field(0.1, description="Entropy below this share of that of the run's first update.")
    entropy_rise: Limit = Field(4.0, description="Entropy above this multiple of that of the run's first update.")
    masked: Limit = Field(0.05, description="Share of trained tokens that DPPO's mask drops.")
    mismatch: Limit = Field(
        0.3, description="max |p − q| of samples of the policy that is trained: sampler and trainer differ."
    )
    drift: Limit = Field(0.75, description="max |p − q| of samples of an earlier policy.")
    no_signal: Limit = Field(0.7, description="Share of groups all of whose rewards are equal.")
    truncated: Limit = Field(0.9, description="Share of rollouts that the harness had to end.")
    truncated_rise: Limit = Field(0.4, description="Rise of that share over its least of the run.")
    tool_errors: Limit = Field(0.9, description="Share of tool calls that fail.")
    tool_errors_rise: Limit = Field(0.4, description="Rise of that share over its least of the run.")

    @field_validator("*", mode="before")
    @classmethod
    def _a_number_or_false(cls, given: object) -> object:
        if given is True:
            raise ValueError("give a number, or false to switch it off")
        return float(given) if type(given) is int else given  # 0 is a limit too, though 0 == False

    def within(self, max_turns: int | None) -> Self:
        """The limits that mean something under a budget of so many replies. With one alone every run that makes a call is ended
        by the harness, the good ones too: `truncated` tells nothing then."""
        return self.model_copy(update={"truncated": False, "truncated_rise": False}) if max_turns == 1 else self


@dataclass(frozen=True, slots=True)
class Alarm:
    """`since` and `until` are steps of the `train` series; `until` is None while it lasts. `value` is the worst so far."""

    name: str
    value: float
    limit: float
    since: int
    until: int | None
    do: str

    @property
    def said(self) -> str:
        """One line for who watches."""
        return (
            f"alarm since update {self.since}: {TITLES[self.name]}: {self.value:.3g}, limit {self.limit:.3g}. {self.do}"
        )


TITLES = {
    "entropy_fall": "the entropy has collapsed",
    "entropy_rise": "the entropy runs away",
    "masked": "the mask drops many tokens",
    "mismatch": "sampler and trainer differ: max |p − q| of fresh samples",
    "drift": "the policy has left its samples behind: max |p − q|",
    "no_signal": "groups without signal",
    "truncated": "truncated rollouts",
    "tool_errors": "tool calls that fail",
}
"""Name of an alarm to what it says."""


def alarms(train: Series, config: AlarmsConfig) -> list[Alarm]:
    """All alarms of a run so far in the order in which they began, those that are over too."""
    found = [alarm for name, measure in _measures(train, config).items() for alarm in _spans(name, measure, config)]
    return sorted(found, key=lambda a: (a.since, a.name))


def changes(train: Series, config: AlarmsConfig) -> tuple[list[Alarm], list[Alarm]]:
    """(what begins, what is over) with the last update of the series."""
    if not train:
        return [], []
    step, now = train[-1][0], alarms(train, config)
    return [a for a in now if a.since == step], [a for a in now if a.until == step]


@dataclass(frozen=True, slots=True)
class _Point:
    step: int
    value: float
    limit: float
    beyond: bool
    do: str


def _spans(name: str, points: Iterable[_Point], config: AlarmsConfig) -> list[Alarm]:
    spans: list[Alarm] = []
    row: list[_Point] = []
    for p in points:
        if not p.beyond:
            if len(row) >= config.patience:
                spans.append(_alarm(name, row, config, p.step))
            row = []
        else:
            row.append(p)
    if len(row) >= config.patience:
        spans.append(_alarm(name, row, config, None))
    return spans


def _alarm(name: str, row: Sequence[_Point], config: AlarmsConfig, until: int | None) -> Alarm:
    worst = (min if name == "entropy_fall" else max)(row, key=lambda p: p.value)
    first = row[config.patience - 1]
    return Alarm(name, worst.value, worst.limit, first.step, until, first.do)


def _measures(train: Series, c: AlarmsConfig) -> dict[str, list[_Point]]:
    """Of each alarm: the updates in which its number was measured."""
    told = [x for x in (_entropy(v) for _, v in train) if x is not None]
    first = told[0] if told else 0.0
    fresh = [(step, v) for step, v in train if v.get("lag", 1.0) == 0]
    late = [(step, v) for step, v in train if v.get("lag", 1.0) > 0]
    return {
        "entropy_fall": _against(train, _entropy, c.entropy_fall, first, _below, _fallen),
        "entropy_rise": _against(train, _entropy, c.entropy_rise, first, _above, _risen),
        "masked": _against(train, _masked, c.masked, 1.0, _above, _mask_advice),
        "mismatch": _against(fresh, _max_diff, c.mismatch, 1.0, _above, _mismatch_advice),
        "drift": _against(late, _max_diff, c.drift, 1.0, _above, _drift_advice),
        "no_signal": _against(train, _no_signal, c.no_signal, 1.0, _above, _signal_advice),
        "truncated": _risen_share(train, "truncated", c.truncated, c.truncated_rise, _truncated_advice),
        "tool_errors": _risen_share(train, "tool_errors", c.tool_errors, c.tool_errors_rise, _tool_advice),
    }


def _against(
    series: Series,
    value: Callable[[Values], float | None],
    limit: Limit,
    unit: float,
    beyond: Callable[[float, float], bool],
    advice: Callable[[Values], str],
) -> list[_Point]:
    """`limit` in units of `unit`."""
    if limit is False:
        return []
    points = ((step, value(v), v) for step, v in series)
    return [
        _Point(step, x, limit * unit, beyond(x, limit * unit), advice(v))
        for step, x, v in points
        if x is not None and math.isfinite(x)
    ]


def _risen_share(series: Series, name: str, most: Limit, rise: Limit, advice: Callable[[Values], str]) -> list[_Point]:
    """A share beyond `most`, or `rise` above the least that it was before: a model may be bad at first, not become it."""
    points: list[_Point] = []
    least = math.inf
    for step, v in series:
        if not math.isfinite(x := v.get(name, math.nan)):
            continue
        limits = [most] if most is not False else []
        limits += [least + rise] if rise is not False and math.isfinite(least) else []
        if limits:
            points.append(_Point(step, x, min(limits), x > min(limits), advice(v)))
        least = min(least, x)
    return points


def _above(x: float, limit: float) -> bool:
    return x > limit


def _below(x: float, limit: float) -> bool:
    return x < limit


def _entropy(v: Values) -> float | None:
    """That of the trained tokens; where no group had signal, what the samples tell. None where neither is finite."""
    return next((v[name] for name in ("entropy", "surprise") if math.isfinite(v.get(name, math.nan))), None)


def _max_diff(v: Values) -> float | None:
    return v.get("max_abs_diff")


def _masked(v: Values) -> float | None:
    return v["masked_pos"] + v["masked_neg"] if "masked_pos" in v else None


def _no_signal(v: Values) -> float | None:
    return 1 - v["groups_kept"] / v["groups"] if v.get("groups") else None


def _where(v: Values) -> str:
    """Names the rollouts of an update, as `RunStore.rollouts(purpose=…)` takes it."""
    last = "confirm" if v.get("confirmed") else f"train/{v['update']:.0f}" if v.get("update") else "train/…"
    return f"iter{v.get('iteration', 0):.0f}/{last}"


_NEW = "in a new run folder (--out)"


def _fallen(v: Values) -> str:
    return f"Lower optimizer.learning_rate (a third) or train.updates, or raise sampling.temperature, {_NEW}."


def _risen(v: Values) -> str:
    return f"Lower optimizer.learning_rate (a third), or raise optimizer.warmup, {_NEW}; read rollouts of {_where(v)}."


def _mask_advice(v: Values) -> str:
    late = v.get("lag", 0.0) > 0
    return f"Lower optimizer.learning_rate{', or pilot.target to train.groups so that no batch waits' if late else ''}, {_NEW}."


def _mismatch_advice(v: Values) -> str:
    return f'Set model.dtype to "float32" {_NEW}; if it stays, sampler and trainer compute different models: report it.'


def _drift_advice(v: Values) -> str:
    return f"Lower pilot.target towards train.groups (fewer batches wait for their turn) or optimizer.learning_rate, {_NEW}."


def _signal_advice(v: Values) -> str:
    if v.get("groups_all1", 0.0) > v.get("groups_all0", 0.0):
        return f"The tasks are solved: lower train.updates or pilot.rule.high, or raise train.replenish_below, {_NEW}."
    return f"The tasks are too hard: raise pilot.rule.low or pilot.confirm_n, or lower train.updates, {_NEW}."


def _truncated_advice(v: Values) -> str:
    if v.get("stuck", 0.0) > v.get("truncated", 0.0) / 2:
        return f"Most of them repeat the same calls: read rollouts of {_where(v)}, raise sampling.temperature {_NEW}."
    return f"Read rollouts of {_where(v)}; raise sampling.max_tokens_per_turn, budget.max_turns or max_context_tokens {_NEW}."


def _tool_advice(v: Values) -> str:
    return f"Read the failed calls in rollouts of {_where(v)}; lower optimizer.learning_rate {_NEW} if they were right before."
