"""The examples of README and docs that need Spark run as written, but for broker and folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leash import Partitions, Publisher
from leash.amqp import Channel, Properties
from leash.amqp.topology import bind_queue, declare_exchange, declare_queue
from leash.amqp.uri import parse
from leash.broker import Broker
from tests.consumer.kit import depth, fill, publish, until
from tests.examples_in_docs import execute, snippets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


# --- the recipes ---


def recipe(number: int) -> str:
    return snippets("spark.md")[5 + number]


def source(spark: SparkSession, uri: str, queues: str, folder: Path) -> DataFrame:
    told = {"url": uri, "queues": queues, "stagingLocation": str(folder / "staging"), "pollTimeout": "100ms"}
    return spark.readStream.format("rabbitmq").options(**told).load()


def test_bad_rows_go_to_a_dead_letter_queue(
    spark: SparkSession, channel: Channel, uri: str, tmp_path: Path
) -> None:
    from pyspark.sql import functions

    for queue in ("gold", "orders.bad"):
        declare_queue(channel, queue)
    publish(channel, "gold", [b'{"id": 1, "total": 2.5}', b"not JSON", b'{"total": 3}'])
    orders = source(spark, uri, "gold", tmp_path)
    execute("spark.md", recipe(0), uri, tmp_path, orders=orders, F=functions)
    good = spark.read.parquet(f"{tmp_path}/data/good").select("id", "total").collect()
    assert [tuple(row) for row in good] == [(1, 2.5)]
    assert depth(channel, "gold") == 0
    until(lambda: depth(channel, "orders.bad") == 2)


def test_a_backfill_and_the_live_query_read_every_message_once(
    spark: SparkSession, broker: Broker, coordinated: None, uri: str, tmp_path: Path
) -> None:
    from leash import streams

    place = broker.stream_place(parse(uri).vhost).reveal()
    with streams.connect(place) as link:
        streams.create_stream(link, "orders")
    with streams.Publisher(place, "orders") as publisher:
        publisher.publish([b"%d" % number for number in range(1000)])
    execute("spark.md", recipe(1), place, tmp_path, spark=spark)
    found = {name: spark.read.parquet(f"{tmp_path}/data/{name}").collect() for name in ("past", "live")}
    assert sorted(row["offset"] for row in found["past"]) == list(range(400))
    assert sorted(row["offset"] for row in found["live"]) == list(range(400, 1000))
    assert {int(row["text"]) for rows in found.values() for row in rows} == set(range(1000))


def test_delta(spark: SparkSession, channel: Channel, uri: str, tmp_path: Path) -> None:
    pytest.importorskip("delta", reason="delta-spark is not installed")
    fill(channel, "gold", 10)
    execute("spark.md", recipe(2), uri, tmp_path, orders=source(spark, uri, "gold", tmp_path))
    assert spark.read.format("delta").load(f"{tmp_path}/data/delta").count() == 10


def test_a_notebook_looks_takes_and_counts(
    spark: SparkSession, channel: Channel, uri: str, tmp_path: Path
) -> None:
    fill(channel, "gold", 10)
    fill(channel, "free", 5)
    orders = source(spark, uri, "gold,free", tmp_path)
    names = execute("spark.md", recipe(3), uri, tmp_path, spark=spark, orders=orders)
    assert {row["queue"]: row["count"] for row in names["taken"].collect()} == {"gold": 10, "free": 5}


def test_schemas_from_a_file(spark: SparkSession, channel: Channel, uri: str, tmp_path: Path) -> None:
    from pyspark.sql import functions

    declare_queue(channel, "gold")
    (tmp_path / "data").mkdir()
    schemas = {"order/1": "id long, total double", "return/1": "id long, reason string"}
    (tmp_path / "data" / "schemas.json").write_text(json.dumps(schemas))
    with Publisher(uri) as publisher:
        for kind, body in {
            "order/1": {"id": 1, "total": 2.5},
            "return/1": {"id": 2, "reason": "late"},
            "other/1": {},
        }.items():
            publisher.publish(body, "gold", properties=Properties(message_type=kind))
        publisher.publish({}, "gold")
    orders = source(spark, uri, "gold", tmp_path)
    execute("spark.md", recipe(4), uri, tmp_path, orders=orders, F=functions)
    found = {
        name: [tuple(row)[:2] for row in spark.read.parquet(f"{tmp_path}/data/{name}").collect()]
        for name in (*schemas, "unknown")
    }
    assert found["order/1"] == [(1, 2.5)]
    assert found["return/1"] == [(2, "late")]
    assert sorted(kind or "" for kind, _ in found["unknown"]) == ["", "other/1"]


def test_a_wrong_option_is_told_at_load_and_at_the_end(spark: SparkSession) -> None:
    """Unlike most errors of a source, which only show once a query runs."""
    reader = spark.readStream.format("rabbitmq").option("url", "amqp://localhost").option("queue", "q")
    with pytest.raises(Exception, match="did you mean") as caught:
        reader.option("stagingLocation", "data").option("maxRecordsPerTriger", "5").load()
    lines = [line for line in str(caught.value).splitlines() if line.strip() and "SQLSTATE" not in line]
    assert "did you mean maxRecordsPerTrigger?" in lines[-1]
