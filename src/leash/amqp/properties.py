"""The fourteen basic properties, to and from their bytes.

pamqp encodes the rarer values of headers; the rest is ours for three reasons: odd values (text that is not
UTF-8, an impossible date, headers nested deeper than any stack) must not make a message unreadable, a Python
float must be sent as a double, and changing a header must not change any other byte.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pamqp import common, encode
from pamqp.commands import Basic

from leash.amqp.tables import decode_table, decode_value, entries, timestamp
from leash.errors import ConfigError, ProtocolError

Properties = Basic.Properties

NONE = b"\x00\x00"
"""The encoding of no properties."""

PERSISTENT = b"\x10\x00\x02"
"""Nothing but the delivery mode."""

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
_FLAGS = {name: flag for name, flag, _ in _FIELDS}
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_CUT_OFF = (IndexError, struct.error)
_BROKEN = (ProtocolError, *_CUT_OFF)

# Decoded properties take up to about thirty times the room of their bytes. So only a few large ones are
# kept: enough for a run of messages with equal ones, and for a handler that reads them several times.
_SMALL, _MANY, _FEW = 512, 1024, 8


def decode_properties(raw: bytes) -> Properties:
    """Decode a content header's flags and values. Equal bytes give the same object: treat it as read-only.

    Text that is not UTF-8 has surrogate escapes, and an impossible timestamp is None. Headers may be nested
    deeper than Python can print, compare or pickle.
    """
    return _decode_small(raw) if len(raw) <= _SMALL else _decode_large(raw)


def _decode(raw: bytes) -> Properties:
    found = Properties()
    try:
        for name, kind, start, end in _fields(raw):
            setattr(found, name, _read(raw, kind, start, end))
    except _CUT_OFF as error:
        raise _malformed() from error
    return found


_decode_small = lru_cache(_MANY)(_decode)
_decode_large = lru_cache(_FEW)(_decode)


def salvage_properties(raw: bytes) -> Properties:
    """As much of malformed properties as can be read."""
    found = Properties()
    with suppress(*_BROKEN):
        for name, kind, start, end in _fields(raw):
            if kind == _TABLE:
                found.headers = _salvaged(raw, start, end)
            else:
                setattr(found, name, _read(raw, kind, start, end))
    return found


def _salvaged(raw: bytes, start: int, end: int) -> dict[str, Any]:
    headers = {}
    with suppress(*_BROKEN):
        for name, _, value, after in entries(raw, start + 4, end):
            with suppress(*_BROKEN):
                headers[name.decode("utf-8", "surrogateescape")] = decode_value(raw, value, after)
    return headers


def read_property(raw: bytes, wanted: str) -> Any:
    """One property other than the headers, even if those are malformed; None if it is missing."""
    with suppress(*_BROKEN):
        for name, kind, start, end in _fields(raw):
            if name == wanted:
                return _read(raw, kind, start, end)
    return None


def read_header(raw: bytes, wanted: str) -> Any:
    """One header, even if others are malformed; None if it is missing."""
    found, sought = None, wanted.encode("utf-8", "surrogateescape")
    with suppress(*_BROKEN):
        for name, _, value, after in _headers(raw):
            if name == sought:
                found = decode_value(raw, value, after)
    return found


def with_headers(raw: bytes, changes: Mapping[str, Any], without: Container[str] = ()) -> bytes:
    """The same property bytes with some headers set (or removed, if the value is None).

    `without` names properties to leave out. No other byte changes, and no other value is decoded.
    """
    added = [short_string("header", k) + _value(v) for k, v in changes.items() if v is not None]
    names = {name.encode("utf-8", "surrogateescape") for name in changes}
    flags, table = 0, added
    before: list[bytes] = []
    after: list[bytes] = []
    try:
        for name, kind, start, end in _fields(raw):
            if name in without:
                continue
            flags |= _FLAGS[name]
            if kind == _TABLE:
                there = entries(raw, start + 4, end)
                table = [raw[at:to] for header, at, _, to in there if header not in names] + added
            else:
                (after if flags & (_FLAGS["headers"] - 1) else before).append(raw[start:end])
    except _CUT_OFF as error:
        raise _malformed() from error
    if table or flags & _FLAGS["headers"]:
        flags |= _FLAGS["headers"]
        body = b"".join(table)
        before += [_U32.pack(len(body)), body]
    return b"".join([flags.to_bytes(2, "big"), *before, *after])


def readable(text: str) -> str:
    """Text as valid UTF-8: other bytes are written as `\\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _fields(raw: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Name, kind, beginning and end of every property that is set."""
    flags = raw[0] << 8 | raw[1]
    if flags & 0x0003:
        raise ProtocolError(f"property flags {flags:#06x}: AMQP 0-9-1 has fourteen properties")
    pos = 2
    for name, flag, kind in _FIELDS:
        if not flags & flag:
            continue
        if kind == _SHORT:
            end = pos + 1 + raw[pos]
        elif kind == _TABLE:
            end = pos + 4 + _U32.unpack_from(raw, pos)[0]
        else:
            end = pos + (1 if kind == _OCTET else 8)
        if end > len(raw):
            raise _malformed()
        yield name, kind, pos, end
        pos = end
    if pos != len(raw):
        raise ProtocolError(f"properties end after {pos} bytes of {len(raw)}")


def _headers(raw: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    for name, _, start, end in _fields(raw):
        if name == "headers":
            yield from entries(raw, start + 4, end)
            return


def _read(raw: bytes, kind: int, start: int, end: int) -> Any:
    if kind == _SHORT:
        return raw[start + 1 : end].decode("utf-8", "surrogateescape")
    if kind == _TABLE:
        return decode_table(raw, start + 4, end)
    return raw[start] if kind == _OCTET else timestamp(_U64.unpack_from(raw, start)[0])


def _malformed() -> ProtocolError:
    return ProtocolError("malformed message properties: they are cut off")


def encode_safe(properties: Properties | bytes | None) -> bytes:
    """The same, and persistent unless they say otherwise; bytes pass as they are."""
    return PERSISTENT if properties is None else encode_properties(properties, 2)


def encode_properties(properties: Properties | bytes | None, delivery_mode: int | None = None) -> bytes:
    """Flags and values for a content header, with this delivery mode if there is none; bytes pass as is."""
    if isinstance(properties, bytes):
        return properties
    if properties is None:
        return NONE
    flags = 0
    parts = []
    for name, flag, kind in _FIELDS:
        value = getattr(properties, name)
        if value is None and name == "delivery_mode":
            value = delivery_mode
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
        except ConfigError:
            raise
        except RecursionError:
            raise ConfigError(name, "...", "less deeply nested: Python's stack is too small for it") from None
        except (TypeError, ValueError, ArithmeticError, struct.error) as error:
            raise ConfigError(name, value, f"a value that AMQP can carry ({error})") from error
    return b"".join([flags.to_bytes(2, "big"), *parts])


def short_string(name: str, value: str) -> bytes:
    """Encode a length octet and at most 255 bytes."""
    if not isinstance(value, str):
        raise ConfigError(name, value, "a string")
    encoded = value.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise ConfigError(name, value[:40] + "...", f"at most 255 bytes, this has {len(encoded)}")
    return bytes((len(encoded),)) + encoded


def _table(table: common.FieldTable) -> bytes:
    if not isinstance(table, dict):
        raise TypeError(f"a dict is needed, not {type(table).__name__}")
    body = b"".join(short_string("header", key) + _value(value) for key, value in table.items())
    return _U32.pack(len(body)) + body


def _value(value: Any) -> bytes:
    """Encode one table value. Integers have 32 or 64 bits, as in the Java client and pika."""
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
