"""What the README and the pages of docs/ say must be there, must run and must name no place of this or that machine."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
import typer

from frognano.cli.app import app
from frognano.loop.recipe import RecipeConfig
from frognano.records import Status
from frognano.runs.recipe import load_recipe, parse_overrides
from frognano.tasks.repository import RepositoryConfig
from frognano.tasks.validation import Reason

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(p.relative_to(ROOT)) for p in PAGES]
OUTSIDE = {"git", "cd", "source"}
"""Programs that a command block may start with besides ours."""


def commands(text: str) -> list[str]:
    """Lines of ```sh blocks, continued lines joined, comments left out."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split(" # ")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_reference", ROOT / "scripts" / "recipe_reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """Fragments of a page's headings, as the usual renderers make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


def test_the_recipe_reference_is_out_of_date():
    made = script().page()
    assert (ROOT / "docs" / "recipe.md").read_text() == made, "run: python scripts/recipe_reference.py"


def test_a_recipe_key_has_no_meaning():
    assert script().unexplained() == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_command_is_unknown(page: Path):
    group = typer.main.get_command(app)
    for command in commands(page.read_text()):
        words = [w for w in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", w)]
        program = words[0].removeprefix(".venv/bin/")
        if program == "make":
            goals = [w for w in words[1:] if "=" not in w]
            assert set(goals) <= targets(), command
        elif program == "frognano":
            names = dict(group.commands)  # type: ignore[attr-defined]
            assert words[1] in names or words[1].startswith("--"), command
            if words[1] == "tasks":
                assert words[2] in names["tasks"].commands, command
            known = {o for p in names[words[1]].params for o in p.opts} if words[1] in names else {words[1]}
            if words[1] in ("loop", "pilot", "train", "eval"):
                check_recipe_command(words[2:], command)
            elif words[1] != "tasks":
                assert {w for w in words[2:] if w.startswith("--")} <= known | {"--help"}, command
        elif program == "python":
            assert words[1].startswith("-") or (ROOT / words[1]).is_file(), command
        elif "/" in program:
            assert os.access(ROOT / program, os.X_OK), command
        else:
            assert program in OUTSIDE, f"{command}: neither frognano nor make"


def check_recipe_command(words: list[str], command: str) -> None:
    """The overrides of a shown command are keys of the recipe, with values that it takes."""
    if words == ["--help"]:
        return
    rest = words[1:]
    if "--out" in rest:
        at = rest.index("--out")
        rest = rest[:at] + rest[at + 2 :]
    recipe = ROOT / words[0]
    load_recipe(recipe if recipe.is_file() else ROOT / "recipes" / "pocket.toml", RecipeConfig, parse_overrides(rest))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_link_leads_nowhere(page: Path):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / unquote(path)).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if fragment and file.suffix == ".md":
            assert fragment in anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_file_that_a_page_names_is_gone(page: Path):
    """Paths in backticks that begin like files of this repository."""
    for name in re.findall(r"`((?:src|tests|scripts|recipes|docs)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_toml_block_is_no_recipe(page: Path):
    """A block that begins with a section of the recipe holds keys that there are."""
    for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)):
        keys = {line.strip("[]").split(".")[0] for line in block.splitlines() if re.fullmatch(r"\[[\w.-]+\]", line)}
        if keys and keys <= set(RecipeConfig.model_fields):
            checked(block, f"{page.name}, TOML block {number}")


def checked(block: str, where: str) -> None:
    base = tomllib.loads((ROOT / "recipes" / "pocket.toml").read_text())
    for section, values in tomllib.loads(block).items():
        base[section] = {**base.get(section, {}), **values}
    assert RecipeConfig.model_validate(base), where


def test_a_pool_block_is_no_pool():
    text = (ROOT / "docs" / "make-tasks.md").read_text()
    pools = [b for b in re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if "[repository." in b]
    assert pools
    for pool in pools:
        for name, entry in tomllib.loads(pool)["repository"].items():
            RepositoryConfig(name=name, **entry)


def test_the_map_names_a_file_that_is_gone():
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)/` \|(.*)$", text, re.MULTILINE)
    assert len(rows) == len([p for p in (ROOT / "src" / "frognano").iterdir() if (p / "__init__.py").is_file()])
    for room, row in rows:
        there = [p.as_posix() for p in (ROOT / "src" / "frognano" / room).rglob("*.py")]
        for name in re.findall(r"`([\w/]+\.py)`", row):
            assert any(p.endswith(f"/{name}") for p in there), f"{room}/ has no {name}"


def test_a_reason_for_rejection_is_not_explained():
    text = (ROOT / "docs" / "make-tasks.md").read_text()
    assert [r.value for r in Reason if f"`{r.value}`" not in text] == []


def test_a_verdict_is_not_explained():
    text = (ROOT / "docs" / "grading.md").read_text()
    assert [s.value for s in Status if f"`{s.value}`" not in text] == []


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:  # an unpacked archive
        return [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").iterdir(), *(ROOT / "recipes").iterdir()]
    return [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]


def test_a_tracked_file_names_a_machine_or_a_registry():
    """Written in parts, so that this file does not find itself."""
    machine = ["/work" + "/", "/dev/shm" + "/w", "/ro" + "ot/.", ".py" + "env/", ".lib" + "rary/"]
    registry = [
        "py" + "pi.org",
        "pythonhosted" + ".org",
        "download.pytorch" + ".org",
        "--index" + "-url",
        "extra-index" + "-url",
    ]
    found = []
    for file in tracked():
        if not file.is_file() or file.is_symlink():
            continue
        text = file.read_bytes().decode("utf-8", "ignore")
        found += [f"{file.relative_to(ROOT)}: {word}" for word in (*machine, *registry) if word in text]
    assert found == []


def test_a_metric_is_not_explained():
    """What whole runs logged: each name stands on the page of metrics."""

    explained = (ROOT / "docs" / "alarms.md").read_text().split("## Metrics")[1]
    arms = json.loads((ROOT / "docs" / "results" / "experiment.json").read_text())["arms"]
    series = [rows for runs in arms.values() for run in runs for rows in run["metrics"].values()]
    names = {name for rows in series for _, values in rows for name in values}
    assert {"entropy", "peak_gb", "admitted"} <= names
    assert sorted(n for n in names if f"`{n}`" not in explained) == []
