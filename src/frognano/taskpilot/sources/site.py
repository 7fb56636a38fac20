"""Sites: every place of a repository where an operator may make a mistake. ``mutation.py`` draws what is tried of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from frognano.taskpilot.sources.mutation_config import OPERATORS, MutationConfig
from frognano.taskpilot.sources.source import Edit, Source, UnreadableSource
from frognano.taskpilot.sources.unit import sites, units


class Site(NamedTuple):
    """An edit that an operator may make: ``start`` and ``end`` in characters of the file, the lines of its function from 1."""

    path: str
    function: str
    first_line: int
    last_line: int
    operator: str
    start: int
    end: int
    new: str

    @property
    def edit(self) -> Edit:
        return Edit(self.start, self.end, self.new)


Find = Callable[[Mapping[str, bytes], Mapping[str, set[int]], MutationConfig], list[Site]]
"""(files, covered lines, settings) -> their sites, as `find_sites` gives them."""


def is_source(path: str) -> bool:
    """A Python file that is product code: no test, no configuration of tests, documentation, build or examples."""
    p = PurePosixPath(path)
    folders = {"test", "tests", "testing", "docs", "doc", "examples", "benchmarks", "build", "_vendor", "misc"}
    starts = ("test_", "tests", "conftest", "setup.", "noxfile", "fabfile", "_version", "versioneer")
    return (
        p.suffix == ".py"
        and not folders & set(p.parts[:-1])
        and not p.name.startswith(starts)
        and not p.name.endswith("_test.py")
    )


def find_sites(files: Mapping[str, bytes], covered: Mapping[str, set[int]], config: MutationConfig) -> list[Site]:
    """Every site of the product files on lines that tests reach, file by file; CPU-seconds a repository."""
    return [
        site
        for path in sorted(files)
        if (reached := covered.get(path)) and is_source(path)
        for site in _file_sites(path, files[path], reached, config)
    ]


def _file_sites(path: str, raw: bytes, reached: set[int], config: MutationConfig) -> Iterator[Site]:
    try:
        source = Source.read(path, raw)
    except UnreadableSource:
        return  # not a file that an edit can be placed in; the repository's other files still are
    attributes = source.attributes()
    chosen = [(name, OPERATORS[name]) for name in config.operators]
    for unit in units(source):
        if not config.min_function_lines <= unit.code_lines <= config.max_function_lines:
            continue
        for node, place, statement_line in sites(source, unit, attributes):
            for name, operator in chosen:
                for edit in operator(node, place):
                    line = source.line_of(edit.start)
                    if line in reached or statement_line in reached:
                        lines = unit.first_line, unit.last_line
                        yield Site(path, unit.name, *lines, name, edit.start, edit.end, edit.new)
