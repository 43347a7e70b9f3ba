"""The examples of README and docs that need Spark run as written, but for broker and folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leash import Partitions
from leash.amqp import Channel
from leash.amqp.topology import bind_queue, declare_exchange, declare_queue
from tests.consumer.kit import depth, fill, publish, until
from tests.examples_in_docs import execute, snippets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def end(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize(("page", "number"), [("README.md", 2), ("spark.md", 0)])
def test_the_source(
    page: str, number: int, spark: SparkSession, channel: Channel, uri: str, tmp_path: Path
) -> None:
    for queue in ("gold", "silver", "free"):
        fill(channel, queue, 10)
    names = execute(page, snippets(page)[number], uri, folder=tmp_path, spark=spark)
    try:
        until(lambda: spark.streams.active[0].lastProgress is not None)
        until(lambda: all(depth(channel, queue) == 0 for queue in ("gold", "silver", "free")))
        spark.streams.active[0].processAllAvailable()
        assert spark.read.schema(names["orders"].schema).parquet(f"{tmp_path}/data/orders").count() == 30
    finally:
        end(spark)


def test_browsing(
    spark: SparkSession, channel: Channel, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(channel, "orders", 3)
    execute("spark.md", snippets("spark.md")[1], uri, spark=spark)
    assert depth(channel, "orders") == 3


def test_the_sink(spark: SparkSession, channel: Channel, uri: str, tmp_path: Path) -> None:
    declare_exchange(channel, "alerts", kind="fanout")
    declare_queue(channel, "all")
    bind_queue(channel, "all", "alerts", "")
    alerts = spark.readStream.format("rate").load().selectExpr("value", "'high' as severity")
    execute("spark.md", snippets("spark.md")[2], uri, tmp_path, alerts=alerts)
    try:
        until(lambda: depth(channel, "all") > 0)
    finally:
        end(spark)


def test_to_parquet_and_back(spark: SparkSession, channel: Channel, uri: str, tmp_path: Path) -> None:
    for queue in ("orders.gold", "orders.free", "orders.big"):
        declare_queue(channel, queue)
    publish(channel, "orders.gold", [b'{"id": 1, "total": 1200.5}', b'{"id": 2, "total": 3}'])
    (tmp_path / "data" / "orders").mkdir(parents=True)
    text = snippets("spark.md")[3].replace(
        "big = (", "spark.streams.active[0].processAllAvailable()\nbig = ("
    )  # a batch job would run later, when there are files
    try:
        execute("spark.md", text, uri, tmp_path)
    finally:
        end(spark)
    assert depth(channel, "orders.big") == 1


def test_partitions_on_spark(spark: SparkSession, channel: Channel, uri: str, tmp_path: Path) -> None:
    Partitions("orders", weights={"orders.0": 1, "orders.1": 2}).declare(uri)
    customers = spark.createDataFrame([("alice", "a"), ("bob", "b")], "customer string, order string")
    execute("partitions.md", snippets("partitions.md")[1], uri, tmp_path, spark=spark, customers=customers)
    until(lambda: depth(channel, "orders.0") + depth(channel, "orders.1") == 2)
