"""The Spark data source `rabbitmq`: only the methods that Spark calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leash.spark import columns, loading
from leash.spark.offsets import Plan, Split, splits_between
from leash.spark.settings import SourceSettings, browse_settings, sink_settings, source_settings
from leash.spark.streams import columns as stream_columns
from leash.spark.streams.settings import (
    are_for_streams,
    stream_read_settings,
    stream_settings,
    stream_sink_settings,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leash.spark.driver.driver import Driver

_NO_LIMIT = (1 << 63) - 1


class RabbitMQ(DataSource):
    """The data source. Options that fit no read are refused at `load()`, others once the read is known."""

    @classmethod
    def name(cls) -> str:
        return "rabbitmq"

    def schema(self) -> StructType:
        loading.check(self._options())
        if are_for_streams(self.options):
            return stream_columns.source_schema(self.options)
        return columns.source_schema(
            str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        if are_for_streams(self.options):
            from leash.spark.streams.source import StreamsBatchReader

            told = stream_read_settings(self._options())
            stream_columns.check_schema(schema, self.options)
            return StreamsBatchReader(told, schema)
        from leash.spark.browse import BrowseReader

        settings = browse_settings(self._options())
        columns.check_schema(schema, settings.include_headers)
        return BrowseReader(settings, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if are_for_streams(self.options):
            from leash.spark.streams.source import StreamsReader

            told = stream_settings(self._options())
            stream_columns.check_schema(schema, self.options)
            return StreamsReader(told, schema)
        settings = source_settings(self._options())
        columns.check_schema(schema, settings.include_headers)
        return QueueStreamReader(settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if are_for_streams(self.options):
            from leash.spark.streams.sink import StreamsBatchSink

            return StreamsBatchSink(stream_sink_settings(self._options()), schema, overwrite)
        from leash.spark.sink import BatchSink

        return BatchSink(sink_settings(self._options()), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if are_for_streams(self.options):
            from leash.spark.streams.sink import StreamsSink

            return StreamsSink(stream_sink_settings(self._options()), schema, overwrite)
        from leash.spark.sink import StreamSink

        return StreamSink(sink_settings(self._options()), schema, overwrite)

    def _options(self) -> Mapping[str, str]:
        return dict(self.options)


class SplitPartition(InputPartition):
    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark makes a second one just to pickle it, so it holds only settings until it is used."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._lazy: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lazy": None}

    @property
    def _driver(self) -> Driver:
        if self._lazy is None:
            from leash.spark.driver.driver import Driver
            from leash.spark.driver.tenants import with_lanes

            self._lazy = Driver(with_lanes(self._settings))
        return self._lazy

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._driver.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Always a row limit, so that ReadAllAvailable always means that Spark lifted it.
        return ReadMaxRows(self._settings.max_records_per_trigger or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        plan = Plan.from_json(start)
        latest = self._driver.latest(plan, isinstance(limit, ReadAllAvailable))
        return start if latest == plan else latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._driver.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        plan = Plan.from_json(end)
        splits = splits_between(Plan.from_json(start), plan)
        if splits:
            self._driver.reading(plan)
        return [SplitPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from leash.spark.task.read import read_split

        assert isinstance(partition, SplitPartition)
        return read_split(partition.split, self._settings, _arrow(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        self._driver.commit(Plan.from_json(end))

    def stop(self) -> None:
        if self._lazy is not None:
            self._lazy.stop()


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
