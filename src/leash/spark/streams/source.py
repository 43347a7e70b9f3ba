"""What Spark calls to read streams, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leash.spark.streams.batch import batch_ranges
from leash.spark.streams.driver import StreamDriver
from leash.spark.streams.offsets import Range, StreamPlan, ranges_between
from leash.spark.streams.settings import StreamSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_NO_LIMIT = (1 << 63) - 1


class RangePartition(InputPartition):
    def __init__(self, piece: Range) -> None:
        super().__init__(tuple(piece))
        self.piece = piece


class StreamsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark makes a second one just to pickle it, so there is nothing here but settings until it is asked."""

    def __init__(self, settings: StreamSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._lazy: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lazy": None}

    @property
    def _driver(self) -> StreamDriver:
        if self._lazy is None:
            self._lazy = StreamDriver(self._settings)
        return self._lazy

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._driver.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Always a row limit, so that ReadAllAvailable can only mean that Spark lifts it.
        return ReadMaxRows(self._settings.max_records_per_trigger or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        plan = StreamPlan.from_json(start)
        latest = self._driver.latest(plan, isinstance(limit, ReadAllAvailable))
        return start if latest is plan else latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._driver.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = ranges_between(StreamPlan.from_json(start), StreamPlan.from_json(end))
        return [RangePartition(piece) for piece in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._settings, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept that could be let go."""

    def stop(self) -> None:
        if self._lazy is not None:
            self._lazy.stop()


class StreamsBatchReader(DataSourceReader):
    """`spark.read`: what there is when the job is planned."""

    def __init__(self, settings: StreamSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(piece) for piece in batch_ranges(self._settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._settings, self._schema)


def _read(
    partition: InputPartition, settings: StreamSettings, schema: StructType
) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    from leash.spark.streams.read import read_range

    assert isinstance(partition, RangePartition)
    return read_range(partition.piece, settings, to_arrow_schema(schema, timezone="UTC"))
