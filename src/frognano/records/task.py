"""Task: what is solved. A statement, a repository snapshot with its environment, a gold patch and the hidden tests."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from frognano.records.base import Record

Kind = Literal["bug_fix", "feature", "refactor", "migration", "performance"]


class Origin(Record):
    """Where the repository came from. ``tree`` is the git tree id of the clean snapshot."""

    name: str
    version: str
    source: Literal["sdist", "path", "git"]
    tree: str


class Environment(Record):
    """The Python environment tests run in. ``key`` addresses it by content: python + lock + build recipe."""

    key: str
    python: str
    lock: tuple[str, ...] = Field(description="Pinned requirements, one `name==version` a line.")


class Statement(Record):
    """One rung of the statement ladder: 0 tells the symptom only, higher rungs localise more. None holds the fix."""

    rung: int = Field(ge=0)
    name: str
    text: str = Field(min_length=1)


class Lineage(Record):
    """How the task was made. Never shown to a solver."""

    generator: str = Field(description="Name of the source, e.g. `mutation`.")
    operator: str = ""
    file: str = ""
    function: str = Field("", description="Qualified name in the file, e.g. `Class.method`.")
    line: int = 0
    seed: int = 0
    parent: str = ""


class Validation(Record):
    """What was run to believe the task: repeats of the bugged tree and of gold, and what a no-op scored."""

    bug_runs: int = Field(ge=0)
    gold_runs: int = Field(ge=0)
    noop_resolved: bool
    seconds: float = 0.0
    test_seconds: float | None = Field(None, ge=0, description="What the graded tests take on the clean tree.")


class PolicyEvaluation(Record):
    """One measured pass rate, bound to everything it depends on."""

    policy: str
    harness: str
    budget: str
    rung: int
    n: int = Field(ge=0)
    k: int = Field(ge=0)
    stage: Literal["screen", "confirm"]

    @model_validator(mode="after")
    def _k_of_n(self) -> Self:
        if self.k > self.n:
            raise ValueError(f"{self.k} successes of {self.n} trials")
        return self


class Task(Record):
    """A task. ``base`` is the git tree id of the tree that the solver sees (bug in, hidden tests out)."""

    id: str = Field(min_length=8, description="Random; means nothing to the solver.")
    origin: Origin
    environment: Environment
    base: str
    kind: Kind = "bug_fix"
    statements: tuple[Statement, ...] = Field(min_length=1)
    rung: int = Field(description="The rung that the solver is given.")
    gold_patch: bytes = Field(min_length=1)
    f2p: tuple[str, ...] = Field(min_length=1, description="Test ids that fail before gold and pass after it.")
    p2p: tuple[str, ...] = ()
    p2p_excluded: dict[str, str] = Field(default_factory=dict, description="Test id to the reason it was dropped.")
    hidden_files: tuple[str, ...] = Field((), description="Test files that the solver does not see.")
    lineage: Lineage
    validation: Validation
    evaluations: tuple[PolicyEvaluation, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rungs = [s.rung for s in self.statements]
        if rungs != sorted(set(rungs)):
            raise ValueError(f"task {self.id}: statement rungs must rise without repeats, got {rungs}")
        if self.rung not in rungs:
            raise ValueError(f"task {self.id}: rung {self.rung} has no statement (there are {rungs})")
        if both := set(self.f2p) & set(self.p2p):
            raise ValueError(f"task {self.id}: both fail-to-pass and pass-to-pass: {sorted(both)[:3]}")
        return self

    @property
    def statement(self) -> Statement:
        """The statement at the current rung."""
        return next(s for s in self.statements if s.rung == self.rung)

    @property
    def group(self) -> str:
        """The function that the bug sits in: the unit that intervals are clustered by and splits are made by."""
        return f"{self.origin.name}:{self.lineage.file}:{self.lineage.function}"

    def at_rung(self, rung: int) -> Task:
        """The same task with another statement; snapshot, gold and tests stay."""
        return Task.model_validate({**self.model_dump(), "rung": rung})
