"""The picture of an experiment must show what was measured: where it was measured, and of how many seeds."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from analysis.test_pooled import build, put
from frognano.analysis.picture import line, picture
from frognano.analysis.pooled import Run, read_run
from frognano.runs import RolloutKey, RunStore

SVG = "{http://www.w3.org/2000/svg}"


def run_of(path: Path, prefix: str, solved: list[bool], tokens: int) -> Run:
    """`tokens` rollouts of iteration 1, each of as many tokens as a rollout has here."""
    build(path, prefix, {"base": [False] * 4, "i1u2": solved})
    with RunStore.open(path) as store:
        for n in range(tokens):
            put(store, RolloutKey(f"{prefix}task0000", 1, "base", "iter1/screen", n), False)
        return read_run(store, path.name)


def test_a_policy_stands_at_the_tokens_that_made_it(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", "a", [True, True, True, False], tokens=5)
    each = run.tokens // 5
    assert each > 0
    assert run.tokens_before == (0, 5 * each)
    first, last = line([run])
    assert (first.tokens, first.rate.estimate) == (0, 0)
    assert (last.tokens, last.rate.estimate) == (5 * each, 0.75)


def test_arms_with_more_seeds_and_longer_runs_fit_into_one_picture(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / p, p, [True] * 4, tokens=n) for p, n in (("a", 2), ("b", 4), ("c", 8))]
    root = ElementTree.fromstring(picture({"one & two": runs[:2], "three": runs[2:]}))
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert "one & two: 100.0 %" in texts
    assert texts.count("2 seeds") == texts.count("1 seed") == 1
    lines = [p.get("points", "").split() for p in root.iter(f"{SVG}polyline")]
    assert len(lines) == 4  # each of the two seeds, their pooled rate, and the arm with one
    ends = {
        name: float(points[-1].split(",")[0]) for name, points in zip(["a", "b", "pooled", "c"], lines, strict=True)
    }
    assert ends["a"] < ends["pooled"] < ends["b"] < ends["c"]
    height = float(root.get("viewBox", "").split()[3])
    assert all(0 < float(p.split(",")[1]) < height for points in lines for p in points)


def test_a_seed_that_took_more_iterations_ends_at_its_own_last_policy(tmp_path: Path) -> None:
    """The picture must end where the table does, though equal tokens give the seeds of an arm unequal iterations."""
    short = run_of(tmp_path / "a", "a", [True, False, False, False], tokens=2)
    with RunStore.open(
        build(tmp_path / "b", "b", {"base": [False] * 4, "i1u2": [False] * 4, "i2u2": [True] * 4})
    ) as store:
        put(store, RolloutKey("btask0000", 1, "base", "iter2/screen", 0), False)
        store.finish("policies/2", "i2u2")
        long = read_run(store, "b")
    points = line([short, long])
    assert [p.rate.estimate for p in points] == [0, 5 / 8]
    assert points[-1].tokens == (short.tokens + long.tokens) / 2


def test_an_experiment_without_a_trained_policy_draws_no_line(tmp_path: Path) -> None:
    assert "<polyline" not in picture({})


def test_a_seed_beyond_the_mean_runs_into_the_labels(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / p, p, [True] * 4, tokens=n) for p, n in (("a", 2), ("b", 8))]
    root = ElementTree.fromstring(picture({"both": runs}))
    right = max(float(at.get("x2", "0")) for at in root.iter(f"{SVG}line"))
    for p in root.iter(f"{SVG}polyline"):
        assert float(p.get("points", "").split()[-1].split(",")[0]) <= right
