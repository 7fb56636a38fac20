"""Workshop: real repositories in, validated tasks out. One mutation at a time; every refusal has a reason."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from frognano.records import Environment, Lineage, Task
from frognano.sandbox.base import Sandboxes, persistently
from frognano.taskpilot.arrivals import Rejected
from frognano.taskpilot.example import FailingExample, read_example
from frognano.taskpilot.ladder import StatementRefused, Style, is_whole, ladder
from frognano.taskpilot.sources.mutation import Mutation, propose
from frognano.taskpilot.sources.mutation_config import MutationConfig
from frognano.taskpilot.sources.site_cache import SiteCache
from frognano.tasks import validation
from frognano.tasks.assembly import assemble
from frognano.tasks.baseline import Baseline, measure_baseline
from frognano.tasks.bench import Bench
from frognano.tasks.bytecode import compile_tree
from frognano.tasks.environment import build_environment
from frognano.tasks.harbor import read_task
from frognano.tasks.snapshot import Snapshot
from frognano.tasks.suite import Failure
from frognano.tasks.validation import Candidate, Validated, validate
from frognano.tasks.validation_config import ValidationConfig

Part = Literal["train", "valid", "all"]


@dataclass(frozen=True)
class Prepared:
    """A repository that tasks can be made from."""

    snapshot: Snapshot
    environment: Environment
    venv: Path
    baseline: Baseline
    bound: Mapping[str, Path] = field(default_factory=dict)
    """What its boxes get read-only: its bytecode."""

    @property
    def name(self) -> str:
        return self.snapshot.repository.name


@dataclass(frozen=True)
class Proposal:
    """A mutation that was not tried yet. `id` is the same in every run that has the same `secret`."""

    repository: Prepared
    mutation: Mutation
    id: str


def part_of(group: str, valid_share: float) -> Part:
    """Functions go to training or validation as a whole, by a hash of their name: the split never depends on order."""
    bucket = int.from_bytes(hashlib.sha256(group.encode()).digest()[:4], "big") / 2**32
    return "valid" if bucket < valid_share else "train"


class Workshop:
    """`root` gets a Harbor directory per task; `cache` holds what runs share (snapshots, environments, baselines, sites)."""

    def __init__(
        self, root: Path, cache: Path, sandboxes: Sandboxes, config: ValidationConfig, style: Style, secret: str
    ) -> None:
        self.root, self.cache, self.sandboxes = root, cache, sandboxes
        self.config, self.style, self.secret = config, style, secret
        self.sites = SiteCache(cache / "sites")
        self.bench: Bench | None = Bench(sandboxes)
        """None: each candidate has a box of its own."""
        for left in (*root.glob(".new-*"), *root.glob(".tree-*")):  # by a process that was killed: a run has one writer
            shutil.rmtree(left, ignore_errors=True)

    async def prepare(self, snapshot: Snapshot) -> Prepared:
        """Environment and clean runs; a TaskError says why a repository cannot be used."""
        environment, venv = await build_environment(snapshot, self.cache)
        baseline = await measure_baseline(snapshot, environment, venv, self.sandboxes, self.config, self.cache)
        bound = await compile_tree(snapshot, environment, venv, self.sandboxes, self.cache)
        return Prepared(snapshot, environment, venv, baseline, bound)

    async def close(self) -> None:
        """Close the boxes that wait for further candidates. More candidates may come: they open new ones."""
        if self.bench is not None:
            await self.bench.close()

    def proposals(
        self, repositories: Sequence[Prepared], part: Part, valid_share: float, seed: int, config: MutationConfig
    ) -> Iterator[Proposal]:
        """Mutations of all repositories in turn, of the functions that belong to `part`."""
        streams = [self._of_one(r, part, valid_share, seed, config) for r in repositories]
        while streams:
            for stream in list(streams):
                proposal = next(stream, None)
                if proposal is None:
                    streams.remove(stream)
                else:
                    yield proposal

    def _of_one(
        self, repository: Prepared, part: Part, valid_share: float, seed: int, config: MutationConfig
    ) -> Iterator[Proposal]:
        snapshot, lines = repository.snapshot, repository.baseline.lines
        files = {f: (snapshot.root / f).read_bytes() for f in snapshot.sources()}
        covered = {f: set(lines.get(f, ())) for f in files}
        for mutation in propose(files, covered, seed, config, self.sites.find):
            if part != "all" and part_of(f"{repository.name}:{mutation.file}:{mutation.function}", valid_share) != part:
                continue
            said = "\0".join([self.secret, repository.name, mutation.file, str(mutation.line), str(mutation.column)])
            said += f"\0{mutation.operator}\0{mutation.after_line}"
            yield Proposal(repository, mutation, hashlib.sha256(said.encode()).hexdigest()[:12])

    async def make(self, proposal: Proposal, rung: int) -> Task | Rejected:
        """Validate the bug and write its task. A proposal that was made before (and survived a kill) is only read."""
        place = self.root / proposal.id
        if place.exists():
            return await asyncio.to_thread(read_task, place)
        repository, mutation = proposal.repository, proposal.mutation
        covering = repository.baseline.covering(mutation.file, mutation.line, mutation.line)
        candidate = Candidate(mutation.file, mutation.new_source, covering)

        async def once() -> Validated | validation.Rejected:
            return await validate(
                candidate,
                repository.snapshot,
                repository.environment,
                repository.venv,
                self.sandboxes,
                repository.baseline,
                self.config,
                bound=repository.bound,
                bench=self.bench,
            )

        result = await persistently(once)
        if isinstance(result, validation.Rejected):
            return Rejected(proposal.id, result.reason.value, result.detail)
        try:
            statements = ladder(mutation, _example(result), result.f2p, self.style)
        except StatementRefused as refused:
            return Rejected(proposal.id, refused.reason, str(refused))
        return await assemble(
            self.root,
            repository.snapshot,
            repository.environment,
            result,
            statements=statements,
            rung=min(rung, statements[-1].rung),
            lineage=Lineage(
                generator="mutation",
                operator=mutation.operator,
                file=mutation.file,
                function=mutation.function,
                line=mutation.line,
                seed=mutation.seed,
            ),
            task_id=proposal.id,
        )


def _example(validated: Validated) -> FailingExample:
    """The clearest failure: a short assertion that names values before anything else."""

    def unclear(item: tuple[str, Failure]) -> tuple[bool, bool, int, str]:
        test, failure = item
        example = read_example(failure.type, failure.message, failure.source)
        return (not example.expected, not is_whole(failure.source.strip()), len(failure.source), test)

    if not validated.failures:
        return read_example("", "", "")
    failure = min(validated.failures.items(), key=unclear)[1]
    return read_example(failure.type, failure.message, failure.source.strip())
