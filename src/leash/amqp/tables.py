"""Decodes field tables: the values of headers, at any depth.

The law: nothing here recurses. A publisher decides how deeply its headers are nested, and a frame has room
for more levels than Python's stack. Every value has its size, so unwanted ones are skipped unread.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from leash.errors import ProtocolError

_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_scaled = struct.Struct(">Bi").unpack_from
_S, _X, _F, _A, _V = b"SxFAV"


def timestamp(seconds: int) -> datetime.datetime | None:
    """A date, or None if the number is out of range: AMQP allows years that Python and Spark do not have."""
    # Some publishers put milliseconds here; a date past the year 2106 is one of those.
    since = seconds / 1000 if seconds > 0xFFFFFFFF else seconds
    try:
        return datetime.datetime.fromtimestamp(since, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _unpacked(layout: str) -> tuple[int, Callable[[bytes, int], Any]]:
    compiled = struct.Struct(layout)
    unpack = compiled.unpack_from
    return compiled.size, lambda raw, pos: unpack(raw, pos)[0]


def _decimal(raw: bytes, pos: int) -> Decimal:
    scale, digits = _scaled(raw, pos)
    return Decimal(f"{digits}e-{scale}")


_FIXED: dict[int, tuple[int, Callable[[bytes, int], Any]]] = {
    ord("t"): (1, lambda raw, pos: raw[pos] != 0),
    ord("b"): _unpacked(">b"),
    ord("B"): _unpacked(">B"),
    ord("s"): _unpacked(">h"),
    ord("u"): _unpacked(">H"),
    ord("I"): _unpacked(">i"),
    ord("i"): _unpacked(">I"),
    ord("l"): _unpacked(">q"),
    ord("L"): _unpacked(">q"),
    ord("f"): _unpacked(">f"),
    ord("d"): _unpacked(">d"),
    ord("D"): (5, _decimal),
    ord("T"): (8, lambda raw, pos: timestamp(_u64(raw, pos)[0])),
    _V: (0, lambda *_: None),
    0: (0, lambda *_: None),  # not documented, but seen in the wild
}
"""By type letter: how many bytes a value has, and how to read it.
https://www.rabbitmq.com/amqp-0-9-1-errata.html"""


def entries(raw: bytes, pos: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """For each entry of a table: its name, and where the entry, its value and the next entry begin."""
    while pos < end:
        value = pos + 1 + raw[pos]
        after = _after(raw, value, end)
        yield raw[pos + 1 : value], pos, value, after
        pos = after


def _after(raw: bytes, pos: int, end: int) -> int:
    """The end of the value that begins here."""
    letter = raw[pos]
    if letter in _FIXED:
        after = pos + 1 + _FIXED[letter][0]
    elif letter in (_S, _X, _F, _A):
        after = pos + 5 + int(_u32(raw, pos + 1)[0])
    else:
        raise _unknown(letter)
    if after > end:
        raise _too_long()
    return after


def decode_value(raw: bytes, pos: int, end: int) -> Any:
    """One value of a table: its type letter and what follows it."""
    return _decode(raw, pos, end, [])[0]


def decode_table(raw: bytes, pos: int, end: int) -> dict[str, Any]:
    """The entries of a table, without its length in front.

    A name that is not UTF-8 has surrogate escapes; a string that is not UTF-8 is bytes.
    """
    found: dict[str, Any] = {}
    _decode(raw, pos, end, found)
    return found


def _decode(raw: bytes, pos: int, end: int, top: Any) -> Any:
    """Fill a dict with entries, or a list with values, at any depth."""
    into = top
    name = ""
    outer: list[tuple[Any, int]] = []
    while True:
        while pos < end:
            named = type(into) is dict
            if named:
                at = pos + 1 + raw[pos]
                name = raw[pos + 1 : at].decode("utf-8", "surrogateescape")
                pos = at
            letter = raw[pos]
            pos += 1
            value: Any
            if letter == _S:
                at = pos + 4
                pos = at + _u32(raw, pos)[0]
                value = _text(raw[at:pos])
            elif letter in _FIXED:
                size, read = _FIXED[letter]
                value = read(raw, pos)
                pos += size
            elif letter == _X:
                at = pos + 4
                pos = at + _u32(raw, pos)[0]
                value = bytearray(raw[at:pos])
            elif letter in (_F, _A):
                value = {} if letter == _F else []
                outer.append((into, end))
                pos += 4
                end = pos + _u32(raw, pos - 4)[0]
                if end > outer[-1][1]:
                    raise _too_long()
            else:
                raise _unknown(letter)
            if named:
                into[name] = value
            else:
                into.append(value)
            if letter in (_F, _A):
                into = value
        if pos > end:
            raise _too_long()
        if not outer:
            return top
        into, end = outer.pop()


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _unknown(letter: int) -> ProtocolError:
    return ProtocolError(f"{chr(letter)!r} is not the type of a header")


def _too_long() -> ProtocolError:
    return ProtocolError("a header is longer than its table")
