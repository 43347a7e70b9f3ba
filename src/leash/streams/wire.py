"""RabbitMQ's stream protocol between bytes and values, without I/O.

A frame is its size, a key, a version, and what belongs to them. What answers a request carries the request's
correlation id. The first of the two bytes of a key is 0x80 in an answer; RabbitMQ 3.10 forgets that for two.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from leash.errors import (
    ConfigError,
    ProtocolError,
    StreamError,
    StreamExists,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnsupported,
)

ANSWER = 0x8000
MAX_INCOMING = (1 << 31) - 1
"""A chunk may be larger than the frame size that both sides agreed on: that binds only what we send."""
MAX_REFERENCE = 255
"""Bytes. One of 256 destroys a stream on RabbitMQ 3.10 at its next restart, for good."""


NEED_FILTERS = "filters need RabbitMQ 3.13"


class Key(IntEnum):
    """The commands."""

    DECLARE_PUBLISHER = 1
    PUBLISH = 2
    PUBLISH_CONFIRM = 3
    PUBLISH_ERROR = 4
    QUERY_PUBLISHER_SEQUENCE = 5
    DELETE_PUBLISHER = 6
    SUBSCRIBE = 7
    DELIVER = 8
    CREDIT = 9
    STORE_OFFSET = 10
    QUERY_OFFSET = 11
    UNSUBSCRIBE = 12
    CREATE = 13
    DELETE = 14
    METADATA = 15
    METADATA_UPDATE = 16
    PEER_PROPERTIES = 17
    SASL_HANDSHAKE = 18
    SASL_AUTHENTICATE = 19
    TUNE = 20
    OPEN = 21
    CLOSE = 22
    HEARTBEAT = 23
    ROUTE = 24
    PARTITIONS = 25
    CONSUMER_UPDATE = 26
    EXCHANGE_COMMAND_VERSIONS = 27
    STREAM_STATS = 28
    CREATE_SUPER_STREAM = 29
    DELETE_SUPER_STREAM = 30


SENT_BY_US: Mapping[Key, tuple[int, int]] = {Key.DELIVER: (1, 2)}
"""Versions of the commands that a server begins with: what we say in EXCHANGE_COMMAND_VERSIONS."""

_UNMARKED = (Key.ROUTE, Key.PARTITIONS)  # 3.10 answers these without ANSWER


class Frame(NamedTuple):
    """One frame: `key` without the mark of an answer, and what comes after key and version."""

    key: int
    version: int
    answer: bool
    body: memoryview


class Decoder:
    """Bytes in, frames out. Nothing is copied twice: a frame's body is a view of what came."""

    def __init__(self, limit: int = MAX_INCOMING) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 4

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. ProtocolError for a size that cannot be."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return []
        whole = memoryview(data if len(self._parts) == 1 else b"".join(self._parts))
        frames, at, end = [], 0, len(whole)
        self._need = 4
        while end - at >= 4:
            size = int.from_bytes(whole[at : at + 4], "big")
            if not 4 <= size <= self.limit:
                raise ProtocolError(f"a frame of {size} bytes: this is not the stream protocol")
            if end - at < 4 + size:
                self._need = 4 + size
                break
            key, version = struct.unpack_from(">HH", whole, at + 4)
            answer = key >= ANSWER or key in _UNMARKED
            frames.append(Frame(key & ~ANSWER, version, answer, whole[at + 8 : at + 4 + size]))
            at += 4 + size
        self._parts = [bytes(whole[at:])] if at < end else []
        self._have = end - at
        return frames


class Fields:
    """What is in a frame, one after another. ProtocolError where it ends too early."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._body) - self._at

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.left:
            raise ProtocolError(f"a frame ends within a field of {size} bytes")
        self._at += size
        return self._body[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        size = self.number(2)
        return "" if size == 0xFFFF else str(self.take(size), "utf-8", "replace")

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.count())]

    def pairs(self) -> dict[str, str]:
        return {self.text(): self.text() for _ in range(self.count())}

    def count(self) -> int:
        count = self.number(4)
        if count > self.left:
            raise ProtocolError(f"a frame of {len(self._body)} bytes claims to list {count} items")
        return count


# --- out ---


def frame(key: int, body: bytes = b"", version: int = 1) -> bytes:
    """A frame that expects no answer, or whose body begins with the correlation id."""
    return struct.pack(">IHH", 4 + len(body), key, version) + body


def request(key: Key, correlation: int, body: bytes = b"", version: int = 1) -> bytes:
    return frame(key, correlation.to_bytes(4, "big") + body, version)


HEARTBEAT = frame(Key.HEARTBEAT)


def text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) > 0x7FFF:
        raise ConfigError("name", value[:40] + "...", "at most 32767 bytes of UTF-8")
    return len(encoded).to_bytes(2, "big") + encoded


def texts(values: Sequence[str]) -> bytes:
    return len(values).to_bytes(4, "big") + b"".join(map(text, values))


def pairs(values: Mapping[str, str]) -> bytes:
    each = (text(key) + text(str(value)) for key, value in values.items())
    return len(values).to_bytes(4, "big") + b"".join(each)


def blob(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def reference(value: str) -> bytes:
    """The name of a publisher or of a stored offset, as a field."""
    size = len(value.encode())
    if not 0 < size <= MAX_REFERENCE:
        raise ConfigError(
            "reference", value, f"from 1 to {MAX_REFERENCE} bytes of UTF-8, and this has {size}"
        )
    return text(value)


class Offset(NamedTuple):
    """Where to begin, as the protocol says it."""

    kind: int
    value: int | None = None

    def encode(self) -> bytes:
        if self.value is None:
            return self.kind.to_bytes(2, "big")
        # A timestamp is signed, an offset not; below 2**63 they are the same.
        return self.kind.to_bytes(2, "big") + (self.value & (1 << 64) - 1).to_bytes(8, "big")


NONE, FIRST, LAST, NEXT = Offset(0), Offset(1), Offset(2), Offset(3)


def at_offset(offset: int) -> Offset:
    """The chunk that holds this offset: all of it comes, and what is before the offset is to be skipped."""
    if not 0 <= offset < 1 << 63:
        raise ConfigError("offset", offset, "a whole number from 0 on")
    return Offset(4, offset)


def at_time(milliseconds: int) -> Offset:
    """The first chunk that is not older than this, in milliseconds since 1970."""
    return Offset(5, milliseconds)


# --- what answers and news hold ---


class Member(NamedTuple):
    """A node as it wants to be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Placement(NamedTuple):
    """Where a stream is. `code` is 1 if it is well."""

    code: int
    leader: Member | None
    replicas: tuple[Member, ...]


def read_metadata(fields: Fields) -> dict[str, Placement]:
    members = {}
    for _ in range(fields.count()):
        number, host = fields.number(2), fields.text()
        members[number] = Member(host, fields.number(4))
    found = {}
    for _ in range(fields.count()):
        name, code, leader = fields.text(), fields.number(2), fields.number(2)
        replicas = [fields.number(2) for _ in range(fields.count())]
        known = tuple(members[each] for each in replicas if each in members)
        found[name] = Placement(code, members.get(leader), known)
    return found


def read_versions(fields: Fields) -> dict[int, tuple[int, int]]:
    return {fields.number(2): (fields.number(2), fields.number(2)) for _ in range(fields.count())}


def read_stats(fields: Fields) -> dict[str, int]:
    return {fields.text(): int.from_bytes(fields.take(8), "big", signed=True) for _ in range(fields.count())}


# --- what the code of an answer means ---

OK = 1
MISSING = 2
EXISTS = 5
UNAVAILABLE = 6
PRECONDITION = 17
NO_OFFSET = 19

_CODES: dict[int, tuple[type[StreamError], str]] = {
    2: (StreamMissing, "does not exist"),
    3: (StreamError, "the subscription id is in use"),
    4: (StreamError, "there is no such subscription"),
    5: (StreamExists, "exists already, with other arguments"),
    6: (StreamUnavailable, "is not available"),
    13: (StreamUnsupported, "the broker does not know this command"),
    14: (StreamError, "the frame is too large"),
    15: (StreamError, "internal error of the broker"),
    16: (StreamRefused, "access refused"),
    17: (StreamError, "precondition failed: it is not a stream, or its arguments are refused"),
    18: (StreamUnavailable, "the broker has lost the publisher"),
    19: (StreamError, "no offset is stored"),
}


def error(code: int, stream: str) -> StreamError:
    """The error that stands for a code other than OK."""
    kind, said = _CODES.get(code, (StreamError, "the broker refuses"))
    return kind(stream, said, code)


def meaning(code: int) -> str:
    """In words."""
    return _CODES.get(code, (StreamError, "the broker refuses"))[1]
