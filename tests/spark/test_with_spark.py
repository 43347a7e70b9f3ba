"""The source and the sink inside Spark itself."""

from __future__ import annotations

import datetime
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from leash.amqp.uri import parse
from leash.spark.metrics import PrometheusListener

from .harness import declare, publish, ready
from .workers import python_workers

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def source(spark: SparkSession, uri: str, folder: Path, **more: object) -> DataFrame:
    given = {"url": uri, "stagingLocation": str(folder / "staging"), "queue": "q", "pollTimeout": "100ms"}
    if "queues" in more:
        del given["queue"]
    given |= {name: str(value) for name, value in more.items()}
    return spark.readStream.format("rabbitmq").options(**given).load()


def to_parquet(frame: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**(trigger or {"availableNow": True})).start(str(folder / "out"))


def each_batch(frame: DataFrame, folder: Path, do: Callable[[DataFrame, int], None]) -> None:
    writer = frame.writeStream.foreachBatch(do).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(300)


def written(spark: SparkSession, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(str(folder / "out")).select("value").collect()
    return sorted(bytes(row.value) for row in rows)


def browse(spark: SparkSession, uri: str, queue: str, limit: int = 1000, **more: str) -> DataFrame:
    reader = spark.read.format("rabbitmq").option("url", uri).option("queue", queue).option("mode", "browse")
    return reader.option("limit", str(limit)).options(**more).load()


def _until(true: Callable[[], bool]) -> None:
    """Listeners hear of progress a little later."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_queues_flow_to_parquet_by_their_shares_and_the_progress_says_so(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    declare(uri, "gold")
    declare(uri, "free", kind="quorum")
    sent = publish(uri, 1000, "gold") + publish(uri, 1000, "free", first=1000)
    registry = CollectorRegistry()
    listener = PrometheusListener(registry=registry)
    spark.streams.addListener(listener)
    frame = source(spark, uri, tmp_path, queues="gold:9,free:1", maxRecordsPerTrigger=500)
    query = to_parquet(frame, tmp_path)
    assert query.awaitTermination(300)
    assert written(spark, tmp_path) == sorted(sent)
    first, second = query.recentProgress[:2]
    assert first["numInputRows"] == 500
    assert json.loads(first["sources"][0]["latestOffset"])["next"] == {"gold": 450, "free": 50}
    told = json.loads(second["sources"][0]["latestOffset"])
    gold = {"granted": 450, "rows": 450, "bytes": 2700, "redelivered": 0, "dropped": 0, "share": 0.9}
    assert told["queues"]["gold"] == gold
    assert told["ready"] == {"gold": 550, "free": 950}
    labels = {"query": query.id, "queue": "gold"}
    _until(lambda: (registry.get_sample_value("leash_spark_rows_total", labels) or 0) >= 900)
    spark.streams.removeListener(listener)
    query = to_parquet(source(spark, uri, tmp_path, queues="gold:9,free:1"), tmp_path)
    assert query.awaitTermination(300)
    assert len(written(spark, tmp_path)) == 2000


def test_plans_and_errors_never_show_a_password(
    spark: SparkSession, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = parse(uri).password
    declare(uri)
    publish(uri, 3)
    frame = source(spark, uri, tmp_path)
    frame.explain(True)
    browse(spark, uri, "q").explain(True)
    shown = capfd.readouterr()
    assert "rabbitmq" in (shown.out + shown.err).lower()
    texts = [shown.out, shown.err]
    wrong = uri.replace(secret, secret + "x")
    query = to_parquet(source(spark, wrong, tmp_path), tmp_path)
    with pytest.raises(Exception, match="ACCESS_REFUSED") as caught:
        query.awaitTermination(300)
    texts += [str(caught.value), str(query.exception())]
    hidden = spark.readStream.format("rabbitmq").option("uri", uri)
    with pytest.raises(Exception, match="only url and password may") as caught:
        to_parquet(hidden.load(), tmp_path).awaitTermination(300)
    texts.append(str(caught.value))
    each_batch(frame, tmp_path / "good", lambda batch, _: batch.show())
    events = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))  # type: ignore[union-attr]
    logged = [
        file.read_text() for file in events.rglob("*") if file.is_file() and not file.name.endswith(".crc")
    ]
    assert any("SparkListenerSQLExecutionStart" in text for text in logged)
    texts += logged
    assert not any(secret in text for text in texts)


def test_looking_twice_at_a_batch_shows_the_same_rows_and_limits_lose_nothing(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    declare(uri)
    sent = publish(uri, 600)
    kept: list[bytes] = []

    def look(batch: DataFrame, number: int) -> None:
        if number == 0:
            return  # no action at all
        if number == 1:
            batch.limit(1).collect()
            kept.extend(bytes(row.value) for row in batch.limit(5).collect())
            return
        assert not batch.isEmpty()
        count = batch.count()
        rows = [bytes(row.value) for row in batch.collect()]
        assert len(rows) == count
        kept.extend(rows)

    options = {"maxRecordsPerTrigger": 200, "maxRecordsPerPartition": 50}
    each_batch(source(spark, uri, tmp_path, **options), tmp_path, look)
    # A limit reads whole splits and drops the rest of their rows: that is what was asked for.
    assert len(set(kept)) == len(kept)
    assert len(sent) - 200 < len(kept) <= len(sent)
    assert ready(uri) == 0


def test_a_killed_python_worker_is_retried_and_nothing_is_lost(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    declare(uri)
    sent = publish(uri, 3000)
    frame = source(spark, uri, tmp_path, maxRecordsPerTrigger=600, maxRecordsPerPartition=100)
    query = to_parquet(frame, tmp_path)
    killed = 0
    while query.isActive and killed < 4:
        time.sleep(0.5)
        for worker in python_workers(os.getpid()):
            os.kill(worker, signal.SIGKILL)
            killed += 1
    assert query.awaitTermination(300)
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert killed
    assert sorted({bytes(row.value) for row in rows.collect()}) == sent
    plain = [bytes(row.value) for row in rows.where("not redelivered").collect()]
    assert len(plain) == len(set(plain))


def test_async_progress_tracking_is_refused(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    declare(uri)
    publish(uri, 100)
    frame = source(spark, uri, tmp_path, maxRecordsPerTrigger=10)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.option("asyncProgressTrackingEnabled", "true")
    writer = writer.option("asyncProgressTrackingCheckpointIntervalMs", "60000")
    with pytest.raises(Exception, match="asyncProgressTrackingEnabled cannot be used"):
        writer.start().awaitTermination(300)


def test_browsing_leaves_the_messages_in_the_queue_and_in_order(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    declare(uri)
    sent = publish(uri, 200)
    rows = browse(spark, uri, "q", limit=120).collect()
    assert [bytes(row.value) for row in rows] == sent[:120]
    assert ready(uri, expect=200) == 200
    again = browse(spark, uri, "q").select("value", "redelivered", "message_id").collect()
    assert [bytes(row.value) for row in again] == sent
    assert [row.redelivered for row in again] == [True] * 120 + [False] * 80
    assert again[0].message_id == "000000"
    with pytest.raises(Exception, match="'nothing' does not exist"):
        browse(spark, uri, "nothing").collect()


def test_any_other_batch_read_is_refused_with_a_way_out(spark: SparkSession, uri: str) -> None:
    declare(uri)
    publish(uri, 3)
    with pytest.raises(Exception, match=r"availableNow.*mode=browse"):
        spark.read.format("rabbitmq").option("url", uri).option("queue", "q").load().collect()
    assert ready(uri) == 3


def test_a_stream_flows_through_to_another_queue_and_a_retried_batch_repeats_its_ids(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    declare(uri, "q", "copy")
    sent = publish(uri, 300, ids=False)

    def flow() -> None:
        frame = source(spark, uri, tmp_path).select("value", "properties")
        writer = frame.writeStream.format("rabbitmq").option("url", uri).option("routingKey", "copy")
        writer = writer.option("messageId", "auto").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    flow()
    first = browse(spark, uri, "copy").collect()
    assert sorted(bytes(row.value) for row in first) == sent
    assert all(row.properties.delivery_mode == 2 for row in first)
    for log in (tmp_path / "checkpoint" / "commits").iterdir():
        if log.name.lstrip(".").startswith("0"):
            log.unlink()  # as if the driver had died before it noted the batch as done
    flow()
    both = browse(spark, uri, "copy").collect()
    assert len(both) == 600
    assert sorted(row.message_id for row in both) == sorted(2 * [row.message_id for row in first])


def test_a_frame_is_published_with_its_columns(spark: SparkSession, uri: str) -> None:
    declare(uri, "a", "b")
    frame = spark.createDataFrame(
        [("one", "a", "m1", AT, {"h": "1"}, ("text/plain", 5)), ("two", "b", None, None, None, None)],
        "value string, routing_key string, message_id string, timestamp timestamp, "
        "headers map<string,string>, "
        "properties struct<content_type: string, priority: int>",
    )
    frame.write.format("rabbitmq").option("url", uri).mode("append").save()
    (row,) = browse(spark, uri, "a", includeHeaders="true").collect()
    assert (bytes(row.value), row.message_id, row.headers) == (b"one", "m1", {"h": "1"})
    assert row.timestamp.timestamp() == AT.timestamp()
    assert (row.properties.content_type, row.properties.priority, row.properties.delivery_mode) == (
        "text/plain",
        5,
        2,
    )
    (row,) = browse(spark, uri, "b").collect()
    assert (bytes(row.value), row.message_id) == (b"two", None)


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("value string, colour string", {"routingKey": "q"}, "colour"),
        ("text string", {"routingKey": "q"}, "text"),
        ("value int", {"routingKey": "q"}, "must be binary or string"),
        ("value string", {}, "routingKey"),
        ("value string", {"routingKey": "nowhere"}, "no queue for"),
        ("value string", {"routingKey": "q", "routinKey": "q"}, "did you mean routingKey"),
        ("value string", {"routingKey": "q", "exchange": "missing"}, "missing"),
    ],
)
def test_what_cannot_be_published_is_refused(
    spark: SparkSession, uri: str, columns: str, options: dict[str, str], says: str
) -> None:
    declare(uri)
    row = tuple(1 if part.endswith("int") else "x" for part in columns.split(","))
    frame = spark.createDataFrame([row], columns)
    writer = (
        frame.write.format("rabbitmq").option("url", uri).option("confirmTimeout", "5s").options(**options)
    )
    with pytest.raises(Exception, match=says):
        writer.mode("append").save()
    assert ready(uri) == 0


def test_overwriting_a_queue_is_refused(spark: SparkSession, uri: str) -> None:
    frame = spark.createDataFrame([("x",)], "value string")
    with pytest.raises(Exception, match="can only be appended"):
        frame.write.format("rabbitmq").option("url", uri).option("routingKey", "q").mode("overwrite").save()


def test_a_chosen_schema_leaves_columns_out_and_unknown_ones_are_refused(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    declare(uri)
    sent = publish(uri, 20)
    reader = spark.readStream.format("rabbitmq").schema("value binary, queue string").option("url", uri)
    reader = reader.option("queue", "q").option("stagingLocation", str(tmp_path / "staging"))
    assert to_parquet(reader.load(), tmp_path).awaitTermination(300)
    assert written(spark, tmp_path) == sent
    with pytest.raises(Exception, match="color"):
        to_parquet(reader.schema("color string").load(), tmp_path / "b").awaitTermination(300)


@pytest.mark.parametrize(("seconds", "least"), [(10, 0), pytest.param(30, 0.95, marks=pytest.mark.soak)])
def test_the_rate_limit_holds_over_a_running_query(
    spark: SparkSession, uri: str, tmp_path: Path, seconds: int, least: float
) -> None:
    rate = burst = 500
    declare(uri)
    publish(uri, rate * (seconds + 20), ids=False)
    frame = source(spark, uri, tmp_path, maxRatePerSecond=rate, burst=burst)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    query.awaitTermination(seconds + 10)
    query.stop()
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    begin = _seconds(batches[1])  # the first is slow, and leaves the bucket full
    total, after = 0, 0.0
    for each in batches[1:]:
        after = _seconds(each) - begin
        if after > seconds:
            break
        total += each["numInputRows"]
        planned = after + (each["durationMs"]["latestOffset"] + 1) / 1000
        assert total <= burst + rate * planned
    assert total >= least * (burst + rate * after)


def _seconds(progress: Any) -> float:
    return datetime.datetime.fromisoformat(progress["timestamp"]).timestamp()
