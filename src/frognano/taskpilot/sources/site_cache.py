"""Site cache: where a repository can be mutated, found once per content, settings and code of ours.

Parsing a repository with libcst costs CPU-seconds, and a run opens its streams again and again. The order of the sites is
kept, so that the candidates are the same ones; what is drawn from them depends on the seed and is not kept.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
import zlib
from collections.abc import Mapping
from pathlib import Path

from frognano.sandbox.scratch import temporary
from frognano.taskpilot.sources.mutation_config import MutationConfig
from frognano.taskpilot.sources.site import Site, find_sites


class SiteCache:
    """A file per key in ``folder``: a head that says key and checksum, and the sites. One that is torn, or of something else,
    is made anew. Safe in several processes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, files: Mapping[str, bytes], covered: Mapping[str, set[int]], config: MutationConfig) -> list[Site]:
        """As `find_sites`."""
        key = _key(files, covered, config)
        place = self.folder / f"{key[:24]}.sites"
        if (held := _read(place, key)) is not None:
            return held
        found = find_sites(files, covered, config)
        self.folder.mkdir(parents=True, exist_ok=True)
        with temporary(self.folder) as scratch:
            (scratch / place.name).write_bytes(_packed(found, key))
            (scratch / place.name).replace(place)
        return found


def _key(files: Mapping[str, bytes], covered: Mapping[str, set[int]], config: MutationConfig) -> str:
    """Of all that `find_sites` depends on."""
    told = [[f, hashlib.sha256(files[f]).hexdigest(), sorted(covered.get(f, ()))] for f in sorted(files)]
    said = json.dumps([code_of(Path(__file__).parent), config.model_dump(mode="json"), told])
    return hashlib.sha256(said.encode()).hexdigest()


@functools.cache
def code_of(folder: Path) -> str:
    """Of what finds sites: the files of this package, the parser, Python's tokenizer."""
    digest = hashlib.sha256(f"{importlib.metadata.version('libcst')} {platform.python_version()}".encode())
    for file in sorted(folder.glob("*.py")):
        digest.update(f"\n{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def _packed(sites: list[Site], key: str) -> bytes:
    body = zlib.compress(json.dumps(sites).encode())
    return _head(key, body) + body


def _head(key: str, body: bytes) -> bytes:
    return f"{key} {hashlib.sha256(body).hexdigest()}\n".encode()


def _read(place: Path, key: str) -> list[Site] | None:
    try:
        data = place.read_bytes()
    except OSError:
        return None
    head, _, body = data.partition(b"\n")
    if head + b"\n" != _head(key, body):
        return None
    return [Site(*row) for row in json.loads(zlib.decompress(body))]
