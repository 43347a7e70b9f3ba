"""The fourteen basic properties, to and from their bytes.

pamqp decodes header tables; the rest is ours for three reasons: a property that is not UTF-8 must not make
a message unreadable (it comes out with surrogate escapes, and goes back in as it was), a Python float must go
out as a double, and a changed header must leave every other byte of the message's properties alone.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pamqp import common, decode, encode
from pamqp.commands import Basic

from leash.errors import ConfigError, ProtocolError

Properties = Basic.Properties

NONE = b"\x00\x00"
"""No property at all, encoded."""

_SHORT, _TABLE, _OCTET, _TIME = range(4)
_FIELDS = [
    ("content_type", 0x8000, _SHORT),
    ("content_encoding", 0x4000, _SHORT),
    ("headers", 0x2000, _TABLE),
    ("delivery_mode", 0x1000, _OCTET),
    ("priority", 0x0800, _OCTET),
    ("correlation_id", 0x0400, _SHORT),
    ("reply_to", 0x0200, _SHORT),
    ("expiration", 0x0100, _SHORT),
    ("message_id", 0x0080, _SHORT),
    ("timestamp", 0x0040, _TIME),
    ("message_type", 0x0020, _SHORT),
    ("user_id", 0x0010, _SHORT),
    ("app_id", 0x0008, _SHORT),
    ("cluster_id", 0x0004, _SHORT),
]
_HEADERS = 0x2000
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


@lru_cache(maxsize=1024)
def decode_properties(raw: bytes) -> Properties:
    """Decode a content header's flags and values. Equal bytes give the same object: treat it as read-only."""
    found = Properties()
    try:
        flags = raw[0] << 8 | raw[1]
        if flags & 0x0003:
            raise ProtocolError(f"property flags {flags:#06x}: AMQP 0-9-1 has fourteen properties")
        pos = 2
        for name, flag, kind in _FIELDS:
            if not flags & flag:
                continue
            if kind == _SHORT:
                end = pos + 1 + raw[pos]
                setattr(found, name, raw[pos + 1 : end].decode("utf-8", "surrogateescape"))
            elif kind == _TABLE:
                size, table = decode.field_table(raw[pos:])
                found.headers = table
                end = pos + size
            elif kind == _OCTET:
                setattr(found, name, raw[pos])
                end = pos + 1
            else:
                found.timestamp = _time(_U64.unpack_from(raw, pos)[0])
                end = pos + 8
            pos = end
        if pos != len(raw):
            raise ProtocolError(f"properties end after {pos} bytes of {len(raw)}")
    except (ValueError, IndexError, struct.error, ArithmeticError, OSError, RecursionError) as error:
        raise ProtocolError(f"malformed message properties: {type(error).__name__}") from error
    return found


def encode_properties(properties: Properties | bytes | None) -> bytes:
    """Flags and values for a content header; bytes pass as they are."""
    if isinstance(properties, bytes):
        return properties
    if properties is None:
        return NONE
    flags = 0
    parts = []
    for name, flag, kind in _FIELDS:
        value = getattr(properties, name)
        if value is None or value == "":
            continue
        flags |= flag
        try:
            if kind == _SHORT:
                parts.append(short_string(name, value))
            elif kind == _TABLE:
                parts.append(_table(value))
            elif kind == _OCTET:
                parts.append(encode.octet(value))
            else:
                parts.append(encode.timestamp(value))
        except (TypeError, struct.error) as error:
            raise ConfigError(name, value, f"a value that AMQP can carry ({error})") from error
    return b"".join([flags.to_bytes(2, "big"), *parts])


def with_headers(raw: bytes, changes: Mapping[str, Any]) -> bytes:
    """The same property bytes with some headers set (or taken out, where the value is None)."""
    flags = raw[0] << 8 | raw[1]
    pos = 2
    for flag in (0x8000, 0x4000):
        if flags & flag:
            pos += 1 + raw[pos]
    entries: list[bytes] = []
    rest = pos
    if flags & _HEADERS:
        rest = pos + 4 + _U32.unpack_from(raw, pos)[0]
        entries = [entry for name, entry in _entries(raw[pos + 4 : rest]) if name not in changes]
    entries += [short_string("header", k) + _value(v) for k, v in changes.items() if v is not None]
    table = b"".join(entries)
    return b"".join(
        [(flags | _HEADERS).to_bytes(2, "big"), raw[2:pos], _U32.pack(len(table)), table, raw[rest:]]
    )


def short_string(name: str, value: str) -> bytes:
    """A length octet and at most 255 bytes."""
    if not isinstance(value, str):
        raise ConfigError(name, value, "a string")
    encoded = value.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise ConfigError(name, value[:40] + "...", f"at most 255 bytes, this has {len(encoded)}")
    return bytes((len(encoded),)) + encoded


def _time(seconds: int) -> datetime.datetime:
    # Some publishers put milliseconds here; a date past the year 2106 is one of those.
    return datetime.datetime.fromtimestamp(seconds / 1000 if seconds > 0xFFFFFFFF else seconds, datetime.UTC)


def _entries(table: bytes) -> list[tuple[str, bytes]]:
    found = []
    pos = 0
    while pos < len(table):
        start = pos
        pos += 1 + table[pos]
        name = table[start + 1 : pos].decode("utf-8", "surrogateescape")
        size, _ = decode.embedded_value(table[pos:])
        pos += size
        found.append((name, table[start:pos]))
    return found


def _table(table: common.FieldTable) -> bytes:
    if not isinstance(table, dict):
        raise TypeError(f"a dict is needed, not {type(table).__name__}")
    body = b"".join(short_string("header", key) + _value(value) for key, value in table.items())
    return _U32.pack(len(body)) + body


def _value(value: Any) -> bytes:
    """One table value. Integers go out as 32 or 64 bits, as the Java client and pika send them."""
    if isinstance(value, float):
        return b"d" + encode.double(value)
    if isinstance(value, str):
        encoded = value.encode("utf-8", "surrogateescape")
        return b"S" + _U32.pack(len(encoded)) + encoded
    if isinstance(value, bytes):
        return b"x" + encode.byte_array(bytearray(value))
    if isinstance(value, int) and not isinstance(value, bool):
        if -(2**31) <= value < 2**31:
            return b"I" + encode.long_int(value)
        return b"l" + encode.long_long_int(value)
    if isinstance(value, dict):
        return b"F" + _table(value)
    if isinstance(value, list | tuple):
        body = b"".join(map(_value, value))
        return b"A" + _U32.pack(len(body)) + body
    return encode.encode_table_value(value)
