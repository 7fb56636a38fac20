"""Repository: where a snapshot is taken from and which tests it is judged by."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from frognano.errors import ConfigError
from frognano.runs.recipe import explain, parse_toml
from frognano.tasks.errors import TaskError


def _digits(count: int) -> AfterValidator:
    def check(given: str) -> str:
        if not re.fullmatch(rf"([0-9a-f]{{{count}}})?", given):
            raise ValueError(f"{count} hexadecimal digits are needed, in small letters")
        return given

    return AfterValidator(check)


class RepositoryConfig(BaseModel):
    """One repository. The source is an sdist (``sha256``), a ``path``, or ``git`` with a ``commit``: exactly one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    version: str = Field(min_length=1)
    sha256: Annotated[str, _digits(64)] = Field(default="", description="Of the sdist in the package index.")
    path: Path | None = Field(default=None, description="A checkout (its tracked files) or a plain folder.")
    git: str = Field(default="", description="A URL that `git fetch` takes; used with ``commit``.")
    commit: Annotated[str, _digits(40)] = ""
    package: str = Field(default="", description="Import name; the name with `_` for `-` when empty.")
    role: Literal["train", "heldout"] = "train"
    tests: tuple[str, ...] = Field(min_length=1, description="Test files and folders, relative to the tree.")
    requirements: tuple[str, ...] = Field(default=("pytest==9.2.0",), description="Pinned; pytest is one of them.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum([bool(self.sha256), self.path is not None, bool(self.git)]) != 1:
            raise ValueError(f"repository {self.name}: give exactly one of sha256 (an sdist), path, or git")
        if bool(self.git) != bool(self.commit):
            raise ValueError(f"repository {self.name}: git and commit go together")
        if loose := [r for r in self.requirements if "==" not in r]:
            raise ValueError(f"repository {self.name}: pin {', '.join(loose)} as name==version")
        if not any(r.startswith("pytest==") for r in self.requirements):
            raise ValueError(f"repository {self.name}: the requirements lack pytest==…")
        if outside := [t for t in self.tests if Path(t).is_absolute() or ".." in Path(t).parts]:
            raise ValueError(f"repository {self.name}: test paths outside the tree: {', '.join(outside)}")
        return self

    @property
    def module(self) -> str:
        """The import name."""
        return self.package or self.name.replace("-", "_")

    def folder(self) -> Path:
        """The ``path`` of a repository that has one; a TaskError where nothing is there."""
        assert self.path is not None
        folder = self.path.expanduser().resolve()
        if not folder.is_dir():
            raise TaskError(f"repository {self.name}: {folder} is no folder; correct its `path` in the pool")
        return folder

    @property
    def source(self) -> Literal["sdist", "path", "git"]:
        return "sdist" if self.sha256 else "path" if self.path else "git"


def load_repositories(file: Path | None = None) -> dict[str, RepositoryConfig]:
    """The repositories of a TOML file, by name; without a file, the pool that comes with frognano. A ConfigError says what
    is wrong with an entry."""
    text = (file or files("frognano.tasks") / "repositories.toml").read_text()
    place = file or Path("repositories.toml")
    entries = parse_toml(text, place).get("repository")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigError(f"{place} is not a pool of repositories: it has no sections like [repository.NAME]")
    return {name: _read(name, entry, place) for name, entry in entries.items()}


def _read(name: str, entry: dict[str, Any], place: Path) -> RepositoryConfig:
    try:
        return RepositoryConfig.model_validate({"name": name, **entry})
    except ValidationError as error:
        raise ConfigError("\n".join(explain(error, place, RepositoryConfig, within=f"repository.{name}"))) from error
