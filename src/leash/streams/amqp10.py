"""AMQP 1.0 messages, one at a time: what `chunks` does for all at once, where that is not enough.

A message is a row of sections: header, annotations, properties, application properties, a body of one or more
sections, a footer. Every section is a described value: 0x00, the number of its kind, the value.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from leash.errors import ConfigError

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

PROPERTY_NAMES = (
    *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type"),
    *("content_encoding", "absolute_expiry_time", "creation_time", "group_id", "group_sequence"),
    "reply_to_group_id",
)
HEADER_NAMES = ("durable", "priority", "ttl", "first_acquirer", "delivery_count")


class Message(NamedTuple):
    """A message taken apart. `body` is what the column `value` has."""

    body: bytes
    properties: dict[str, Any]
    application_properties: dict[str, Any]
    annotations: dict[str, Any]
    header: dict[str, Any]


def is_amqp(data: bytes | memoryview) -> bool:
    """True if it begins as AMQP 1.0 messages do. What does not is only a body."""
    return len(data) >= 3 and data[0] == 0 and data[1] in (0x53, 0x80)


def decode(data: bytes | memoryview) -> Message:
    """Take a message apart; ValueError if it is cut off or malformed."""
    view = memoryview(data)
    if not is_amqp(view):
        return Message(bytes(view), {}, {}, {}, {})
    bodies: list[bytes] = []
    found: dict[int, Any] = {}
    at = 0
    try:
        while at < len(view):
            begin = at
            kind, at = _descriptor(view, at)
            value, at = _value(view, at)
            if kind == DATA or (kind == VALUE and isinstance(value, bytes | str)):
                bodies.append(value.encode() if isinstance(value, str) else bytes(value))
            elif kind in (SEQUENCE, VALUE):  # as RabbitMQ hands it to consumers of AMQP 0-9-1
                bodies.append(bytes(view[begin:at]))
            elif HEADER <= kind <= FOOTER:
                found[kind] = value
            else:
                raise ValueError(f"a section of unknown kind {kind:#x}")
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"an AMQP 1.0 message that is cut off or malformed ({error})") from error
    return Message(
        b"".join(bodies),
        _named(PROPERTY_NAMES, found.get(PROPERTIES)),
        _keyed(found.get(APPLICATION_PROPERTIES)),
        _keyed(found.get(MESSAGE_ANNOTATIONS)),
        _named(HEADER_NAMES, found.get(HEADER)),
    )


def _named(names: tuple[str, ...], values: Any) -> dict[str, Any]:
    pairs = zip(names, values or (), strict=False)
    return {name: value for name, value in pairs if value is not None}


def _keyed(values: Any) -> dict[str, Any]:
    return {str(key): value for key, value in (values or {}).items()}


# --- decoding ---


def _descriptor(view: memoryview, at: int) -> tuple[int, int]:
    if view[at] != 0:
        raise ValueError(f"a section that begins with {view[at]:#x}")
    kind, at = _value(view, at + 1)
    if not isinstance(kind, int):
        raise ValueError(f"a section of kind {kind!r}")
    return kind, at


def _value(view: memoryview, at: int) -> tuple[Any, int]:
    code = view[at]
    at += 1
    if code in _CONSTANT:
        return _CONSTANT[code], at
    if code in _FIXED:
        pattern, make = _FIXED[code]
        (raw,) = struct.unpack_from(pattern, view, at)
        return make(raw), at + struct.calcsize(pattern)
    if code >= 0xA0:
        size_of = 1 if code & 0x10 == 0 else 4
        size = int.from_bytes(_cut(view, at, size_of), "big")
        body = _cut(view, at + size_of, size)
        return _variable(code & 0xEF, body, size_of), at + size_of + size  # both widths are one type
    if code == 0:
        _, at = _value(view, at)
        return _value(view, at)
    raise ValueError(f"a value of unknown type {code:#x}")


def _cut(view: memoryview, at: int, size: int) -> memoryview:
    if at + size > len(view):
        raise ValueError("an AMQP 1.0 message that is cut off")
    return view[at : at + size]


def _variable(code: int, body: memoryview, size_of: int) -> Any:
    if code == 0xA0:
        return bytes(body)
    if code in (0xA1, 0xA3):
        return str(body, "utf-8")
    if code in (0xC0, 0xC1):
        count = int.from_bytes(_cut(body, 0, size_of), "big")
        items, at = [], size_of
        for _ in range(count):
            item, at = _value(body, at)
            items.append(item)
        return items if code == 0xC0 else dict(zip(items[::2], items[1::2], strict=True))
    if code == 0xE0:
        return _array(body, size_of)
    raise ValueError(f"a value of unknown type {code:#x}")


def _array(body: memoryview, size_of: int) -> list[Any]:
    count = int.from_bytes(_cut(body, 0, size_of), "big")
    if count > len(body):
        raise ValueError(f"an array of {len(body)} bytes that claims to hold {count} values")
    constructor = bytes(body[size_of : size_of + 1])
    items, at = [], size_of + 1
    for _ in range(count):
        one = memoryview(constructor + bytes(body[at:]))
        item, taken = _value(one, 0)
        items.append(item)
        at += taken - 1
    return items


def _same(raw: Any) -> Any:
    return raw


_CONSTANT: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}
_FIXED: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0x50: (">B", _same),
    0x51: (">b", _same),
    0x52: (">B", _same),
    0x53: (">B", _same),
    0x54: (">b", _same),
    0x55: (">b", _same),
    0x56: (">B", bool),
    0x60: (">H", _same),
    0x61: (">h", _same),
    0x70: (">I", _same),
    0x71: (">i", _same),
    0x72: (">f", _same),
    0x73: (">4s", lambda raw: str(raw, "utf-32-be")),
    0x74: (">4s", _same),
    0x80: (">Q", _same),
    0x81: (">q", _same),
    0x82: (">d", _same),
    0x83: (">q", lambda raw: datetime.fromtimestamp(raw / 1000, UTC)),
    0x84: (">8s", _same),
    0x94: (">16s", _same),
    0x98: (">16s", lambda raw: uuid.UUID(bytes=raw)),
}


# --- encoding ---


def sections(
    properties: Mapping[str, Any] | None = None,
    application_properties: Mapping[str, Any] | None = None,
    annotations: Mapping[str, Any] | None = None,
) -> bytes:
    """The sections before a body, for `Publisher.publish(sections=...)`.

    `properties` are those in PROPERTY_NAMES. Numbers become longs or doubles, text strings, bytes binary.
    """
    parts = []
    if annotations:
        parts.append(_section(MESSAGE_ANNOTATIONS, _encode_map(annotations, symbols=True)))
    if properties:
        unknown = set(properties) - set(PROPERTY_NAMES)
        if unknown:
            raise ConfigError("properties", min(unknown), f"one of {', '.join(PROPERTY_NAMES)}")
        values = [_encode_property(name, properties.get(name)) for name in PROPERTY_NAMES]
        while values[-1] == b"\x40":
            values.pop()
        parts.append(_section(PROPERTIES, _compound(0xD0, len(values), b"".join(values))))
    if application_properties:
        parts.append(_section(APPLICATION_PROPERTIES, _encode_map(application_properties, symbols=False)))
    return b"".join(parts)


def _section(kind: int, value: bytes) -> bytes:
    return bytes((0, 0x53, kind)) + value


def _compound(code: int, count: int, body: bytes) -> bytes:
    return struct.pack(">BII", code, len(body) + 4, count) + body


def _encode_map(values: Mapping[str, Any], symbols: bool) -> bytes:
    body = b"".join(
        _sized(0xA3 if symbols else 0xA1, key.encode()) + _encode(value) for key, value in values.items()
    )
    return _compound(0xD1, 2 * len(values), body)


def _sized(code: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((code, len(raw))) + raw
    return struct.pack(">BI", code + 0x10, len(raw)) + raw


def _encode_property(name: str, value: Any) -> bytes:
    if name in ("content_type", "content_encoding") and isinstance(value, str):
        return _sized(0xA3, value.encode())
    if name == "user_id" and isinstance(value, str):
        return _sized(0xA0, value.encode())
    if name == "group_sequence" and isinstance(value, int):
        return struct.pack(">BI", 0x70, value)
    if name in ("message_id", "correlation_id") and isinstance(value, int) and not isinstance(value, bool):
        return struct.pack(">BQ", 0x80, value)
    return _encode(value)


def _encode(value: Any) -> bytes:
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        return struct.pack(">Bq", 0x81, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0x82, value)
    if isinstance(value, str):
        return _sized(0xA1, value.encode())
    if isinstance(value, bytes | bytearray | memoryview):
        return _sized(0xA0, bytes(value))
    if isinstance(value, datetime):
        return struct.pack(">Bq", 0x83, round(value.timestamp() * 1000))
    if isinstance(value, uuid.UUID):
        return b"\x98" + value.bytes
    raise ConfigError(
        "properties", type(value).__name__, "None, bool, int, float, str, bytes, datetime or UUID"
    )
