"""Where a named consumer goes on: at the offset that is stored under its name in the stream itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from leash.errors import ConfigError, StreamError
from leash.streams import wire
from leash.streams.commands import query_offset, store_offset
from leash.streams.connection import Connection
from leash.streams.offsets import Start, chunk_at, first_and_end, offset_of
from leash.streams.wire import Offset


def begin_of(connection: Connection, name: str, stream: str, start: Start, now: float) -> Offset:
    """Behind the offset that is stored under this name; if none is, at `start`.

    A start that another day is another place, such as "next", is stored at once: whoever begins anew after a
    crash begins there. Only in an empty stream that is not possible.
    """
    stored = query_offset(connection, name, stream)
    if stored is not None:
        return wire.at_offset(stored + 1)
    begin = offset_of(start, now)
    if begin == wire.FIRST or begin.kind == wire.at_offset(0).kind:
        return begin
    chunk = chunk_at(connection, stream, begin) if begin != wire.NEXT else None
    place = chunk.first if chunk is not None else first_and_end(connection, stream).end
    if place:
        store_surely(connection, name, stream, place - 1)
    return wire.at_offset(place)


def check_start(
    connection: Connection, leader: Callable[[], Connection], name: str, stream: str, start: Start
) -> None:
    """ConfigError if nothing is stored, and `start` is an offset beyond the end. `leader` opens a connection
    that has the last word: a replica may be behind.
    """
    if isinstance(start, int) and _is_beyond(connection, name, stream, start):
        with leader() as opened:
            end = first_and_end(opened, stream).end
        if start > end:
            raise ConfigError("start", start, f"stream {stream!r} ends at {end}")


def _is_beyond(connection: Connection, name: str, stream: str, start: int) -> bool:
    return query_offset(connection, name, stream) is None and start > first_and_end(connection, stream).end


def store_surely(connection: Connection, name: str, stream: str, offset: int, timeout: float = 5.0) -> None:
    """Store an offset, and wait until the broker has it: it gives no answer."""
    store_offset(connection, name, stream, offset)
    deadline = time.monotonic() + timeout
    while query_offset(connection, name, stream) != offset:
        if time.monotonic() > deadline:
            raise StreamError(stream, f"offset {offset} of {name!r} was not stored within {timeout:g} s")
        time.sleep(0.01)
