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

from frognano.taskpilot.sources.mutation_config import MutationConfig
from frognano.taskpilot.sources.site import Find, Site, find_sites
from frognano.taskpilot.sources.source import Text, decode, split_lines


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


def propose(
    files: Mapping[str, bytes],
    covered: Mapping[str, set[int]],
    seed: int,
    config: MutationConfig,
    find: Find = find_sites,
) -> Iterator[Mutation]:
    """Mutations of the product files, only on lines that tests reach, in a balanced order that ``seed`` fixes."""
    rng = random.Random(seed)
    queues: defaultdict[str, defaultdict[str, list[Site]]] = defaultdict(lambda: defaultdict(list))
    for found in find(files, covered, config):
        queues[found.operator][f"{found.path}:{found.function}"].append(found)
    for by_function in queues.values():
        for queue in by_function.values():
            rng.shuffle(queue)
    order = sorted(queues)
    rng.shuffle(order)
    given: Counter[str] = Counter()
    ticket = {name: rng.random() for name in sorted({f for q in queues.values() for f in q})}
    texts: dict[str, Text] = {}
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
                if site.path not in texts:
                    texts[site.path] = Text.read(site.path, files[site.path])
                mutation = _apply(site, texts[site.path], seed, config)
                if mutation is not None:
                    given[name] += 1
                    yield mutation
                    break
            if not by_function:
                del queues[operator]


def _apply(site: Site, source: Text, seed: int, config: MutationConfig) -> Mutation | None:
    """The mutation, or None where it spans lines, is over a limit, does not compile or is the same program."""
    edit = site.edit
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
    if not _is_another_program(source.text, text, site, gone):
        return None
    return Mutation(
        operator=site.operator,
        file=source.path,
        function=site.function,
        line=line,
        column=edit.start - start,
        before_line=before.rstrip("\r\n"),
        after_line=after.rstrip("\r\n"),
        function_line=site.first_line,
        function_end=site.last_line - gone,
        new_source=source.splice(edit),
        seed=seed,
    )


def _is_another_program(old: str, new: str, site: Site, gone: bool) -> bool:
    """The function compiles and its syntax tree differs. It is enough: the edit lies within one of its lines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = _function_tree(new, site.first_line, site.last_line - gone)
            compile(tree, "<mutation>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        return ast.dump(tree) != ast.dump(_function_tree(old, site.first_line, site.last_line))


def _function_tree(text: str, first: int, last: int) -> ast.Module:
    lines = split_lines(text)[first - 1 : last]
    indented = lines[0].lstrip("\f")[:1] in (" ", "\t")
    return ast.parse("\n".join(["if 1:", *lines] if indented else lines))
