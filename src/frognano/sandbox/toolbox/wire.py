"""Frames between the host and the resident: a JSON header and raw bytes, both length-prefixed."""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost each box 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HEADER = struct.Struct(">IQ")


def pack(message: dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame. Names that are not UTF-8 travel as lone surrogates, escaped by JSON."""
    head = json.dumps(message).encode("ascii")
    return HEADER.pack(len(head), len(payload)) + head + payload


def read(recv: Callable[[int], bytes]) -> tuple[dict[str, Any], bytes] | None:
    """One frame from a blocking source, or None at its end. ``recv(n)`` gives at most n bytes."""

    def exactly(n: int) -> bytes | None:
        parts = []
        while n:
            part = recv(min(n, 1 << 20))
            if not part:
                return None
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    prefix = exactly(HEADER.size)
    if prefix is None:
        return None
    head_size, payload_size = HEADER.unpack(prefix)
    head, payload = exactly(head_size), exactly(payload_size)
    if head is None or payload is None:
        return None
    return json.loads(head), payload
