"""The workspace in the box: unpacked at the start, compared with its start at the end."""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

JUNK = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
_CLOCK_REALTIME_COARSE = 5  # the clock of file times


class Tree:
    """Remembers inode, change time, size and mode of every file. Change times cannot be set, so no change is missed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.start: dict[str, tuple[int, int, int, int] | None] = {}

    def unpack(self, entries: list[list[Any]], payload: bytes) -> None:
        """Write ``[path, mode, mtime_ns, size]`` entries; directories come before what they hold and have size -1."""
        offset = 0
        directories = []
        view = memoryview(payload)
        for path, mode, mtime, size in entries:
            target = os.path.join(self.root, path)
            if size < 0:
                os.mkdir(target)
                directories.append((target, mode, mtime))
                continue
            data = view[offset : offset + size]
            offset += size
            if stat.S_ISLNK(mode):
                os.symlink(bytes(data), os.fsencode(target))
                continue
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            while data:
                data = data[os.write(fd, data) :]
            os.fchmod(fd, stat.S_IMODE(mode))
            os.utime(fd, ns=(mtime, mtime))
            os.close(fd)
        for target, mode, mtime in reversed(directories):
            os.chmod(target, stat.S_IMODE(mode) | 0o700)
            os.utime(target, ns=(mtime, mtime))
        now = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        for path, s in self._walk():
            # written in this very tick of the clock: a later write might not show, so compare the content
            self.start[path] = None if s.st_ctime_ns >= now else _identity(s)

    def changes(self, limit: int) -> tuple[dict[str, Any], bytes]:
        """Deleted paths, and ``[path, mode, size]`` with the bytes of every file that may differ from its start."""
        entries, parts, seen = [], [], set()
        total = 0
        for path, s in self._walk():
            seen.add(path)
            if self.start.get(path, 0) == _identity(s):
                continue
            target = os.path.join(self.root, path)
            if stat.S_ISLNK(s.st_mode):
                data = os.readlink(os.fsencode(target))
            elif s.st_blocks * 512 + total > limit or s.st_size + total > limit:
                return {"error": f"the changes are larger than {limit} bytes ({path})"}, b""
            else:
                try:
                    data = _read_file(target)
                except PermissionError:
                    os.chmod(target, stat.S_IMODE(s.st_mode) | 0o400)
                    data = _read_file(target)
            total += len(data)
            entries.append([path, s.st_mode, len(data), path not in self.start])
            parts.append(data)
        deleted = [path for path in self.start if path not in seen]
        return {"entries": entries, "deleted": deleted}, b"".join(parts)

    def everything(self) -> dict[str, tuple[int, ...]]:
        """Modification time, change time, inode, size and mode of all there is, junk too; of folders inode and mode."""
        found: dict[str, tuple[int, ...]] = {}
        folders = [""]
        for folder in folders:
            for entry in os.scandir(os.path.join(self.root, folder)):
                path = os.path.join(folder, entry.name)
                s = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(s.st_mode):
                    folders.append(path)
                    found[path] = s.st_ino, s.st_mode
                else:
                    found[path] = s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_size, s.st_mode
        return found

    def _walk(self, directory: str = "") -> Iterator[tuple[str, os.stat_result]]:
        try:
            found = sorted(os.scandir(os.path.join(self.root, directory)), key=lambda e: e.name)
        except PermissionError:
            os.chmod(os.path.join(self.root, directory), 0o700)
            found = sorted(os.scandir(os.path.join(self.root, directory)), key=lambda e: e.name)
        for entry in found:
            path = os.path.join(directory, entry.name)
            if entry.name == ".git":
                continue
            s = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(s.st_mode):
                if entry.name in JUNK and not any(p.startswith(path + "/") for p in self.start):
                    continue
                yield from self._walk(path)
            elif stat.S_ISREG(s.st_mode) or stat.S_ISLNK(s.st_mode):
                yield path, s


def empty(folder: str) -> bool:
    """Remove all that a folder holds, but what is mounted in it and the way there; whether it is empty now."""
    device, all_gone = os.lstat(folder).st_dev, True
    for entry in list(os.scandir(folder)):
        if entry.stat(follow_symlinks=False).st_dev != device:
            all_gone = False
        elif not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
        else:
            os.chmod(entry.path, 0o700)
            if empty(entry.path):
                os.rmdir(entry.path)
            else:
                os.chmod(entry.path, 0o755)
                all_gone = False
    return all_gone


def _read_file(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as f:
        return f.read()


def _identity(s: os.stat_result) -> tuple[int, int, int, int]:
    return s.st_ino, s.st_ctime_ns, s.st_size, s.st_mode
