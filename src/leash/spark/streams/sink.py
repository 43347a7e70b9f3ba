"""Rows to streams, exactly once. A task is done when the broker has confirmed every one of its rows.

The rule: a stream has each row of a batch once, whatever of it was tried before and by whom, as long as every
try has the same rows in the same order; a try with other rows fails, and says at which row. See `ids`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from leash.errors import ConfigError, StreamMissing
from leash.spark.streams.ids import BATCHES
from leash.spark.streams.links import Links
from leash.spark.streams.messages import Messages, check_schema, messages
from leash.spark.streams.pinned_partitions import pinned
from leash.spark.streams.publish_once import Lane
from leash.spark.streams.settings import StreamSinkSettings
from leash.streams import partition_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TASKS = 255  # publishers whose ids a stream remembers


@dataclass
class Published(WriterCommitMessage):
    rows: int


class StreamsSink(DataSourceStreamArrowWriter):
    """`df.writeStream`: exactly once for a query's checkpoint, through retries and restarts."""

    def __init__(self, settings: StreamSinkSettings, schema: StructType, overwrite: bool) -> None:
        _check(settings, schema, overwrite)
        self._settings = settings
        find_streams(settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        names = pinned(self._settings, query, batch)
        return publish(self._settings, names, query, context.partitionId(), batch, iterator)


class StreamsBatchSink(DataSourceArrowWriter):
    """`df.write`: each row once, through retries of tasks; a job that runs again publishes all again."""

    def __init__(self, settings: StreamSinkSettings, schema: StructType, overwrite: bool) -> None:
        _check(settings, schema, overwrite)
        self._settings = settings
        self._job = secrets.token_hex(16)
        self._names = find_streams(settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        partition = _task().partitionId()
        return publish(self._settings, self._names, self._job, partition, 0, iterator)


def publish(
    settings: StreamSinkSettings,
    names: tuple[str, ...],
    query: str,
    partition: int,
    batch: int,
    batches: Iterator[pa.RecordBatch],
) -> Published:
    """Publish what the streams do not have yet, and wait for the confirms."""
    if partition >= _TASKS:
        raise ConfigError(
            "partitions",
            partition + 1,
            f"at most {_TASKS} tasks: a stream remembers as many publishers; use coalesce({_TASKS})",
        )
    if batch >= BATCHES:
        raise ConfigError("batch", batch, f"at most {BATCHES - 1}: start a new checkpoint")
    reference = f"leash:{query}:{partition}"
    lanes = [Lane(settings, name, reference, batch) for name in names]
    rows = 0
    try:
        for piece in batches:
            found = messages(piece, settings)
            rows += len(found.values)
            for number, part in _routed(found, len(lanes)):
                lanes[number].add(part)
        for lane in lanes:
            lane.finish()
    finally:
        for lane in lanes:
            lane.close()
    return Published(rows)


def _routed(found: Messages, count: int) -> Iterator[tuple[int, Messages]]:
    """What goes to which stream, in its order."""
    if found.keys is None:
        yield 0, found
        return
    places = partition_of(found.keys, count)
    for number in np.unique(places):
        yield int(number), found.take(pa.array(np.flatnonzero(places == number)))


def find_streams(settings: StreamSinkSettings) -> tuple[str, ...]:
    """Where rows go. ConfigError if there is no such place."""
    links = Links(settings.place, "leash spark sink")
    try:
        if settings.super_stream is not None:
            return links.partitions(settings.super_stream)
        assert settings.stream is not None
        links.bounds(settings.stream)
        return (settings.stream,)
    except StreamMissing:
        raise ConfigError(
            "stream",
            settings.stream,
            "there is no stream of that name: declare it, or publish to a queue by the option routingKey",
        ) from None
    finally:
        links.close()


def _check(settings: StreamSinkSettings, schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            "mode",
            "overwrite",
            "a stream can only be appended to; use mode append (outputMode append or update)",
        )
    check_schema(schema, settings)


def _task() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context
