"""Where reading begins, and how much a stream has to read."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple

from leash.errors import ConfigError
from leash.streams import wire
from leash.streams.chunks_to_arrow import Chunk, read_chunk
from leash.streams.commands import stream_stats
from leash.streams.connection import Connection
from leash.streams.wire import Frame, Key, Offset

Start = str | int | datetime | timedelta | Offset
"""first, last, next, an interval such as "90s", "15m", "6h" or "7D" back from now, an offset, a time, or a
`timedelta` back from now."""

_NAMED = {"first": wire.FIRST, "last": wire.LAST, "next": wire.NEXT}
_UNITS = {"s": 1, "m": 60, "h": 3600, "D": 86400, "M": 2592000, "Y": 31536000}  # as RabbitMQ has them


def offset_of(start: Start, now: float) -> Offset:
    """What the protocol says for a start. `now` is in seconds since 1970."""
    if isinstance(start, Offset):
        return start
    if isinstance(start, str) and start in _NAMED:
        return _NAMED[start]
    if isinstance(start, str) and (interval := re.fullmatch(r"(\d+)([smhDMY])", start)):
        return wire.at_time(round((now - int(interval[1]) * _UNITS[interval[2]]) * 1000))
    if isinstance(start, timedelta):
        return wire.at_time(round((now - start.total_seconds()) * 1000))
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError("start", str(start), "a time with a time zone")
        return wire.at_time(round(start.timestamp() * 1000))
    if isinstance(start, int) and not isinstance(start, bool):
        return wire.at_offset(start)
    raise ConfigError("start", start, "first, last, next, an offset, a time, or an interval such as 6h")


class Bounds(NamedTuple):
    """What a stream has: offsets from `first` up to and without `end`. Both are 0 if it has no message.

    Not every offset in between is a message: RabbitMQ keeps other things there, too.
    """

    first: int
    end: int
    """Always the end of a chunk with messages, so that a reader that waits for it will see it."""
    last: Chunk | None
    """The last chunk."""


def first_and_end(connection: Connection, stream: str) -> Bounds:
    """What a stream has to read now, on this node. Does not wait for messages.

    StreamMissing and StreamUnavailable say that it is not there, or has no member on this node.
    """
    chunks = _peek(connection, stream, wire.FIRST, wire.LAST)
    first, last = chunks
    if first is None or last is None:
        return Bounds(0, 0, None)
    return Bounds(first.first, max(first.end, last.end), last)


def chunk_at(connection: Connection, stream: str, place: Offset | int) -> Chunk | None:
    """The chunk that reading from there would begin with, or None if that is still to come. Does not wait."""
    (chunk,) = _peek(connection, stream, wire.at_offset(place) if isinstance(place, int) else place)
    return chunk


def last_chunk_id(connection: Connection, stream: str) -> int:
    """The offset at which the last chunk begins, on this node: it changes with everything that is written.
    -1 for an empty stream.

    From 3.11 on this costs next to nothing, and may be a chunk without messages; before, the last chunk comes
    as a whole.
    """
    if connection.can(Key.STREAM_STATS):
        return stream_stats(connection, stream).get("committed_chunk_id", -1)
    chunk = chunk_at(connection, stream, wire.LAST)
    return -1 if chunk is None else chunk.first


def first_kept(connection: Connection, stream: str) -> int:
    """The first offset that retention has left: below it, all is gone. 0 for an empty stream.

    From 3.11 on this counts chunks without messages, too; before, the first message.
    """
    if connection.can(Key.STREAM_STATS):
        return max(0, stream_stats(connection, stream).get("first_chunk_id", 0))
    chunk = chunk_at(connection, stream, wire.FIRST)
    return 0 if chunk is None else chunk.first


class Depth:
    """How many messages a stream has from a position on. Never less than there are, or rounds would not wait
    for them; and 0 if there are none. Offsets that are no messages count in between.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._known = (-2, 0)  # where the last chunk begins, and the end of the last one with messages

    def ready(self, connection: Connection, position: int | None) -> int:
        """The last chunk is fetched only if it is another one than the last time."""
        begin = position
        if begin is None:
            first = chunk_at(connection, self._stream, wire.FIRST)
            if first is None:
                return 0
            begin = first.first
        last = last_chunk_id(connection, self._stream) if connection.can(Key.STREAM_STATS) else -2
        if last == -2 or last != self._known[0]:
            chunk = chunk_at(connection, self._stream, wire.LAST)
            self._known = (last, 0 if chunk is None else chunk.end)
        return max(0, self._known[1] - begin)


def _peek(connection: Connection, stream: str, *places: Offset) -> list[Chunk | None]:
    """One chunk at each of some places, or None. The subscription and its end go out in one write: what there
    is comes before the answer to the latter.
    """
    came: list[list[Frame]] = [[] for _ in places]
    numbers = [connection.add_subscriber(each.append) for each in came]
    try:
        requests = []
        for number, place in zip(numbers, places, strict=True):
            one = bytes((number,))
            body = one + wire.text(stream) + place.encode() + (1).to_bytes(2, "big")
            requests += [(Key.SUBSCRIBE, body), (Key.UNSUBSCRIBE, one)]
        answers = connection.answers_to(requests)
        for answer in answers[::2]:
            code = answer.number(2)
            if code != wire.OK:
                raise wire.error(code, stream)
    finally:
        for number in numbers:
            connection.remove_subscriber(number)
    delivers = [[frame for frame in each if frame.key == Key.DELIVER] for each in came]
    return [read_chunk(each[0], stream) if each else None for each in delivers]
