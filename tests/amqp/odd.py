"""Property bytes that no encoder of ours writes."""

from __future__ import annotations

import struct


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def nested(depth: int, kind: str, inside: bytes = b"V") -> bytes:
    """A value in so many tables or arrays; those of one kind, or of both in turn."""
    value = inside
    for level in range(depth):
        if kind == "table" or (kind == "both" and level % 2):
            value = b"F" + long(b"\x01a" + value)
        else:
            value = b"A" + long(value)
    return value


def with_table(*entries: tuple[bytes, bytes], others: bytes = b"\x03m-1", flags: int = 0x2080) -> bytes:
    """Properties with these headers as they stand, and a message id."""
    table = b"".join(bytes([len(name)]) + name + value for name, value in entries)
    return flags.to_bytes(2, "big") + long(table) + others


MALFORMED = {
    "of an unknown type": b"F" + long(b"\x01aZ\x01\x02"),
    "cut off inside": b"F" + long(b"\x01aS\x00\x00\x01\x00x"),
    "an array of half a number": b"A" + long(b"l\x00\x00"),
    "a name without a value": b"F" + long(b"\x05ab"),
}
