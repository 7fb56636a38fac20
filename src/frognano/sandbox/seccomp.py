"""The system call filter of a box, BPF assembled here: refuses what no honest command needs."""

from __future__ import annotations

import errno
import platform
import struct

_X86_64, _AARCH64 = 0xC000003E, 0xC00000B7
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_AF_VSOCK = 40
_CLONE_NEW = 0x7E020080  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME

# name: (x86_64, aarch64), None where the architecture has no such call
DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
}


def supported(machine: str | None = None) -> bool:
    return (machine or platform.machine()) in ("x86_64", "aarch64")


def program(machine: str | None = None) -> bytes:
    """The filter as an array of ``struct sock_filter``. Another architecture's calls kill the process."""
    machine = machine or platform.machine()
    x86 = machine == "x86_64"
    if not supported(machine):
        raise ValueError(f"no seccomp filter for {machine}, only for x86_64 and aarch64")
    column = 0 if x86 else 1
    socket, socketpair, clone, clone3, ioctl = (41, 53, 56, 435, 16) if x86 else (198, 199, 220, 435, 29)
    prlimit64 = 302 if x86 else 261

    code: list[tuple[int, int, int, int]] = []

    def load(offset: int) -> None:
        code.append((0x20, 0, 0, offset))  # BPF_LD | BPF_W | BPF_ABS

    def ret(value: int) -> None:
        code.append((0x06, 0, 0, value))

    def skip_unless_equal(value: int, n: int) -> None:
        code.append((0x15, 0, n, value))

    load(4)  # arch
    skip_unless_equal(_X86_64 if x86 else _AARCH64, 1)
    code.append((0x05, 0, 0, 1))  # jump over the kill
    ret(_KILL)
    load(0)  # nr
    if x86:
        code.append((0x35, 0, 1, 0x40000000))  # the x32 calls would pass every number below
        ret(_ERRNO | errno.ENOSYS)
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            skip_unless_equal(number, 1)
            ret(_ERRNO | errno.EPERM)
    skip_unless_equal(clone3, 1)  # its flags lie in memory, out of reach: libc falls back to clone
    ret(_ERRNO | errno.ENOSYS)
    skip_unless_equal(clone, 3)
    load(16)  # flags
    code.append((0x45, 0, 1, _CLONE_NEW))  # BPF_JSET
    ret(_ERRNO | errno.EPERM)
    load(0)
    for call in (socket, socketpair):
        skip_unless_equal(call, 3)
        load(16)  # family
        skip_unless_equal(_AF_VSOCK, 1)
        ret(_ERRNO | errno.EAFNOSUPPORT)
        load(0)
    skip_unless_equal(prlimit64, 4)  # of other processes: with a limit of CPU time the kernel would kill the resident
    load(16)  # pid
    code.append((0x15, 1, 0, 0))  # one's own
    ret(_ERRNO | errno.EPERM)
    load(0)
    skip_unless_equal(ioctl, 4)
    load(24)  # request
    skip_unless_equal(0x5412, 1)  # TIOCSTI types into a terminal
    ret(_ERRNO | errno.EPERM)
    load(0)
    ret(_ALLOW)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
