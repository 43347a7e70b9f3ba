"""Chunks made by hand, and what the tests of streams share."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from leash.broker import Cluster
from leash.errors import BrokerError
from leash.streams import (
    Chunk,
    Connection,
    Publisher,
    Reader,
    connect,
    create_stream,
    first_and_end,
    metadata,
)
from leash.streams.encoding import Sub, rows
from leash.streams.wire import Key, Placement, frame
from tests.waiting import until

VALUE = b"\0\x53\x77"
DATA = b"\0\x53\x75"


def data(body: bytes) -> bytes:
    """A data section."""
    return DATA + b"\xb0" + len(body).to_bytes(4, "big") + body


def simple(message: bytes) -> bytes:
    """An entry of one message."""
    return len(message).to_bytes(4, "big") + message


def chunk(entries: Sequence[bytes], first: int = 0, records: int | None = None, time: int = 1) -> Chunk:
    """Entries as a chunk with a right CRC."""
    raw = b"".join(entries)
    count = len(entries) if records is None else records
    return Chunk(first, count, len(entries), time, zlib.crc32(raw), memoryview(raw))


def chunk_of(values: Sequence[bytes], first: int = 0, sub: Sub | None = None, sections: Any = None) -> Chunk:
    """Values as `Publisher` would send them."""
    made = rows(values, np.arange(1, len(values) + 1, dtype=np.uint64), sub=sub, sections=sections)
    raw = bytes(made.data)
    entries = [raw[made.edges[n] + 8 : made.edges[n + 1]] for n in range(len(made.ids))]
    return chunk(entries, first, len(values))


def deliver(made: Chunk, version: int = 1, subscription: int = 0) -> bytes:
    """A chunk as a frame."""
    header = struct.pack(
        ">BBHIqQQIIII",
        *(0x50, 0, made.entries, made.records, made.timestamp, 1, made.first, made.crc, len(made.data), 7, 0),
    )
    lead = bytes((subscription,)) + (b"" if version == 1 else bytes(8))
    return frame(Key.DELIVER, lead + header + bytes(made.data), version)


def everything(uri: str, stream: str, connection: Connection, **options: Any) -> list[bytes]:
    """All the bodies that a stream has now."""
    end = first_and_end(connection, stream).end
    with Reader(uri, stream, end=end, **options) as reader:
        return [value for batch in reader for value in batch.column("value").to_pylist()]


def numbers(count: int, start: int = 0) -> list[bytes]:
    """Bodies that are numbers."""
    return [b"%d" % number for number in range(start, start + count)]


def write(uri: str, stream: str, bodies: list[bytes], chunk: int = 500) -> None:
    """Publish bodies, so many at once."""
    with Publisher(uri, stream) as publisher:
        for at in range(0, len(bodies), chunk):
            publisher.publish(bodies[at : at + chunk])


def made(streams: Connection, uri: str, **counts: int) -> None:
    """Streams with so many numbers each."""
    for name, count in counts.items():
        create_stream(streams, name)
        write(uri, name, numbers(count))


def can(streams: Connection) -> bool:
    """True if there are single active consumers."""
    return streams.version >= (3, 11)


def placed(uri: str, stream: str) -> Placement:
    """Where a stream is, by any node."""
    with connect(uri) as connection:
        return metadata(connection, stream)[stream]


def move_leader(cluster: Cluster, vhost: str, stream: str) -> None:
    """Another node leads the stream from now on (RabbitMQ 3.12), and it has three members again."""
    uri = cluster.stream_place(vhost).reveal()

    def whole() -> bool:
        now = placed(uri, stream)
        return now.leader is not None and len(now.replicas) == len(cluster.nodes) - 1

    until(whole, what="the stream has not all of its members")
    old = placed(uri, stream)
    to = next(node for node in cluster.nodes if node.port("stream") == old.replicas[0].port)
    more = ("--vhost", vhost, "--preferred-leader-node", to.name)

    def moved() -> bool:
        with contextlib.suppress(BrokerError):  # a restart may be under way
            to.ctl("restart_stream", stream, *more, tool="rabbitmq-streams")
        return placed(uri, stream).leader not in (None, old.leader)

    until(moved, what="the leader stays")
    until(whole, what="the stream has not all of its members")
