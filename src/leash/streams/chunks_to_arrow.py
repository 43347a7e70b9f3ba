"""Chunks, as Deliver frames bring them, into columns: many chunks and all of their messages at once.

The law: nothing is done once per message in Python where all messages can be done at once. Chunks are joined
before anything else, because AMQP publishers leave chunks of a few dozen messages. Arrow allows no gaps in a
binary column: its offsets go over the whole buffer, value and gap by turns, and every second one is taken.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leash.errors import ChunkError, ConfigError
from leash.streams import compression
from leash.streams.arrow_memory import binaries, numbers, pa, pc
from leash.streams.messages import Cut, bodies, entry_starts
from leash.streams.wire import Frame

COLUMNS = {
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "message": pa.binary(),
}
"""What there is to read: the body, the offset, the time of the chunk, and the AMQP 1.0 message as it is, for
`amqp10.decode`."""

DEFAULT_COLUMNS = ("value", "offset", "timestamp")

_HEADER = struct.Struct(">BBHIqQQIIII")
_USER = 0  # the type of chunks with messages; the others hold offsets and sequences
_MAGIC = 0x50
_MAX = (1 << 31) - 64  # bytes that a column's offsets can count


class Chunk(NamedTuple):
    """A chunk as it came: `records` messages in `entries` entries, the first of them at offset `first`."""

    first: int
    records: int
    entries: int
    timestamp: int
    """Milliseconds since 1970."""
    crc: int
    data: memoryview

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first + self.records


def read_chunk(frame: Frame, stream: str) -> Chunk:
    """The chunk in a Deliver frame; ChunkError if its header does not fit. Its data are not looked at."""
    body = frame.body[1:] if frame.version == 1 else frame.body[9:]
    if len(body) < _HEADER.size:
        raise ChunkError(stream, 0, f"a header of {len(body)} bytes")
    magic, kind, entries, records, timestamp, _, first, crc, size, _, _ = _HEADER.unpack_from(body)
    data = body[_HEADER.size :]
    if magic != _MAGIC or kind != _USER:
        raise ChunkError(stream, first, f"of version {magic:#x} and type {kind}, which nobody can read here")
    if len(data) < size:  # more is a trailer that some brokers send
        raise ChunkError(stream, first, f"{size} bytes of data announced, and {len(data)} came")
    return Chunk(first, records, entries, timestamp, crc, data[:size])


def to_arrow(
    chunks: Sequence[Chunk],
    stream: str,
    *,
    start: int = 0,
    end: int | None = None,
    columns: Collection[str] = DEFAULT_COLUMNS,
) -> Any:
    """The messages of chunks, in their order, as a pyarrow.RecordBatch with `columns` in the order given.

    Only those with `start <= offset < end`. Checks every CRC. ChunkError names stream and chunk where data
    are damaged, malformed or packed by an unknown codec.

    `value` is the body: of several data sections all of them, of an amqp-value its text or bytes; any other
    body stays as it is encoded; what is not AMQP 1.0 is a body as a whole.
    """
    for name in columns:
        if name not in COLUMNS:
            raise ConfigError("columns", name, f"some of {', '.join(COLUMNS)}")
    wanted = [each for each in chunks if each.end > start and (end is None or each.first < end)]
    for each in wanted:
        if zlib.crc32(each.data) != each.crc:
            raise ChunkError(stream, each.first, "its data do not fit its CRC")
    try:
        buffer, starts, sizes = _joined(wanted, stream, unpack=False)
    except ChunkError:  # there may be sub-entries that hold one message each
        buffer, starts, sizes = _joined(wanted, stream, unpack=True)
    offsets, times = _positions(wanted)
    if len(offsets) and (offsets[0] < start or (end is not None and offsets[-1] >= end)):
        kept = slice(*np.searchsorted(offsets, [start, 1 << 62 if end is None else end]))
        starts, sizes, offsets, times = starts[kept], sizes[kept], offsets[kept], times[kept]
    made: dict[str, Any] = {}
    if "value" in columns:
        made["value"] = _values(buffer, starts, sizes, offsets, stream)
    if "message" in columns:
        made["message"] = _binary(buffer, starts, starts + sizes)
    if "offset" in columns:
        made["offset"] = numbers(offsets, COLUMNS["offset"])
    if "timestamp" in columns:
        made["timestamp"] = numbers(times * 1000, COLUMNS["timestamp"])
    return pa.record_batch([made[name] for name in columns], schema=schema(columns))


def schema(columns: Collection[str] = DEFAULT_COLUMNS) -> Any:
    """The pyarrow.Schema of what `to_arrow` returns."""
    return pa.schema([pa.field(name, COLUMNS[name], nullable=False) for name in columns])


def _joined(
    chunks: Sequence[Chunk], stream: str, unpack: bool
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """The data of all chunks in one piece, where each message begins in it, and how long it is."""
    plain = [
        _unpacked(each, stream) if unpack or each.entries != each.records else each.data for each in chunks
    ]
    buffer = b"".join([*plain, bytes(16)])  # so that a look ahead never leaves it
    if len(buffer) > _MAX:
        raise ChunkError(stream, chunks[0].first, f"{len(buffer)} bytes at once: read smaller batches")
    try:
        return buffer, *entry_starts(buffer, [len(each) for each in plain], [each.records for each in chunks])
    except Cut as cut:
        raise ChunkError(stream, chunks[cut.chunk].first, cut.text) from None


def _positions(chunks: Sequence[Chunk]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    counts = np.fromiter((each.records for each in chunks), np.int64, len(chunks))
    firsts = np.fromiter((each.first for each in chunks), np.int64, len(chunks))
    times = np.fromiter((each.timestamp for each in chunks), np.int64, len(chunks))
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum(), dtype=np.int64) + np.repeat(firsts - before, counts), np.repeat(
        times, counts
    )


def _unpacked(chunk: Chunk, stream: str) -> bytes:
    """A chunk's data with every sub-entry replaced by what is in it: the entries of a sub-entry look like
    those of a chunk.
    """
    data, at, records = chunk.data, 0, 0
    parts: list[bytes | memoryview] = []
    try:
        for _ in range(chunk.entries):
            if data[at] & 0x80:
                head, count, size, length = struct.unpack_from(">BHII", data, at)
                at += 11
                body = data[at : at + length]
                if len(body) < length:
                    raise ValueError("it ends within a sub-entry")
                parts.append(compression.unpack(head >> 4 & 7, body, size))
                at += length
                records += count
            else:
                length = 4 + int.from_bytes(data[at : at + 4], "big")
                parts.append(data[at : at + length])
                at += length
                records += 1
        if at != len(data):
            raise ValueError(f"its data end {'within' if at > len(data) else 'after'} the last entry")
    except (ValueError, IndexError, struct.error) as error:
        raise ChunkError(stream, chunk.first, str(error)) from error
    if records != chunk.records:
        raise ChunkError(stream, chunk.first, f"{chunk.records} messages announced, and {records} came")
    return b"".join(parts)


def _values(
    buffer: bytes,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    stream: str,
) -> Any:
    try:
        begins, ends, odd = bodies(buffer, starts, sizes)
    except Cut as cut:
        raise ChunkError(stream, int(offsets[cut.chunk]), f"the message there is {cut.text}") from None
    column = _binary(buffer, begins, ends)
    if not odd:
        return column
    mask = np.zeros(len(begins), np.uint8)
    mask[list(odd)] = 1
    others = binaries([odd[row] for row in sorted(odd)], pa.binary())
    return pc.replace_with_mask(column, numbers(mask, pa.uint8()).cast(pa.bool_()), others)


def _binary(buffer: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Any:
    """A binary column of pieces of a buffer, in its order."""
    count = len(begins)
    if not count:
        return binaries([], pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[::2], edges[1::2] = begins, ends
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(buffer)]
    )
    return whole.take(numbers(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32()))
