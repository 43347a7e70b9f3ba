"""Columns into Publish frames, without Python for each row.

What stands before each value has a fixed width, so it is made by numpy for all rows. Arrow joins it with the
values; the data of the joined column are the frames' bodies, and are cut only where a frame is full.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leash.errors import ConfigError
from leash.streams import compression
from leash.streams.arrow_memory import binaries, numbers, pa, pc
from leash.streams.wire import Key

_HEAD = struct.Struct(">IHHBI")  # size, key, version, publisher, count
MAX_SUB_ENTRY = 65535
"""Messages in a sub-entry."""

_NOTHING = binaries([b""], pa.large_binary())[0]  # pa.scalar would import pandas

Ids = NDArray[np.uint64]


class Sub(NamedTuple):
    """How messages are put together into sub-entries: how many, and by which codec they are packed."""

    messages: int
    codec: str


class Rows(NamedTuple):
    """What is to be published: one entry for each of `ids`, whose bytes are data[edges[i]:edges[i + 1]]."""

    ids: Ids
    data: memoryview
    edges: NDArray[np.int64]
    version: int

    def check(self, frame_max: int) -> None:
        """ConfigError for an entry that fits into no frame."""
        room = frame_max - _HEAD.size
        sizes = np.diff(self.edges)
        if len(sizes) and sizes.max() > room:
            at = int(sizes.argmax())
            raise ConfigError(
                "values",
                f"{sizes[at]} bytes with id {self.ids[at]}",
                f"at most {room} bytes with their headers: the broker's stream.frame_max is {frame_max}",
            )

    def frames(self, publisher: int, frame_max: int, first: int = 0) -> Iterator[tuple[bytes, int]]:
        """Frames of at most `frame_max` bytes from row `first` on, each with how many entries are in it;
        after `check`.
        """
        room, at = frame_max - _HEAD.size, first
        while at < len(self.ids):
            stop = int(np.searchsorted(self.edges, self.edges[at] + room, side="right")) - 1
            body = self.data[self.edges[at] : self.edges[stop]]
            head = _HEAD.pack(len(body) + 9, Key.PUBLISH, self.version, publisher, stop - at)
            yield b"".join((head, body)), stop - at
            at = stop


def rows(
    values: Any,
    ids: Ids,
    *,
    sections: Any = None,
    filters: Any = None,
    sub: Sub | None = None,
) -> Rows:
    """Entries of values, each with one data section, `sections` before it.

    With `filters`, a column of text whose nulls mean none, for Publish version 2. With `sub`, sub-entries:
    each has the id of its last message.
    """
    values = _column("values", values)
    if sub is not None:
        return _packed(values, ids, sections, sub)
    head = ids.astype(">u8").view("V8")
    message = _messages(values, sections)
    if filters is None:
        return _rows(ids, 1, _fixed(head), *message)
    marks = _filters(filters, len(values))
    sizes = np.where(_nulls(marks), 0xFFFF, _lengths(marks.fill_null(b""))).astype(">u2")
    return _rows(ids, 2, _fixed(head), _fixed(sizes.view("V2")), marks.fill_null(b""), *message)


def _rows(ids: Ids, version: int, *columns: Any) -> Rows:
    data, edges = _joined(columns)
    return Rows(ids, data, edges, version)


def _messages(values: Any, sections: Any) -> list[Any]:
    """Columns that, joined, are messages with their lengths before them."""
    sizes = _lengths(values)
    small = not len(sizes) or sizes.max() < 256
    before = _section_column(sections, len(values))
    wrapped = sizes + (5 if small else 8) + (0 if before is None else _lengths(before))
    lead = wrapped.astype(">u4").view("V4")
    mark = np.empty(len(sizes), "V5" if small else "V8")
    raw = mark.view(np.uint8).reshape(len(sizes), mark.itemsize)
    raw[:, :4] = np.frombuffer(b"\0\x53\x75\xa0" if small else b"\0\x53\x75\xb0", np.uint8)
    if small:
        raw[:, 4] = sizes
    else:
        raw[:, 4:] = sizes.astype(">u4").view(np.uint8).reshape(len(sizes), 4)
    return [_fixed(lead), *([] if before is None else [before]), _fixed(mark), values]


def _packed(values: Any, ids: Ids, sections: Any, sub: Sub) -> Rows:
    if not 0 < sub.messages <= MAX_SUB_ENTRY:
        raise ConfigError("sub_entries", sub.messages, f"from 1 to {MAX_SUB_ENTRY} messages")
    code = compression.number(sub.codec)
    data, edges = _joined(_messages(values, sections))
    parts, last = [], []
    sizes = [0]
    for at in range(0, len(ids), sub.messages):
        stop = min(at + sub.messages, len(ids))
        plain = data[edges[at] : edges[stop]]
        packed = compression.pack(sub.codec, plain)
        key = int(ids[stop - 1])
        parts += [struct.pack(">QBHII", key, 0x80 | code << 4, stop - at, len(plain), len(packed)), packed]
        last.append(key)
        sizes.append(sizes[-1] + 19 + len(packed))
    return Rows(np.array(last, np.uint64), memoryview(b"".join(parts)), np.array(sizes, np.int64), 1)


def _joined(columns: Any) -> tuple[memoryview, NDArray[np.int64]]:
    joined = pc.binary_join_element_wise(*columns, _NOTHING)
    edges = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1, joined.offset * 8)
    data = joined.buffers()[2]
    return memoryview(data if data is not None else b""), edges


def _column(name: str, values: Any) -> Any:
    """Bytes or text, in whatever column they are, as one binary column of 64-bit offsets."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    elif not isinstance(values, pa.Array):
        try:
            values = _listed(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise ConfigError(name, type(values).__name__, f"bytes, or a column of them ({error})") from error
    if values.null_count:
        raise ConfigError(name, f"{values.null_count} nulls", "no nulls: a message has a body")
    try:
        return values.cast(pa.large_binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(name, str(values.type), "a column of binary or string") from error


def _listed(values: Any) -> Any:
    if isinstance(values, list | tuple):
        with contextlib.suppress(TypeError):  # not only bytes
            return binaries(values, pa.large_binary())
    return pa.array(values, pa.large_binary())


def _section_column(sections: Any, count: int) -> Any:
    if sections is None or (isinstance(sections, bytes) and not sections):
        return None
    if isinstance(sections, bytes):
        return binaries([sections], pa.large_binary()).take(numbers(np.zeros(count, np.int64), pa.int64()))
    return _column("sections", sections)


def _filters(filters: Any, count: int) -> Any:
    column = filters.combine_chunks() if isinstance(filters, pa.ChunkedArray) else filters
    column = column if isinstance(column, pa.Array) else pa.array(column, pa.large_string())
    if len(column) != count:
        raise ConfigError("filters", len(column), f"as many as values: {count}")
    column = column.cast(pa.large_binary())
    if len(column) and (pc.max(pc.binary_length(column)).as_py() or 0) > 255:
        raise ConfigError("filters", "more than 255 bytes", "at most 255 bytes each, as RabbitMQ has it")
    return column


def _nulls(column: Any) -> NDArray[np.bool_]:
    marks = column.is_null().cast(pa.uint8())
    return np.frombuffer(marks.buffers()[1], np.bool_, len(marks), marks.offset)


def _lengths(column: Any) -> NDArray[np.int64]:
    edges = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    return np.diff(edges)


def _fixed(records: NDArray[Any]) -> Any:
    """Records of one width as a binary column, without a copy."""
    width = records.dtype.itemsize
    edges = np.arange(0, (len(records) + 1) * width, width, dtype=np.int64)
    data = pa.py_buffer(np.ascontiguousarray(records).view(np.uint8))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(records), [None, pa.py_buffer(edges), data]
    )
