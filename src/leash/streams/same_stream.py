"""Whether a stream is still the one that was read: another one of that name has other chunks in its places.

A chunk that was seen is the proof. Where nothing was read yet, it is the one that ends where reading begins.
"""

from __future__ import annotations

from leash.streams import wire
from leash.streams.chunks_to_arrow import Chunk
from leash.streams.connection import Connection
from leash.streams.offsets import chunk_at


def is_another(connection: Connection, stream: str, seen: Chunk) -> bool | None:
    """True if another chunk is in the place of one that was seen; None if that cannot be known yet: the
    stream does not go so far, or this replica is behind.
    """
    there = chunk_at(connection, stream, seen.first)
    if there is not None:
        return there.first < seen.end and _mark(there) != _mark(seen)
    first = chunk_at(connection, stream, wire.FIRST)
    return True if first is not None and first.timestamp > seen.timestamp else None


def last_before(connection: Connection, stream: str, offset: int) -> Chunk | None:
    """The stream's last chunk, if that ends at this offset."""
    last = chunk_at(connection, stream, wire.LAST)
    return last if last is not None and last.end == offset else None


def _mark(chunk: Chunk) -> tuple[int, int, int]:
    return chunk.first, chunk.timestamp, chunk.crc
