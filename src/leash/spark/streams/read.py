"""What a task does for its range: read it, and prove that it came from the stream that was planned for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from leash.errors import DataLost, StreamMissing
from leash.logfmt import logger
from leash.spark.streams.links import uri_of
from leash.spark.streams.offsets import Mark, Range
from leash.spark.streams.rows import needed, project
from leash.spark.streams.settings import StreamSettings
from leash.streams import Reader

if TYPE_CHECKING:
    import pyarrow as pa

log = logger(__name__)

_LOOK = 5.0  # seconds without a message until the task asks whether its end can still come


def read_range(piece: Range, settings: StreamSettings, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a range, in their order, each once."""
    try:
        with Reader(
            uri_of(settings.place),
            piece.stream,
            piece.start,
            end=piece.end,
            columns=needed(columns),
            filters=settings.filter_values,
            unfiltered=settings.match_unfiltered,
            load_balancer=settings.place.load_balancer,
            name="leash spark read",
            fail_on_data_loss=settings.fail_on_data_loss,
        ) as reader:
            while not reader.done:
                batch = reader.read(timeout=_LOOK)
                if batch is not None:
                    yield project(batch, piece.stream, columns)
                elif not reader.done and not _will_come(reader, piece):
                    _lost(piece, reader, settings, "it ends before what was planned")
                    return
            if _is_another(reader, piece.mark):
                _lost(piece, reader, settings, "it was deleted and made again")
    except StreamMissing as error:
        if settings.fail_on_data_loss:
            raise
        log.warning("event=data_lost reason=%r", str(error))


def _is_another(reader: Reader, mark: Mark | None) -> bool:
    """True if another chunk is in the place of one that was there when the batch was planned."""
    if mark is None:
        return False
    chunk = reader.chunk_at(mark.first)
    return chunk is not None and chunk.first <= mark.first and Mark.of(chunk) != mark


def _will_come(reader: Reader, piece: Range) -> bool:
    """True if the end is there. If not, it may be late: a replica can be behind its leader for a while."""
    deadline = time.monotonic() + 3 * _LOOK
    while reader.bounds().end < piece.end:
        if _is_another(reader, piece.mark) or time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _lost(piece: Range, reader: Reader, settings: StreamSettings, why: str) -> None:
    expected = piece.start if reader.next is None else reader.next
    error = DataLost(piece.stream, expected, reader.bounds().first, why)
    if settings.fail_on_data_loss:
        raise error
    log.warning("event=data_lost reason=%r", str(error))
