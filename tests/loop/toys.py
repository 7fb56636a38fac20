"""Two tiny repositories and the recipes that are run on them."""

from __future__ import annotations

from pathlib import Path

Function = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""name, arguments, body, (arguments of a call, what it must give) …"""

TRAIN: tuple[Function, ...] = (
    ("add_three", "x", "return x + 3", (("1", "4"), ("5", "8"))),
    ("area", "w, h", "return w * h", (("2, 5", "10"), ("3, 3", "9"))),
    ("gap", "a, b", "return a - b", (("7, 2", "5"), ("9, 1", "8"))),
    ("total", "p, q", "return p + q", (("7, 2", "9"), ("9, 1", "10"))),
    ("times_four", "x", "return x * 4", (("1", "4"), ("5", "20"))),
    ("next_year", "year", "return year + 1", (("1999", "2000"), ("2024", "2025"))),
    ("square", "n", "return n * n", (("3", "9"), ("5", "25"))),
    ("minus_two", "k", "return k - 2", (("8", "6"), ("9", "7"))),
    ("width", "left, right", "return right - left", (("2, 7", "5"), ("1, 9", "8"))),
    ("cost", "price, count", "return price * count", (("2, 5", "10"), ("3, 3", "9"))),
    ("longer", "text, extra", "return text + extra", (("'ab', 'c'", "'abc'"), ("'x', 'y'", "'xy'"))),
    ("is_low", "t", "return t < 10", (("3", "True"), ("30", "False"))),
    ("both_on", "a, b", "return a and b", (("True, False", "False"), ("True, True", "True"))),
    ("is_adult", "age", "return age > 17", (("18", "True"), ("12", "False"))),
)
HELDOUT: tuple[Function, ...] = (
    ("add_ten", "n", "return n + 10", (("1", "11"), ("5", "15"))),
    ("weight", "mass, g", "return mass * g", (("2, 5", "10"), ("3, 3", "9"))),
    ("rest", "a, b", "return a - b", (("7, 2", "5"), ("9, 1", "8"))),
    ("sum_of", "u, v", "return u + v", (("7, 2", "9"), ("9, 1", "10"))),
    ("double", "m", "return m * 2", (("3", "6"), ("5", "10"))),
    ("is_hot", "t", "return t > 30", (("31", "True"), ("3", "False"))),
    ("ready", "on, up", "return on and up", (("True, False", "False"), ("True, True", "True"))),
    ("before", "day", "return day - 1", (("4", "3"), ("9", "8"))),
    ("change", "paid, price", "return paid - price", (("4, 1", "3"), ("9, 1", "8"))),
    ("join", "head, tail", "return head + tail", (("'ab', 'c'", "'abc'"), ("'x', 'y'", "'xy'"))),
)
"""Bodies that a tiny model repairs now and then: one operator, and a file name that it can copy without a slip."""


def write_repository(root: Path, package: str, functions: tuple[Function, ...]) -> Path:
    """A module and a test for each function; one test file a function, so that few are hidden."""
    (root / "tests").mkdir(parents=True)
    source = ['"""Small functions."""']
    for name, arguments, body, calls in functions:
        # Nothing of a body stands twice in the file, or an Edit could not name it.
        source += ["", "", f"def {name}({arguments}):", f'    """What `{name}` says."""', f"    {body}"]
        tests = [f"from {package} import {name}", "", "", f"def test_{name}():"]
        tests += [f"    assert {name}({given}) == {wanted}" for given, wanted in calls]
        (root / "tests" / f"test_{name}.py").write_text("\n".join(tests) + "\n")
    (root / f"{package}.py").write_text("\n".join(source) + "\n")
    return root


def write_pool(folder: Path) -> Path:
    """Both repositories and the pool that names them."""
    folder.mkdir(exist_ok=True)
    file = folder / "pool.toml"
    entries = []
    for name, module, functions in (("trainee", "pairs", TRAIN), ("stranger", "text", HELDOUT)):
        root = write_repository(folder / name, module, functions)
        entries += [f"[repository.{name}]", 'version = "1.0"', f'path = "{root}"', f'package = "{module}"']
        entries += ['tests = ["tests"]', ""]
    file.write_text("\n".join(entries))
    return file


COMMON = """
[run]
name = "mini"
[model]
path = "{model}"
trainable_layers = {layers}
dtype = "auto"
threads = 1
[harness]
prompt = "pocket"
renderer = "xml"
style = "pocket"
[sampling]
temperature = {temperature}
max_tokens_per_turn = {tokens}
[budget]
max_turns = {turns}
max_context_tokens = 1400
max_seconds = 3600
[box]
memory_mb = 512
disk_mb = 64
cpu_seconds = 20
wall_seconds = 120
[repositories]
file = "{pool}"
train = ["trainee"]
heldout = ["stranger"]
valid_share = 0.315
[validation]
max_p2p = 2
[mutation]
operators = ["arithmetic", "comparison", "boolean"]
max_function_lines = 12
max_line_length = 68
unique_line = true
max_per_function = 3
"""


def write_recipe(file: Path, text: str, **settings: object) -> Path:
    file.write_text((COMMON + text).format(**settings))
    return file
