"""Publishes rows. A task is done when the broker has confirmed every one of its rows."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from leash.errors import ConfigError
from leash.spark.settings import SinkSettings
from leash.spark.sink_rows import RowEncoder, check_schema
from leash.units import SECOND

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class Published(WriterCommitMessage):
    rows: int


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("rabbitmq")`: a retried task repeats the message ids of its first attempt."""

    def __init__(self, settings: SinkSettings, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        check_schema(schema, settings)
        self._settings = settings
        self._job = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish(self._settings, iterator, f"{self._job}-{_task().partitionId()}")


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream.format("rabbitmq")`: a retried batch repeats its message ids too."""

    def __init__(self, settings: SinkSettings, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        check_schema(schema, settings)
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return publish(self._settings, iterator, f"{query}-{batch}-{context.partitionId()}")


def publish(settings: SinkSettings, batches: Iterator[pa.RecordBatch], prefix: str) -> Published:
    """Publish and wait for the confirms; `prefix` starts the ids of messages that have none."""
    from leash.amqp import Publisher
    from leash.spark import connections

    encoder = RowEncoder(settings, prefix, _by(settings))
    link = connections.patiently(lambda: connections.connection(settings.broker, "publish"))
    try:
        publisher = Publisher(link, timeout=settings.confirm_timeout / SECOND)
        rows = publisher.publish(message for batch in batches for message in encoder.messages(batch))
        publisher.close()
    except BaseException:
        # A blocked broker does not read a close either.
        link.abort()
        raise
    return Published(rows)


def _by(settings: SinkSettings) -> str | None:
    """What the partitions are keyed by. Asked on another connection: an alarm blocks those that publish."""
    from leash.partitions import layout_store
    from leash.spark import connections

    name = settings.partitions
    if name is None:
        return None
    return connections.patiently(
        lambda: layout_store.need(connections.connection(settings.broker, "look"), name)
    ).by


def _task() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            "mode",
            "overwrite",
            "messages can only be appended; use mode append (outputMode append or update)",
        )
