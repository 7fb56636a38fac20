"""Alarms fire on runs that go wrong, once, say what to do, and are silent on a run that went well."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch

from frognano.analysis.alarms import TITLES, AlarmsConfig, Series, alarms, changes
from frognano.analysis.data import load
from frognano.loop.recipe import RecipeConfig
from frognano.models.policy import LlamaPolicy
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.groups import Group
from frognano.rl.packing import pack
from frognano.rl.trainer import Trainer
from frognano.runs import RunStore
from models.tiny import STOP, VOCABULARY, random_ids, sample, save_tiny

ROOT = Path(__file__).parents[2]
TOKENS = list(range(STOP + 1, VOCABULARY))
CONFIG = AlarmsConfig.model_validate({})
ARMS = json.loads((ROOT / "docs/results/experiment.json").read_text())["arms"]


def logged(arm: str) -> list[Series]:
    """Of each seed, as the run logged it."""
    return [[(step, values) for step, values in run["metrics"]["train"]] for run in ARMS[arm]]


HEALTHY: Series = logged("calibrated")[0]
"""Sixteen updates of a whole pocket run."""


def turned(at: int, **values: float) -> Series:
    """The healthy run with other numbers from an update on."""
    return [(step, {**v, **values} if step >= at else v) for step, v in HEALTHY]


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_is_alarmed(seed: int):
    assert alarms(logged("calibrated")[seed], CONFIG) == []


def test_a_run_whose_groups_teach_nothing_is_silent():
    """Tasks as they come: two updates in a row without any signal."""
    assert "no_signal" in {a.name for series in logged("uncalibrated") for a in alarms(series, CONFIG)}


@pytest.mark.parametrize(
    ("name", "values", "key"),
    [
        ("entropy_fall", {"entropy": 0.005}, "optimizer.learning_rate"),
        ("entropy_rise", {"entropy": 2.0}, "optimizer.learning_rate"),
        ("masked", {"masked_pos": 0.04, "masked_neg": 0.03}, "optimizer.learning_rate"),
        ("mismatch", {"max_abs_diff": 0.5, "lag": 0}, "model.dtype"),
        ("drift", {"max_abs_diff": 0.9, "lag": 1}, "pilot.target"),
        ("no_signal", {"groups": 6, "groups_kept": 1, "groups_all0": 5, "groups_all1": 0}, "pilot.rule.low"),
        ("no_signal", {"groups": 6, "groups_kept": 1, "groups_all0": 0, "groups_all1": 5}, "pilot.rule.high"),
        ("truncated", {"truncated": 0.95, "stuck": 0.1}, "sampling.max_tokens_per_turn"),
        ("truncated", {"truncated": 0.6, "stuck": 0.6}, "sampling.temperature"),
        ("tool_errors", {"tool_errors": 0.6, "iteration": 3, "update": 4, "confirmed": 0}, "iter3/train/4"),
    ],
)
def test_an_alarm_is_missed_or_does_not_say_what_to_do(name: str, values: dict[str, float], key: str):
    """Beyond its limit from update 13 on: it begins with the second such update, and names a key or rollouts."""
    (alarm,) = alarms(turned(13, **values), CONFIG)
    assert (alarm.name, alarm.since, alarm.until) == (name, 14, None)
    assert key in alarm.do
    assert "\n" not in alarm.said
    assert TITLES[name] in alarm.said


@pytest.mark.parametrize("name", TITLES)
def test_advice_names_a_key_that_is_not_in_the_recipe(name: str):
    bad = {
        "entropy": 9.0,
        "masked_pos": 1.0,
        "max_abs_diff": 1.0,
        "groups_kept": 0,
        "truncated": 1.0,
        "tool_errors": 1.0,
    }
    if name == "entropy_fall":
        bad["entropy"] = 1e-6
    for more in ({"lag": 0}, {"lag": 1}, {"lag": 1, "stuck": 1.0, "groups_all1": 5.0}):
        for alarm in alarms(turned(13, **{**bad, **more}), CONFIG):
            for word in alarm.do.replace(",", " ").replace(".", ". ").split():
                assert not word.endswith("..")
            found = [w.strip(".,;()") for w in alarm.do.split() if w.count(".") and w.strip(".,;()")[0].isalpha()]
            for key in (w for w in found if "." in w and "/" not in w and "…" not in w):
                known = RecipeConfig.model_validate({
                    "run": {"name": "x"}, "model": {"path": "pocket"}, "repositories": {"train": ["a"], "heldout": ["b"]},
                }).model_dump()  # fmt: skip
                for part in key.split("."):
                    assert part in known, f"{alarm.name}: {key}"
                    known = known[part]


def test_one_bad_update_is_no_alarm():
    bad = [(step, {**v, "truncated": 1.0} if step == 13 else v) for step, v in HEALTHY]
    assert alarms(bad, CONFIG) == []
    hasty = alarms(bad, CONFIG.model_copy(update={"patience": 1}))
    assert ("truncated", 13, 14) in [(a.name, a.since, a.until) for a in hasty]


def test_an_alarm_is_told_again_at_every_update():
    """It begins once and is over once, whatever part of the run is looked at again."""
    bad = [(step, {**v, "truncated": 1.0} if 9 <= step <= 12 else v) for step, v in HEALTHY]
    told = [changes(bad[:n], CONFIG) for n in range(len(bad) + 1)]
    assert [(a.name, a.since) for begun, _ in told for a in begun] == [("truncated", 10)]
    assert [(a.name, a.since, a.until) for _, over in told for a in over] == [("truncated", 10, 13)]
    assert told[10][0]
    assert told[13][1]


def test_an_alarm_cannot_be_switched_off():
    bad = turned(5, entropy=1e-6, truncated=1.0, tool_errors=1.0)
    off = AlarmsConfig.model_validate(
        {
            "entropy_fall": False,
            "truncated": False,
            "truncated_rise": False,
            "tool_errors": 2.0,
            "tool_errors_rise": False,
        }
    )
    assert {a.name for a in alarms(bad, CONFIG)} == {"entropy_fall", "truncated", "tool_errors"}
    assert alarms(bad, off) == []


def test_a_limit_of_nought_switches_an_alarm_off():
    config = AlarmsConfig.model_validate({"masked": 0, "no_signal": False, "patience": 3})
    assert (config.masked, config.no_signal, config.patience) == (0.0, False, 3)
    assert config.masked is not False
    with pytest.raises(ValueError, match="give a number, or false"):
        AlarmsConfig.model_validate({"masked": True})


def test_numbers_that_are_missing_or_not_finite_stop_the_run():
    odd: Series = [(1, {}), (2, {"entropy": float("nan"), "groups": 0, "stepped": 0.0}), (3, {"entropy": 0.1})]
    assert alarms(odd, CONFIG) == []
    assert changes([], CONFIG) == ([], [])


def test_runs_of_one_reply_are_truncated_by_construction():
    """Every call is the last one then, a right one too: nothing is wrong where the share is 1, or rises."""
    always, rises = turned(1, truncated=1.0), turned(5, truncated=1.0)
    for series in (always, rises):
        assert "truncated" in {a.name for a in alarms(series, CONFIG.within(2))}
        assert "truncated" in {a.name for a in alarms(series, CONFIG.within(None))}
        assert alarms(series, CONFIG.within(1)) == []
        assert all(changes(series[:n], CONFIG.within(1)) == ([], []) for n in range(len(series)))
    other = alarms(turned(5, truncated=1.0, tool_errors=1.0), CONFIG.within(1))
    assert {a.name for a in other} == {"tool_errors"}


@pytest.mark.parametrize("turns", [1, 2])
def test_the_report_tells_of_runs_of_one_reply(tmp_path: Path, turns: int):
    with RunStore.create(tmp_path / "run", {"budget": {"max_turns": turns}}) as store:
        for step, values in turned(5, truncated=1.0):
            store.log("train", step, values)
        assert [a.name for a in load(store).alarms] == (["truncated"] if turns > 1 else [])


def trained(folder: Path, learning_rate: float, updates: int = 8) -> list[tuple[int, dict[str, float]]]:
    """A real training of a tiny model that samples its own replies: one token each, half of the vocabulary is right."""
    policy = LlamaPolicy(folder, "all", torch.float32)
    trainer = Trainer(policy, OptimizerConfig(learning_rate=learning_rate, weight_decay=0.0), DppoConfig())
    rng, logged = random.Random(3), []
    prompts = [random_ids(rng, 6) for _ in range(3)]
    for step in range(1, updates + 1):
        groups = []
        for n, prompt in enumerate(prompts):
            q = logq(policy, prompt)
            drawn = rng.choices(TOKENS, [math.exp(x) for x in q.values()], k=12)
            groups.append(Group(f"g{n}", tuple(
                sample(prompt, [token], [1], trajectory=f"t{i}", group=f"g{n}", raw=float(token % 2), logprobs=[q[token]])
                for i, token in enumerate(drawn)
            )))  # fmt: skip
        logged.append((step, {**trainer.update(groups), "lag": 0.0}))
    return logged


def logq(policy: LlamaPolicy, prompt: list[int]) -> dict[int, float]:
    """log q of every token that a reply may be."""
    one = [sample(prompt, [t], [1], trajectory=f"t{t}", raw=float(t % 2)) for t in TOKENS]
    with torch.no_grad():
        return dict(zip(TOKENS, policy.score(pack([Group("g", tuple(one))]).packed, 0.7).logp.tolist(), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def test_a_real_collapse_is_not_seen(folder: Path):
    """An absurd learning rate leaves hardly a group with signal within eight updates; a mild one does, and is left alone."""
    collapsed = {a.name: a for a in alarms(trained(folder, 3e-2), CONFIG)}
    assert "no_signal" in collapsed  # it may be over again: one stray sample gives a group signal
    assert "train.updates" in collapsed["no_signal"].do
    assert alarms(trained(folder, 1e-4, updates=4), CONFIG) == []
