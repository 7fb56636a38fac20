"""Candidates from the cache are those that parsing gives; nothing comes from it that was found for something else."""

from __future__ import annotations

import bisect
import colorsys
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from frognano.taskpilot.sources import site_cache
from frognano.taskpilot.sources.mutation import propose
from frognano.taskpilot.sources.mutation_config import POCKET, MutationConfig
from frognano.taskpilot.sources.site import Site, find_sites
from frognano.taskpilot.sources.site_cache import SiteCache, code_of

FILES = {"pkg/b.py": Path(bisect.__file__).read_bytes(), "pkg/c.py": Path(colorsys.__file__).read_bytes()}
FILES["pkg/latin.py"] = "# coding: latin-1\ndef größe(a, b):\n    x = 'é' + a\n    return x < b\n".encode("latin-1")
FILES["pkg/broken.py"] = b"def f(:\n"
COVERED = {name: set(range(1, 300)) for name in FILES}
CONFIG = MutationConfig()


def no_parsing(files: Mapping[str, bytes], covered: Mapping[str, set[int]], config: MutationConfig) -> list[Site]:
    raise AssertionError("it was found again")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "sites"
    SiteCache(folder).find(FILES, COVERED, CONFIG)
    return folder


@pytest.fixture
def cache(filled: Path, tmp_path: Path) -> SiteCache:
    """With the sites of FILES in it."""
    return SiteCache(Path(shutil.copytree(filled, tmp_path / "sites")))


def entry(cache: SiteCache) -> Path:
    """The only file: nothing half written lies beside it."""
    (file,) = cache.folder.iterdir()
    return file


def test_the_stream_of_candidates_is_another_one(cache: SiteCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mutation in order, its file byte for byte; and it was not found by parsing."""
    plain = [list(propose(FILES, COVERED, seed, CONFIG)) for seed in (0, 7)]
    assert len(plain[0]) > 50
    assert plain[0] != plain[1]
    assert "pkg/latin.py" in {m.file for m in plain[0]}
    monkeypatch.setattr(site_cache, "find_sites", no_parsing)
    assert [list(propose(FILES, COVERED, seed, CONFIG, cache.find)) for seed in (0, 7)] == plain


def test_a_candidate_parses_the_repository_again(cache: SiteCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_cache, "find_sites", no_parsing)
    monkeypatch.setattr("libcst.parse_module", no_parsing)
    assert next(propose(FILES, COVERED, 0, CONFIG, cache.find))


@pytest.mark.parametrize("what", ["source", "new file", "lines", "operators", "lengths", "limits"])
def test_what_was_found_for_something_else_is_served(cache: SiteCache, what: str) -> None:
    files, covered, config = dict(FILES), dict(COVERED), CONFIG
    if what == "source":
        files["pkg/c.py"] = FILES["pkg/c.py"].replace(b"return", b"return 2 *", 1)
    elif what == "new file":
        files["pkg/d.py"], covered["pkg/d.py"] = b"def f(a, b):\n    return a + b\n", {1, 2}
    elif what == "lines":
        covered["pkg/c.py"] = set(range(1, 50))
    elif what == "operators":
        config = MutationConfig(operators=("comparison",))
    elif what == "lengths":
        config = MutationConfig(max_function_lines=8)
    else:
        config = POCKET
    fresh = list(propose(files, covered, 0, config))
    assert list(propose(files, covered, 0, config, cache.find)) == fresh
    assert fresh != list(propose(FILES, COVERED, 0, CONFIG, cache.find))
    assert len(list(cache.folder.iterdir())) == 2


def test_what_older_code_found_is_served(cache: SiteCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Path(site_cache.__file__).parent
    other = Path(shutil.copytree(ours, tmp_path / "code"))
    assert code_of(other) == code_of(ours)
    with (other / "operators.py").open("a") as file:
        file.write("# another rule\n")
    code_of.cache_clear()
    changed = code_of(other)
    assert changed != code_of(ours)
    monkeypatch.setattr(site_cache, "code_of", lambda folder: changed)
    monkeypatch.setattr(site_cache, "find_sites", lambda *given: [])
    assert cache.find(FILES, COVERED, CONFIG) == []


@pytest.mark.parametrize("damage", ["empty", "torn", "flipped", "foreign", "of another key"])
def test_a_damaged_entry_is_believed(cache: SiteCache, damage: str) -> None:
    """It is found anew, and the entry is whole again."""
    file, found = entry(cache), find_sites(FILES, COVERED, CONFIG)
    whole = file.read_bytes()
    if damage == "of another key":
        cache.find({"pkg/c.py": FILES["pkg/c.py"]}, COVERED, CONFIG)
        (other,) = set(cache.folder.iterdir()) - {file}
        other.rename(file)
    else:
        middle = len(whole) // 2
        file.write_bytes({
            "empty": b"",
            "torn": whole[:-1],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "foreign": b"\x89PNG\r\n\x1a\n" + bytes(99),
        }[damage])  # fmt: skip
    assert file.read_bytes() != whole
    assert cache.find(FILES, COVERED, CONFIG) == found
    assert entry(cache).read_bytes() == whole
