"""Verdict: what the judge says of one patch. An infrastructure error is never a score."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from frognano.records.base import Record


class Status(StrEnum):
    RESOLVED = "resolved"
    NOT_RESOLVED = "not_resolved"
    NO_PATCH = "no_patch"
    PATCH_FAILED = "patch_failed"
    TIMEOUT = "timeout"
    TAMPERED = "tampered"
    INFRASTRUCTURE_ERROR = "infrastructure_error"


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    MISSING = "missing"


class Verdict(Record):
    """``outcomes`` holds every expected test id (absent ones as ``missing``); ``evidence`` says why, in a few lines."""

    status: Status
    outcomes: dict[str, Outcome] = Field(default_factory=dict)
    evidence: str = ""
    seconds: float = 0.0

    @property
    def resolved(self) -> bool:
        return self.status is Status.RESOLVED

    @property
    def counts(self) -> bool:
        """False for infrastructure errors: they are repeated or left out, never a trial."""
        return self.status is not Status.INFRASTRUCTURE_ERROR
