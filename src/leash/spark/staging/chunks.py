"""Staged rows: fixed raw columns in Arrow's IPC format, so that options may change between staging and
yielding."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from leash.amqp.properties import readable
from leash.errors import StagingError
from leash.spark.staging import paths
from leash.spark.staging.files import Files, Writer
from leash.spark.staging.seals import Chunk, Seal

INLINE = 64 * 1024  # bytes; a smaller split is stored in its seal
_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 8 << 20

RAW = pa.schema(
    [
        pa.field("redelivered", pa.bool_(), nullable=False),
        pa.field("exchange", pa.string(), nullable=False),
        pa.field("routing_key", pa.string(), nullable=False),
        pa.field("properties", pa.binary(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)

log = logging.getLogger(__name__)


class Lot(Protocol):
    """Some deliveries of one queue, as columns of equal length."""

    redelivered: list[bool]
    exchanges: list[str]
    routing_keys: list[str]
    properties: list[bytes]
    bodies: list[bytes]

    def __len__(self) -> int: ...


class ChunkWriter:
    """Writes a split's rows. Opens its file at once: a full or read-only disk must fail before anything is
    taken.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._file: Writer = files.writer(path)
        self._columns: tuple[list[Any], ...] = tuple([] for _ in RAW)
        self._pending = 0
        self._encoded: list[tuple[Chunk, bytes]] = []
        self.chunks: list[Chunk] = []
        self.inline = b""
        self.rows = self.size = self.redelivered = 0

    def add(self, lot: Lot, keep: list[int] | None = None) -> None:
        """Stage these deliveries, or only those at the indices in `keep`."""
        columns: list[list[Any]] = [
            *(lot.redelivered, lot.exchanges, lot.routing_keys),
            *(lot.properties, lot.bodies),
        ]
        for mine, theirs in zip(self._columns, columns, strict=True):
            mine.extend(theirs if keep is None else [theirs[i] for i in keep])
        count = len(lot) if keep is None else len(keep)
        size = sum(map(len, self._columns[4][-count:])) if count else 0
        self.rows += count
        self.size += size
        self._pending += size
        if len(self._columns[0]) >= _CHUNK_ROWS or self._pending >= _CHUNK_BYTES:
            self._flush()

    def finish(self) -> str:
        """Durable on return; the chunk file's name, or "" if the rows fit into the seal."""
        self._flush()
        if sum(chunk.length for chunk in self.chunks) <= INLINE:
            self.inline = b"".join(data for _, data in self._encoded)
            self.discard()
            return ""
        self._write_out()
        self._file.close()
        return self._path.rpartition("/")[2]

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._files.delete(self._path)

    def _flush(self) -> None:
        columns, self._columns, self._pending = self._columns, tuple([] for _ in RAW), 0
        rows = len(columns[0])
        if not rows:
            return
        self.redelivered += sum(columns[0])
        data = _batch(columns).serialize().to_pybytes()
        chunk = Chunk(len(data), zlib.crc32(data), rows)
        self.chunks.append(chunk)
        self._encoded.append((chunk, data))
        if sum(len(data) for _, data in self._encoded) > INLINE:
            self._write_out()

    def _write_out(self) -> None:
        for _, data in self._encoded:
            self._file.write(data)
        self._encoded.clear()


def raw_batch(lot: Lot) -> pa.RecordBatch:
    """Deliveries as a batch of raw columns."""
    return _batch((lot.redelivered, lot.exchanges, lot.routing_keys, lot.properties, lot.bodies))


def _batch(columns: tuple[list[Any], ...]) -> pa.RecordBatch:
    arrays = [_array(values, field.type) for values, field in zip(columns, RAW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        # An AMQP routing key may be any bytes; Spark's strings are UTF-8.
        return pa.array([readable(text) for text in values], kind)


def read_chunks(
    files: Files, seal_path: str, seal: Seal, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The sealed rows, chunk by chunk. Nothing is consumed in place of lost rows."""
    folder = paths.folder_of(seal_path)
    for number, (chunk, data) in enumerate(_stretches(files, folder, seal)):
        if len(data) == chunk.length and zlib.crc32(data) == chunk.crc:
            yield pa.ipc.read_record_batch(pa.py_buffer(data), RAW)
            continue
        lost = (
            f"{chunk.rows} staged messages of queue {seal.queue!r} are lost: chunk {number} of "
            f"{folder}/{seal.file or 'its seal'} is missing or damaged"
        )
        if fail_on_data_loss:
            raise StagingError(f"{lost}; restore the file, or set failOnDataLoss=false to go on without them")
        log.warning("event=staged_lost reason=%r", lost)


def _stretches(files: Files, folder: str, seal: Seal) -> Iterator[tuple[Chunk, bytes]]:
    if not seal.file:
        at = 0
        for chunk in seal.chunks:
            yield chunk, seal.inline[at : at + chunk.length]
            at += chunk.length
        return
    try:
        file = files.reader(f"{folder}/{seal.file}")
    except OSError:
        yield from ((chunk, b"") for chunk in seal.chunks)
        return
    with file:
        for chunk in seal.chunks:
            yield chunk, file.read(chunk.length)
