"""A pytest plugin that writes what happened as JSON lines to a file of ours: exact ids, no parsing of output.

Each line carries the nonce of the run; the last one says how many lines there must be. What the tests print, and the
exit code, decide nothing.
"""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Generator
from typing import Any

import pytest

REPO = "/repo/"
SENTINELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentinels.py")
LIMIT = 2_000


class Reporter:
    def __init__(self, wanted: dict[str, Any]) -> None:
        self.nonce = wanted["nonce"]
        self.wanted = set(wanted["ids"]) if wanted["ids"] is not None else None
        self.file = os.fdopen(os.open(wanted["report"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
        self.passed: set[str] = set()
        self.spoilt: set[str] = set()
        self.lines = 0
        self.collected = 0
        self.sentinels: set[str] = set()
        self.exit_status: int | None = None
        self.tracer: Any = None

    def write(self, **fields: object) -> None:
        self.file.write(json.dumps({"nonce": self.nonce, **fields}) + "\n")
        self.file.flush()
        self.lines += 1

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        ours = [i for i in items if str(i.path) == SENTINELS]
        tests = [i for i in items if str(i.path) != SENTINELS]
        chosen = tests if self.wanted is None else [i for i in tests if i.nodeid in self.wanted]
        self.collected = len({i.nodeid for i in chosen})
        self.sentinels = {i.nodeid for i in ours}
        items[:] = chosen + ours

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            failure = {"type": "CollectionError", "message": "", "crash": str(report.longrepr)[-LIMIT:]}
            self.write(kind="collection", id=report.nodeid, failure=failure)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.tracer is not None:
            self.tracer.switch_context(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and report.failed:
            report.frognano_failure = describe(item, call.excinfo, report)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and type(report).__name__ == "SubtestReport":
            return  # a test reports for its subtests: it fails when one of them does
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            self.spoilt.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)
        self.write(
            kind="sentinel" if report.nodeid in self.sentinels else "test",
            id=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            xfail=hasattr(report, "wasxfail"),
            seconds=round(report.duration, 4),
            failure=getattr(report, "frognano_failure", None),
        )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.exit_status = int(exitstatus)

    def end(self) -> None:
        if self.exit_status is None:
            return  # pytest did not come to its end: there is no end record
        if self.tracer is not None:
            self.tracer.stop()
            data = self.tracer.get_data()
            for file in data.measured_files():
                contexts = {line: [c for c in ids if c] for line, ids in data.contexts_by_lineno(file).items()}
                self.write(kind="lines", file=os.path.relpath(file, REPO), contexts=contexts)
        self.write(kind="end", lines=self.lines, collected=self.collected, exit_status=self.exit_status)
        self.file.close()

    def all_passed(self) -> bool:
        """Whether every wanted test passed: then the next run is worth while."""
        return self.wanted is not None and self.wanted <= self.passed - self.spoilt


def describe(
    item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException], report: pytest.TestReport
) -> dict[str, object]:
    """What a person would quote of a failure: the exception, the line of the test, and where it was raised."""
    entries = [(str(e.path), e.lineno + 1) for e in excinfo.traceback]
    own = [(p, n) for p, n in entries if p == str(item.path)]
    repo = [(p, n) for p, n in entries if p.startswith(REPO)]
    file, line = (own or repo or entries or [("", 0)])[-1]
    raised, raised_line = (repo or entries or [("", 0)])[-1]
    return {
        "type": excinfo.type.__name__,
        "message": text_of(excinfo.value)[:500],
        "file": file.removeprefix(REPO),
        "line": line,
        "source": linecache.getline(file, line).strip()[:300],
        "raised_in": f"{raised.removeprefix(REPO)}:{raised_line}",
        "crash": report.longreprtext[-LIMIT:],
    }


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"(its text raised {type(broken).__name__})"
