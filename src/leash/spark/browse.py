"""A batch read that only looks: messages are taken, shown, and put back to their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from . import links
from .chunks import raw_batch
from .guard import QueueMissing
from .rows import project
from .settings import BrowseSettings
from .taking import QueueTaker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUIET = 0.25  # seconds without a message until the queue counts as seen


class BrowseReader(DataSourceReader):
    """One task: a queue has one order."""

    def __init__(self, settings: BrowseSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._settings.queue)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        from pyspark.sql.pandas.types import to_arrow_schema

        return _look(self._settings, to_arrow_schema(self._schema, timezone="UTC"))


def _look(settings: BrowseSettings, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    link = links.connection(settings.broker, "browse")
    taker = QueueTaker(link, settings.queue, _QUIET, ordered=False, exclusive=False)
    try:
        for lot in taker.lots(settings.limit):
            yield project(raw_batch(lot), settings.queue, columns)
        if taker.ended == "gone":
            raise QueueMissing(f"queue {settings.queue!r} does not exist")
    finally:
        taker.give_back()
