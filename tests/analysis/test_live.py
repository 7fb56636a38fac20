"""Progress is readable in a terminal and in a log, and its ETA does not count what an earlier process did."""

from __future__ import annotations

import io
import threading

import pytest

from frognano.analysis import live
from frognano.analysis.live import Live, clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch):
    """A clock whose hands the test moves."""
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then(hands):
    log = io.StringIO()
    with Live(log) as shown, shown.phase("calibrate", 100) as phase:
        for _ in range(50):
            hands[0] += 1
            phase.advance(numbers={"solved": 0.25})
        shown.say("admitted 3 tasks")
    lines = log.getvalue().splitlines()
    assert lines[0] == "calibrate: 0/100"
    assert lines[1] == "calibrate: 15/100 · 1.0/s, 1:25 left · solved 0.25"
    assert lines[-2:] == ["admitted 3 tasks", "calibrate: 50/100 · done in 0:50 · solved 0.25"]
    assert len(lines) == 6
    assert "\x1b" not in log.getvalue()


def test_what_was_interrupted_says_that_it_is_done(hands):
    log = io.StringIO()

    def interrupted() -> None:
        with Live(log) as shown, shown.phase("train", 4) as phase:
            phase.advance()
            hands[0] += 65
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert log.getvalue().splitlines()[-1] == "train: 1/4 · stopped after 1:05"


def test_a_resumed_phase_does_not_look_fast(hands):
    with Live(io.StringIO()) as shown, shown.phase("train", 100, done=90) as phase:
        assert phase.eta is None
        hands[0] += 20
        phase.advance(2)
        assert phase.eta == pytest.approx(80)
        assert phase.pace == "6.0/min, 1:20 left"


def test_a_terminal_gets_bars(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    with Live(terminal) as shown, shown.phase("heldout [π0]", 4) as phase:
        assert not shown.plain
        threads = [threading.Thread(target=phase.advance, kwargs={"numbers": {"solved": 0.5}}) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "heldout" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()
    assert "solved 0.5" in terminal.getvalue()


def test_ci_is_no_terminal_even_if_it_pretends(monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert Live(Terminal()).plain


def test_clock():
    assert [clock(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
