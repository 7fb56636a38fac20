"""Files that are whole or absent: written beside, synced, renamed. A full disk becomes one clear error."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frognano.errors import FrogNanoError

TEMP_SUFFIX = ".part"


class StoreError(FrogNanoError):
    """The run folder cannot be used as asked."""


def no_space(where: Path) -> StoreError:
    return StoreError(f"no space left in {where}: free some and run the same command again; nothing is lost")


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full or read-only disk into a StoreError that names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(where) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StoreError(f"cannot write in {where}: {error.strerror}; choose another folder with --out") from error
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """After this returns the file is whole, whatever kills the process; before, the old one (or none) is there."""
    temporary = path.with_name(path.name + TEMP_SUFFIX)
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be written: there is no folder {path.parent}; make it, or name another place")
    with disk_errors(path.parent):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
