"""The report tells the run, carries everything inside itself, and fits a desktop and a phone."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from analysis import synthetic
from frognano.analysis.charts import Bar, Line, bar_chart, histogram, line_chart
from frognano.analysis.data import load
from frognano.analysis.profile import profile, updates
from frognano.analysis.report import render, write_report
from frognano.records import Status
from frognano.runs import RolloutKey, RunStore
from runs import made

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "run"
    with synthetic.build(path) as store:
        write_report(store)
    return path


@pytest.fixture(scope="module")
def html(run: Path) -> str:
    return (run / "report.html").read_text()


def test_data_is_the_stores(run: Path):
    with RunStore.open(run, read_only=True) as store:
        data = load(store)
        rows = [r for r in store.rollouts(purpose="heldout", policy="pi3") if r.key.rung == 1 and r.counts]
    assert data.top_rung == 1
    assert [rate.policy for rate in data.at_top] == ["pi0", "pi1", "pi2", "pi3"]
    assert data.at_top[-1].interval.estimate == sum(r.resolved for r in rows) / len(rows)
    assert data.gain is not None
    assert data.gain.low < data.gain.estimate < data.gain.high
    assert [(c.iteration, len(c.before), len(c.after)) for c in data.calibrations] == [(n, 12, 12) for n in (1, 2, 3)]
    assert sum(count for _, count, _ in data.rejected) == 37
    assert dict(data.phases)["iter1/train"] == 210.5
    assert "From pi0 to pi3" in data.result


def test_rates_of_the_task_table_mix_policies_or_stages(tmp_path: Path):
    with RunStore.create(tmp_path / "run", {"name": "table"}) as store:
        for purpose in ("heldout", "train", "iter2"):
            store.put_task(made.task(f"task-{purpose}", "f"), purpose)
        rung = made.task().rung
        tries = [
            *[("task-heldout", "base", "heldout", False), ("task-heldout", "i1u4", "heldout", True)],
            *[("task-train", "base", "iter1/screen", True), ("task-train", "i1u4", "iter2/screen", False)],
            *[("task-iter2", "i1u4", "iter2/screen", True), ("task-iter2", "i1u4", "iter2/confirm", False)],
            ("task-iter2", "i2u3", "iter2/train/4", True),
        ]
        for i, (task, policy, purpose, solved) in enumerate(tries):
            verdict = made.verdict(Status.RESOLVED if solved else Status.NOT_RESOLVED)
            t = made.trajectory(f"t{i}", task, policy).model_copy(update={"rung": rung})
            store.put_rollout(RolloutKey(task, rung, policy, purpose, 0), t, verdict)
        detail = {"bug": "c711", "scope": "iter2/i1u4", "step": 0, "k": 0, "n": 1}
        store.decide("iter2/0", "task-iter2", "admit", detail)
        store.decide("iter2/1", "task-train", "arrive", {"scope": "iter2/i1u4"})
        lines = {line.purpose: line for line in load(store).tasks}
    assert {p: (line.k, line.n) for p, line in lines.items()} == {"heldout": (0, 1), "train": (0, 1), "iter2": (0, 1)}
    assert (lines["iter2"].action, lines["iter2"].reason) == ("admit", "k 0, n 1")
    assert (lines["train"].action, lines["train"].reason) == ("not tried", "")


class Tags(HTMLParser):
    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_is_whole_and_loads_nothing(html: str):
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert not {name for name, _ in tags.attributes} & {"src", "href", "onclick", "onload"}
    assert not re.search(r"<script|<link|@import|url\(|https?:", html)


def test_what_a_model_wrote_is_text_never_markup(html: str):
    assert "&lt;b&gt;not bold&lt;/b&gt; &amp; safe" in html
    assert "<b>not bold" not in html
    assert "&lt;edit path=" in html
    assert "pocket &lt;3 iterations&gt;" in html


def test_everything_that_a_run_must_show_is_there(html: str):
    for wanted in (
        "Held-out tasks", "Entropy", "mean |p − q|", "max |p − q|", "dropped, all failed", "dropped, all solved",
        "Tokens masked by DPPO", "Gradient norm", "Calibration", "Rejected candidates (37)", "no_f2p", "max_turns",
        "Trajectories", "the gold patch", "Where the time went", "SmolLM2-135M-Instruct", "19 min",
    ):  # fmt: skip
        assert wanted in html, wanted
    assert 20 <= html.count("<details>") <= 24  # at most three resolved and three failed a policy
    assert '<span class="add">+        yield' in html


def test_alarms_and_profile_are_missed_or_made_up(run: Path, html: str, tmp_path: Path):
    """Nothing of either where there was none; else what to do, and stages that add up to cores times wall."""
    assert "Alarms</h2>" not in html
    assert "What used the cores" not in html
    with RunStore.create(tmp_path / "run", {"run": {"name": "x"}}) as store:
        for step in range(1, 6):
            store.log("train", step, {"entropy": 0.5 if step == 1 else 1e-4})
            spent = {"wall": 10.0, "cores": 2.0, "sampling_wall": 8.0, "sampling_cpu": 12.0}
            store.log("profile", step, {**spent, "other_cpu": 3.0, "programs_cpu": 1.0, "idle_cpu": 4.0})
        store.finish("phase/iter1/pilot#0", {"seconds": 4.0, "profile": {"wall": 4.0, "cores": 2.0, "idle_cpu": 8.0}})
        data = load(store)
        made = render(data)
    assert [(p.name, p.count, p.capacity) for p in data.profile] == [("update", 5, 100.0), ("pilot", 1, 8.0)]
    assert "the entropy has collapsed" in made
    assert "Lower optimizer.learning_rate" in made
    assert "sampling: 60 %" in made
    tags = Tags()
    tags.feed(made)
    assert tags.open == []


def test_other_iterations_are_counted_in(tmp_path: Path):
    names = ("iter1/pilot#0", "iter2/pilot#0", "iter2/train#0", "heldout/i1u4#0", "heldout/i2u4#0", "heldout/base#0")
    with RunStore.create(tmp_path / "run", {"run": {"name": "x"}}) as store:
        for step in range(1, 6):
            store.log("train", step, {"iteration": 1 + (step > 2)})
            store.log("profile", step, {"wall": 1.0, "cores": 2.0, "idle_cpu": 2.0})
        for name in names:
            store.finish(f"phase/{name}", {"profile": {"wall": 1.0, "cores": 2.0, "idle_cpu": 2.0}})
        whole, second = profile(store), profile(store, 2)
        assert [step for step, _ in updates(store, 2)] == [3, 4, 5]
    assert [(p.name, p.count) for p in whole][:2] == [("update", 5), ("pilot", 2)]
    parts = [("update", 3), ("pilot", 1), ("training, updates included", 1), ("heldout", 1)]
    assert [(p.name, p.count) for p in second] == parts


def test_an_empty_run_has_a_report_too(tmp_path: Path):
    with RunStore.create(tmp_path / "run", {"seed": 1}) as store:
        assert "Nothing has been measured" in render(load(store))


def test_charts_of_odd_data():
    nan = float("nan")
    assert "Nothing measured" in line_chart([Line("a", [(1, nan)])], label="x")
    assert "Nothing measured" in bar_chart([], label="x")
    for chart in (
        line_chart([Line("a", [(1, 0.0)])], label="x"),
        line_chart([Line("a", [(1, -5.0), (2, nan), (3, 1e9)])], label="x"),
        line_chart([Line("a", [(1, 1.0), (2, 1.0)])], percent=True, label="x"),
        bar_chart([Bar("pi0", 0.0, 0.0, 0.0)], label="x"),
        bar_chart([Bar("pi0", 1.0, 0.5, 1.0)], label="x"),
        histogram([], [0.0, 0.5, 1.0], label="x"),
    ):
        assert "nan" not in chart
        assert all(float(n) >= 0 for n in re.findall(r'(?:width|height)="(-?[\d.]+)"', chart))


def width_needed(page: Path, profile: Path, width: int) -> int:
    """The page's scroll width in a frame of ``width``, as Chromium lays it out (its windows have a least width)."""
    frame = page.with_name(f"frame{width}.html")
    frame.write_text(
        f'<iframe src="{page.name}" width="{width}" height="900" style="border:0"></iframe><script>onload = () => {{'
        "document.title = document.querySelector('iframe').contentDocument.documentElement.scrollWidth }</script>"
    )
    done = chromium(
        profile, "--allow-file-access-from-files", "--virtual-time-budget=3000", "--dump-dom", frame.as_uri()
    )
    found = re.search(r"<title>(\d+)</title>", done)
    assert found, done[:300]
    return int(found[1])


def chromium(profile: Path, *arguments: str) -> str:
    assert CHROMIUM
    still = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ]
    still += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}"]
    done = subprocess.run([CHROMIUM, *still, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_it_fits_a_desktop_and_a_phone(run: Path, tmp_path: Path):
    page = run / "report.html"
    assert width_needed(page, tmp_path / "profile", 390) <= 390
    assert width_needed(page, tmp_path / "profile", 1280) <= 1280
    chromium(tmp_path / "profile", "--window-size=1280,900", f"--screenshot={tmp_path / 'a.png'}", page.as_uri())
    assert struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24]) == (1280, 900)
