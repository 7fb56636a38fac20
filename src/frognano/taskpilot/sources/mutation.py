"""The mutation source: one small mistake in one line that tests reach, as a byte-exact edit of one file.

Everything is deterministic for a seed. Proposals go round the operators and, within an operator, to the function that
has had the fewest so far, so that neither one big function nor one frequent operator fills the queue.
"""

from __future__ import annotations

import ast
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, field_validator

from frognano.taskpilot.sources import name_operators, operators, statement_operators
from frognano.taskpilot.sources.operators import Operator
from frognano.taskpilot.sources.source import Edit, Source, UnreadableSource, decode, split_lines
from frognano.taskpilot.sources.unit import Unit, sites, units

OPERATORS: dict[str, Operator] = {
    "comparison": operators.comparison,
    "boundary": operators.boundary,
    "arithmetic": operators.arithmetic,
    "boolean": operators.boolean,
    "negation": operators.negation,
    "constant": operators.constant,
    "off_by_one": operators.off_by_one,
    "augmented_assignment": operators.augmented_assignment,
    "swapped_arguments": name_operators.swapped_arguments,
    "wrong_name": name_operators.wrong_name,
    "wrong_attribute": name_operators.wrong_attribute,
    "wrong_function": name_operators.wrong_function,
    "unwrapped_call": name_operators.unwrapped_call,
    "dropped_statement": statement_operators.dropped_statement,
    "dropped_return": statement_operators.dropped_return,
    "inverted_condition": statement_operators.inverted_condition,
    "loop_control": statement_operators.loop_control,
}

# What kind of mistake it is, in words that do not tell the repair.
KINDS: dict[str, str] = {
    "comparison": "A comparison is wrong",
    "boundary": "A boundary is wrong",
    "arithmetic": "An arithmetic operator is wrong",
    "boolean": "A boolean operator is wrong",
    "negation": "A negation is wrong",
    "constant": "A constant is wrong",
    "off_by_one": "A number is off by one",
    "augmented_assignment": "An assignment operator is wrong",
    "swapped_arguments": "Arguments are in the wrong order",
    "wrong_name": "A wrong variable is used",
    "wrong_attribute": "A wrong attribute or method is used",
    "wrong_function": "A wrong function is called",
    "unwrapped_call": "A call is missing",
    "dropped_statement": "A statement is missing",
    "dropped_return": "The return value is wrong",
    "inverted_condition": "A condition is the wrong way round",
    "loop_control": "The loop is left the wrong way",
}


class MutationConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    operators: tuple[str, ...] = tuple(OPERATORS)
    min_function_lines: int = Field(2, ge=1, description="Lines of code, without docstring, comments and blank lines.")
    max_function_lines: int = Field(60, ge=1)
    max_line_length: int = Field(120, ge=1, description="Of the faulty and of the right line, with indentation.")
    unique_line: bool = Field(False, description="The faulty text occurs once in the file: an Edit can name it.")
    max_per_function: int = Field(6, ge=1)

    @field_validator("operators")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(names) - set(OPERATORS)):
            raise ValueError(f"unknown operators {unknown}, there are {sorted(OPERATORS)}")
        return names


POCKET = MutationConfig(
    min_function_lines=2, max_function_lines=12, max_line_length=88, unique_line=True, max_per_function=4
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake. ``before_line`` is gold, ``after_line`` is what the solver finds: empty where the line is gone."""

    operator: str
    file: str
    function: str
    line: int
    column: int
    before_line: str
    after_line: str
    function_line: int
    function_end: int
    new_source: bytes
    seed: int = 0

    @property
    def function_source(self) -> str:
        """The function as the solver finds it, exact lines joined by newlines."""
        return "\n".join(split_lines(decode(self.new_source))[self.function_line - 1 : self.function_end])


@dataclass(frozen=True, slots=True)
class _Site:
    source: Source
    unit: Unit
    operator: str
    edit: Edit


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


def propose(
    files: Mapping[str, bytes], covered: Mapping[str, set[int]], seed: int, config: MutationConfig
) -> Iterator[Mutation]:
    """Mutations of the product files, only on lines that tests reach, in a balanced order that ``seed`` fixes."""
    rng = random.Random(seed)
    queues: defaultdict[str, defaultdict[str, list[_Site]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(files):
        reached = covered.get(path)
        if reached and is_source(path):
            for site in _file_sites(path, files[path], reached, config):
                queues[site.operator][f"{path}:{site.unit.name}"].append(site)
    for by_function in queues.values():
        for queue in by_function.values():
            rng.shuffle(queue)
    order = sorted(queues)
    rng.shuffle(order)
    given: Counter[str] = Counter()
    ticket = {name: rng.random() for name in sorted({f for q in queues.values() for f in q})}
    while queues:
        for operator in order:
            if operator not in queues:
                continue
            by_function = queues[operator]
            while by_function:
                name = min(by_function, key=lambda f: (given[f], ticket[f]))
                if given[name] >= config.max_per_function:
                    del by_function[name]
                    continue
                site = by_function[name].pop()
                if not by_function[name]:
                    del by_function[name]
                mutation = _apply(site, seed, config)
                if mutation is not None:
                    given[name] += 1
                    yield mutation
                    break
            if not by_function:
                del queues[operator]


def _file_sites(path: str, raw: bytes, reached: set[int], config: MutationConfig) -> Iterator[_Site]:
    try:
        source = Source.parse(path, raw)
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
                        yield _Site(source, unit, name, edit)


def _apply(site: _Site, seed: int, config: MutationConfig) -> Mutation | None:
    """The mutation, or None where it spans lines, is over a limit, does not compile or is the same program."""
    source, edit = site.source, site.edit
    line = source.line_of(edit.start)
    start = source.line_starts[line - 1]
    end = source.line_starts[line] if line < len(source.line_starts) else len(source.text)
    if edit.end > end:
        return None
    before = source.text[start:end]
    after = before[: edit.start - start] + edit.new + before[edit.end - start :]
    gone = after == ""
    if len(before.rstrip()) > config.max_line_length or len(after.rstrip()) > config.max_line_length:
        return None
    text = source.text[: edit.start] + edit.new + source.text[edit.end :]
    if config.unique_line and (gone or text.count(after.strip()) != 1):
        return None
    if not _is_another_program(source.text, text, site.unit, gone):
        return None
    return Mutation(
        operator=site.operator,
        file=source.path,
        function=site.unit.name,
        line=line,
        column=edit.start - start,
        before_line=before.rstrip("\r\n"),
        after_line=after.rstrip("\r\n"),
        function_line=site.unit.first_line,
        function_end=site.unit.last_line - gone,
        new_source=source.splice(edit),
        seed=seed,
    )


def _is_another_program(old: str, new: str, unit: Unit, gone: bool) -> bool:
    """The function compiles and its syntax tree differs. It is enough: the edit lies within one of its lines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = _function_tree(new, unit.first_line, unit.last_line - gone)
            compile(tree, "<mutation>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        return ast.dump(tree) != ast.dump(_function_tree(old, unit.first_line, unit.last_line))


def _function_tree(text: str, first: int, last: int) -> ast.Module:
    lines = split_lines(text)[first - 1 : last]
    indented = lines[0].lstrip("\f")[:1] in (" ", "\t")
    return ast.parse("\n".join(["if 1:", *lines] if indented else lines))
