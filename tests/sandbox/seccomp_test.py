"""The filter is assembled by hand: run it by hand, also for the machine that the tests do not run on."""

from __future__ import annotations

import struct

import pytest

from frognano.sandbox import seccomp

ALLOW, EPERM, ENOSYS, EAFNOSUPPORT, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50061, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {  # socket, clone, clone3, ioctl, read
    "x86_64": (41, 56, 435, 16, 0),
    "aarch64": (198, 220, 435, 29, 63),
}


def verdict(program: bytes, arch: int, number: int, first: int = 0, second: int = 0) -> int:
    data = struct.pack("=IIQQQ", number, arch, 0, first, second)
    accumulator = at = 0
    while True:
        code, yes, no, k = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif code == 0x06:
            return k
        elif code == 0x05:
            at += k
        else:
            held = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            at += yes if held else no


@pytest.mark.parametrize("machine", ARCH)
def test_a_jump_lands_beside_its_target(machine: str) -> None:
    program, arch = seccomp.program(machine), ARCH[machine]
    socket, clone, clone3, ioctl, read = NUMBERS[machine]
    column = list(ARCH).index(machine)
    for name, numbers in seccomp.DENIED.items():
        if (number := numbers[column]) is not None:
            assert verdict(program, arch, number) == EPERM, name
    assert verdict(program, arch, read) == ALLOW
    assert verdict(program, arch, socket, 40) == EAFNOSUPPORT
    assert verdict(program, arch, socket, 2) == ALLOW
    assert verdict(program, arch, clone, 0x10000011) == EPERM
    assert verdict(program, arch, clone, 0x3D0F00) == ALLOW  # a thread
    assert verdict(program, arch, clone3) == ENOSYS
    assert verdict(program, arch, ioctl, 0, 0x5412) == EPERM
    assert verdict(program, arch, ioctl, 0, 0x5413) == ALLOW
    other = next(value for value in ARCH.values() if value != arch)
    assert verdict(program, other, read) == KILL
    assert verdict(program, 0x40000003, read) == KILL  # 32-bit calls


def test_an_unknown_machine_gets_the_wrong_numbers() -> None:
    assert not seccomp.supported("riscv64")
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")
