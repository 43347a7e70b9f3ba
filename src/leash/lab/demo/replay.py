"""The result in a stream, read twice: unlike a queue, a stream still has what was read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leash.lab.demo.load import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "orders"


class Replay(NamedTuple):
    """Rows that were published, and those that each of two reads found, by queue; with their seconds."""

    published: int
    reads: list[tuple[dict[str, int], float]]


def replay(spark: SparkSession, place: Place, parquet: Path) -> Replay | None:
    """Publish the Parquet files to a stream and read that twice. None: the broker has no streams."""
    if place.stream_port is None:
        return None
    from leash import streams

    with streams.connect(streams.parse(place.uri, place.stream_port)) as connection:
        streams.create_stream(connection, STREAM)
    rows = spark.read.parquet(str(parquet))
    rows.selectExpr("concat(queue, ' ', value) as value").write.format("rabbitmq").options(
        **_options(place)
    ).mode("append").save()
    return Replay(rows.count(), [_read(spark, place) for _ in range(2)])


def _read(spark: SparkSession, place: Place) -> tuple[dict[str, int], float]:
    began = time.monotonic()
    found = spark.read.format("rabbitmq").options(**_options(place)).load()
    queues = found.selectExpr("substring_index(cast(value as string), ' ', 1) as queue").groupBy("queue")
    counts = {row["queue"]: row["count"] for row in queues.count().collect()}
    return counts, time.monotonic() - began


def _options(place: Place) -> dict[str, Any]:
    return {"url": place.uri, "streamPort": str(place.stream_port), "stream": STREAM}
