"""Streams through a real Spark session."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leash.streams import Connection, create_super_stream, partition_of
from tests.examples_in_docs import execute, snippets

from .kit import bodies, contents, fill, make

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def frame(spark: SparkSession, place: str, **given: object) -> DataFrame:
    reader = spark.readStream.format("rabbitmq").option("url", place)
    return reader.options(**{name: str(value) for name, value in given.items()}).load()


def run(made: DataFrame, place: str, folder: Path, **given: str) -> StreamingQuery:
    """To a stream, until all is read that is there."""
    writer = made.writeStream.format("rabbitmq").option("url", place).options(**given)
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_from_stream_to_stream_again_and_again(spark: SparkSession, place: str, tmp_path: Path) -> None:
    make(place, "in", "out")
    sent = fill(place, "in", 0, 20_000, pieces=4)
    made = frame(spark, place, stream="in", maxRecordsPerTrigger=6000, ordered="true")
    query = run(made, place, tmp_path, stream="out")
    assert contents(place, "out") == sent
    progress: Any = query.lastProgress
    told = json.loads(progress["sources"][0]["latestOffset"])
    assert told["lag"] == {"in": 0}
    fill(place, "in", 20_000, 500)
    run(made, place, tmp_path, stream="out")
    assert contents(place, "out") == bodies(0, 20_500)


def test_a_lost_commit_file_repeats_no_row(spark: SparkSession, place: str, tmp_path: Path) -> None:
    make(place, "in", "out")
    sent = fill(place, "in", 0, 5000)
    made = frame(spark, place, stream="in", maxRecordsPerTrigger=2000, minPartitions=2)
    run(made, place, tmp_path / "c", stream="out")
    last = max(int(file.name) for file in (tmp_path / "c" / "commits").glob("[0-9]*"))
    (tmp_path / "c" / "commits" / str(last)).unlink()
    (tmp_path / "c" / "commits" / f".{last}.crc").unlink(missing_ok=True)
    run(made, place, tmp_path / "c", stream="out")
    assert sorted(contents(place, "out")) == sent
    assert len(contents(place, "out")) == 5000
    shutil.rmtree(tmp_path / "c")  # a new checkpoint is a new query: all again, by intent
    run(made, place, tmp_path / "c", stream="out")
    assert Counter(contents(place, "out")) == Counter(sent * 2)


def test_a_task_that_fails_once_repeats_no_row(spark: SparkSession, place: str, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    make(place, "in", "out")
    sent = fill(place, "in", 0, 30_000)
    flag = tmp_path / "failed"

    def fail_once(value: Any) -> Any:
        if value == b"00020000" and not flag.exists():
            flag.touch()
            raise RuntimeError("the task crashes here")
        return value

    odd = udf(fail_once, "binary", useArrow=False)
    made = frame(spark, place, stream="in").select(odd("value").alias("value"))
    run(made, place, tmp_path / "c", stream="out")
    assert flag.exists()
    assert contents(place, "out") == sent


def test_other_rows_on_a_retry_fail_the_query(spark: SparkSession, place: str, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.functions import expr

    make(place, "in", "out")
    fill(place, "in", 0, 3000)
    odd = frame(spark, place, stream="in").select(expr("cast(uuid() as binary)").alias("value"))
    run(odd, place, tmp_path, stream="out")
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="batch 0 of this query up to row 3000"):
        run(odd, place, tmp_path, stream="out")
    assert len(contents(place, "out")) == 3000


def test_a_super_stream_and_back(
    spark: SparkSession, place: str, uri: str, link: Connection, tmp_path: Path
) -> None:
    create_super_stream(link, "in", 3, amqp=uri)
    create_super_stream(link, "out", 2, amqp=uri)
    keys = [f"k{n}" for n in range(900)]
    wrote = spark.createDataFrame([(key, key) for key in keys], "value string, routing_key string")
    wrote.write.format("rabbitmq").option("url", place).option("superStream", "in").mode("append").save()
    for number in range(3):
        mine = [key.encode() for key, at in zip(keys, partition_of(keys, 3), strict=True) if at == number]
        assert sorted(contents(place, f"in-{number}")) == sorted(mine)
    made = frame(spark, place, superStream="in").selectExpr("value", "cast(value as string) as routing_key")
    run(made, place, tmp_path, superStream="out")
    there = [contents(place, f"out-{number}") for number in range(2)]
    assert sorted(there[0] + there[1]) == sorted(key.encode() for key in keys)
    assert all(partition_of([value.decode()], 2)[0] == number for number in (0, 1) for value in there[number])


def test_a_batch_read_in_sql(spark: SparkSession, place: str) -> None:
    make(place, "s")
    fill(place, "s", 0, 10_000)
    reader = spark.read.format("rabbitmq").option("url", place).option("stream", "s")
    made = reader.option("startingOffsets", '{"s": 1000}').option("maxRecordsPerPartition", 2500).load()
    assert made.rdd.getNumPartitions() == 4
    made.createOrReplaceTempView("s")
    row: Any = spark.sql(
        "select count(*) n, min(offset) a, max(offset) b, count(distinct value) d from s"
    ).first()
    assert tuple(row) == (9000, 1000, 9999, 9000)
    one = (
        spark.read.format("rabbitmq").schema("offset long").option("url", place).option("stream", "s").load()
    )
    assert one.limit(3).count() == 3


def test_quanta_in_a_session(spark: SparkSession, place: str, tmp_path: Path) -> None:
    make(place, "gold", "silver", "free", "out")
    for number, name in enumerate(["gold", "silver", "free"]):
        fill(place, name, number * 10_000, 10_000)
    came: Counter[str] = Counter()
    spreads: list[float] = []

    def note(batch: Any, _: int) -> None:
        came.update({row.stream: row["count"] for row in batch.groupBy("stream").count().collect()})
        if len(spreads) < 5:
            rounds = [came["gold"] / 10, came["silver"] / 3, came["free"]]
            spreads.append(max(rounds) - min(rounds))

    made = frame(spark, place, streams="gold:10,silver:3,free:1", maxRecordsPerTrigger=2003)
    writer = made.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert came == dict.fromkeys(("gold", "silver", "free"), 10_000)
    assert max(spreads) <= 1


def test_the_examples_of_the_docs(
    spark: SparkSession, place: str, link: Connection, uri: str, tmp_path: Path
) -> None:
    source, sink, *_ = snippets("streams.md")
    for name in ("orders", "orders.checked"):
        create_super_stream(link, name, 2, amqp=uri)
    make(place, "audit")
    fill(place, "audit", 0, 10)
    fill(place, "orders-0", 0, 20)
    names = execute("streams.md", source, place, spark=spark)
    assert names["yesterday"].count() == 10
    orders = names["orders"].selectExpr("value", "'ada' as customer")
    execute("streams.md", sink, place, tmp_path, orders=orders)
    (query,) = spark.streams.active
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sum(len(contents(place, f"orders.checked-{number}")) for number in (0, 1)) == 20
