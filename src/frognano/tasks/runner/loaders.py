"""How modules are loaded in the box: which bytecode is believed.

What is installed is loaded by the bytecode beside it, which nothing in a box can write. What the repository holds is
loaded by bytecode that was made of these very bytes before any code of the repository ran (see `compiler.py`): its name is
a hash of path and content, so that it can never be of another version of the file. All else is compiled anew.
"""

from __future__ import annotations

import hashlib
import importlib.machinery as machinery
import marshal
import os
import sys
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any

REPO = "/repo"
FOLDER = "/frognano/bytecode"
PLAIN, REWRITTEN = "plain", "rewritten"
"""Code as Python compiles it, and code whose assertions pytest has rewritten."""


def key(kind: str, path: str, source: bytes) -> str:
    """The name of the bytecode of a file: code holds its path, so the path is part of it."""
    return hashlib.sha256(b"\0".join([kind.encode(), path.encode("utf-8", "surrogateescape"), source])).hexdigest()


class Known:
    """Bytecode by content: a folder that is read-only in the box, and what was compiled before the tests started."""

    def __init__(self) -> None:
        self.fresh: dict[str, CodeType] = {}

    def find(self, kind: str, path: str, source: bytes) -> CodeType | None:
        name = key(kind, path, source)
        if name in self.fresh:
            return self.fresh[name]
        try:
            with open(os.path.join(FOLDER, name), "rb") as file:
                code = marshal.load(file)
        except OSError:
            return None
        assert isinstance(code, CodeType)
        return code

    def take(self, path: str, compiled: str) -> bool:
        """Believe that the file ``compiled`` holds the code of what ``path`` holds now; False where it cannot be read."""
        with open(path, "rb") as source, open(compiled, "rb") as code:
            magic = code.read(len(MAGIC_NUMBER))
            if magic == MAGIC_NUMBER:
                self.fresh[key(PLAIN, path, source.read())] = marshal.load(code)
        return magic == MAGIC_NUMBER

    def compile(self, path: str) -> None:
        """Compile a changed file once for all runs that follow; what does not compile is left to them."""
        try:
            with open(path, "rb") as file:
                source = file.read()
            self.fresh[key(PLAIN, path, source)] = compile(source, path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            pass


class Installed(machinery.SourceFileLoader):
    """Loads a module from outside the repository."""

    def get_code(self, fullname: str) -> Any:
        fresh, sys.pycache_prefix = sys.pycache_prefix, None
        try:
            return super().get_code(fullname)
        finally:
            sys.pycache_prefix = fresh


def loader_of(known: Known) -> type[machinery.SourceFileLoader]:
    class Content(machinery.SourceFileLoader):
        """Loads a module of the repository."""

        def get_code(self, fullname: str) -> Any:
            path = self.get_filename(fullname)
            code = known.find(PLAIN, path, self.get_data(path))
            return super().get_code(fullname) if code is None else code

    return Content


def install(installed: tuple[str, ...], known: Known) -> None:
    """Have modules of these folders loaded as `Installed`, those of the repository by their content, and tests too."""

    def finder(loader: type[machinery.SourceFileLoader]) -> Any:
        return machinery.FileFinder.path_hook(
            (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
            (loader, machinery.SOURCE_SUFFIXES),
            (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
        )

    outside, inside = finder(Installed), finder(loader_of(known))

    def hook(path: str) -> Any:
        if path == REPO or path.startswith(REPO + os.sep):
            return inside(path)
        if path in installed or path.startswith(tuple(f + os.sep for f in installed)):
            return outside(path)
        raise ImportError(path)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
    _install_rewritten(known)


def _install_rewritten(known: Known) -> None:
    """pytest asks for the cached code of a test file before it rewrites it: that is where ours is given."""
    from _pytest.assertion import rewrite

    read: Any = getattr(rewrite, "_read_pyc", None)
    if read is None:  # another pytest: it rewrites as ever
        return

    def read_known(source: Any, *rest: Any, **named: Any) -> Any:
        code = known.find(REWRITTEN, str(source), source.read_bytes())
        return read(source, *rest, **named) if code is None else code

    rewrite._read_pyc = read_known
