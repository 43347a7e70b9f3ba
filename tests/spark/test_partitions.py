"""Partitions on Spark: all queues, each in order, through resizes and restarts."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leash.amqp import Outgoing, Properties, Publisher, connect, topology
from leash.broker import Broker
from leash.errors import ConfigError, TopologyError
from leash.partitions import Partitions, gates, layout_store
from leash.spark.settings import sink_settings, source_settings
from tests.admin import memory_alarm
from tests.consumer.kit import until
from tests.partitions.helpers import publish, random_keys, weights

from . import app
from .harness import Query, Row, ready, wait_plan
from .output import batches
from .workers import python_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS = 24
KEYS = 100
PERSISTENT = Properties(delivery_mode=2)


def given(uri: str, staging: Path, **more: object) -> dict[str, str]:
    told = {"url": uri, "stagingLocation": str(staging), "pollTimeout": "100ms", "partitions": "orders"}
    return told | {name: str(value) for name, value in more.items()}


def numbers(rows: list[Row]) -> list[int]:
    return [int(row["value"]) for row in rows]


def check_order(batches: list[list[Row]], sent: int) -> None:
    """Nothing lost; for every key in order, from batch to batch and within; copies are flagged."""
    latest: dict[str, tuple[int, int, str]] = {}
    seen: set[int] = set()
    for at, batch in enumerate(batches):
        for row in batch:
            key, number = row["routing_key"], int(row["value"])
            seen.add(number)
            last, where, queue = latest.get(key, (-1, -1, ""))
            if number <= last:
                assert row["redelivered"], f"{key}: {number} after {last}"
                continue
            # Two queues' splits are read side by side: a key that moved must be in another batch.
            assert queue in ("", row["queue"]) or where < at, f"{key} in two queues in batch {at}"
            latest[key] = (number, at, row["queue"])
    assert seen == set(range(sent))


def test_all_queues_are_read_and_a_resize_brings_new_ones(uri: str, tmp_path: Path) -> None:
    Partitions("orders", weights(2), slots=SLOTS).declare(uri)
    query = Query(given(uri, tmp_path))
    publish(uri, "orders", random_keys(300))
    assert sorted(numbers(query.drain())) == list(range(300))
    Partitions("orders", weights(3), slots=SLOTS).apply(uri, settle=0)
    publish(uri, "orders", random_keys(300))
    time.sleep(1.1)  # the driver looks about every second
    rows: list[Row] = []
    while len(rows) < 300:
        rows += query.drain()
    assert {row["queue"] for row in rows} == {"orders.0", "orders.1", "orders.2"}
    assert sorted(numbers(rows)) == list(range(300))


def test_a_split_ends_at_a_gate_and_the_queue_waits_for_a_later_batch(uri: str, tmp_path: Path) -> None:
    Partitions("orders", {"old": 1, "new": 1}, slots=2).declare(uri)
    query = Query(given(uri, tmp_path))
    with connect(uri) as connection, Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"1", "", "old"), gates.marker("orders", 1, "old")])
        publisher.publish([Outgoing(b"2", "", "new"), gates.gate("orders", 1, ("old",), "new")])
        publisher.publish([Outgoing(b"3", "", "new")])
        assert wait_plan(query)
        new = [part for part in query.partitions() if part.split.queue == "new"]
        old = [part for part in query.partitions() if part.split.queue == "old"]
        assert numbers(query.read(old)) == [1]  # passes the marker, but for this batch that does not count
        assert numbers(query.read(new)) == [2]
        assert (1, "old") in layout_store.recall(connection, "orders").passed
    assert ready(uri, "new", expect=2) == 2
    assert wait_plan(query)
    assert numbers(query.read()) == [3]
    assert ready(uri, "new", expect=0) == 0


def test_a_queue_behind_a_closed_gate_is_not_read_again_and_again(uri: str, tmp_path: Path) -> None:
    Partitions("orders", {"old": 1, "new": 1}, slots=2).declare(uri)
    query = Query(given(uri, tmp_path))
    with connect(uri) as connection, Publisher(connection) as publisher:
        publisher.publish([gates.gate("orders", 1, ("old",), "new"), Outgoing(b"1", "", "new")])
        assert wait_plan(query)
        assert query.read() == []
        assert not wait_plan(query, 0.5)
        layout_store.passed(publisher, "orders", 1, "old")
    assert wait_plan(query)
    assert numbers(query.read()) == [1]


def test_a_marker_is_passed_only_when_its_split_is_sealed(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise OSError("no seal today")

    Partitions("orders", {"old": 1, "new": 1}, slots=2).declare(uri)
    query = Query(given(uri, tmp_path))
    with connect(uri) as connection, Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"1", "", "old"), gates.marker("orders", 1, "old")])
        assert wait_plan(query)
        with monkeypatch.context() as broken:
            broken.setattr("leash.spark.staging.seals.place_seal", fail)
            with pytest.raises(OSError, match="no seal today"):
                query.read()
        assert layout_store.recall(connection, "orders").passed == {}
        assert numbers(query.read()) == [1]
        assert (1, "old") in layout_store.recall(connection, "orders").passed


@pytest.mark.spark
def test_a_marker_that_an_alarm_keeps_from_being_passed_leaves_nobody_behind_and_is_passed_later(
    broker: Broker, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leash.spark.task.partitioned._TIMEOUT", 1.0)
    Partitions("orders", {"old": 1, "new": 1}, slots=2).declare(uri)
    query = Query(given(uri, tmp_path))
    with connect(uri) as connection, Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"1", "", "old"), gates.marker("orders", 1, "old")])
        publisher.publish([Outgoing(b"2", "", "old")])
    assert wait_plan(query)
    with memory_alarm(broker):
        rows = query.read()
        assert numbers(rows) == [1, 2]
        with connect(uri) as connection, connection.channel() as channel:
            until(lambda: topology.state(channel, "old").consumers == 0)
            assert layout_store.recall(connection, "orders").passed == {}
    assert ready(uri, "old", expect=2) == 2  # the marker and what came after it; what came before is acked
    assert wait_plan(query, 10)
    again = query.read()
    assert [(int(row["value"]), row["redelivered"]) for row in again] == [(2, True)]
    with connect(uri) as connection:
        assert (1, "old") in layout_store.recall(connection, "orders").passed


def test_through_two_resizes_and_two_kills_every_key_stays_in_order(uri: str, tmp_path: Path) -> None:
    """A real Spark program: a task worker dies during one resize, driver and all during the other."""
    three, four = (Partitions("orders", weights(count), slots=SLOTS) for count in (3, 4))
    three.declare(uri)
    count, sent = 20_000, [0]

    def source() -> None:
        with connect(uri) as connection, Publisher(connection) as publisher:
            for first in range(0, count, 100):
                publisher.publish(
                    Outgoing(b"%d" % n, "orders", f"customer-{n * 7919 % KEYS}", PERSISTENT, mandatory=True)
                    for n in range(first, first + 100)
                )
                sent[0] = first + 100
                time.sleep(0.1)

    def resize() -> None:
        for after, partitions in ((4000, four), (12_000, three)):
            until(lambda after=after: sent[0] >= after)  # type: ignore[misc]
            partitions.apply(uri, settle=0.5)

    def all_there() -> bool:
        time.sleep(0.5)
        return len({row["value"] for rows in batches(out) for row in rows}) >= count

    told = given(uri, tmp_path / "staging", maxRecordsPerTrigger=1500)
    program = app.start(told, tmp_path)
    threads = [threading.Thread(target=source), threading.Thread(target=resize)]
    out = tmp_path / "out"
    try:
        until(lambda: (out / "_spark_metadata").is_dir())
        for thread in threads:
            thread.start()
        until(lambda: sent[0] > 4100)
        until(lambda: bool(python_workers(program.pid)))
        os.kill(python_workers(program.pid)[0], signal.SIGKILL)
        until(lambda: sent[0] > 12_100)
        app.kill(program)
        program = app.start(told, tmp_path)
        for thread in threads:
            thread.join()
        until(all_there)
    finally:
        if program.poll() is None:
            app.kill(program)
    check_order(batches(out), count)


def test_options_that_contradict_each_other_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set partitions, or queue, or queues"):
        source_settings(given(uri, tmp_path, queue="q"))
    with pytest.raises(ConfigError, match="partitions or exchange"):
        sink_settings({"url": uri, "partitions": "orders", "exchange": "e"})
    assert sink_settings({"url": uri, "partitions": "orders"}).exchange == "orders"
    query = Query(given(uri, tmp_path))
    with pytest.raises(TopologyError, match="partitions 'orders' do not exist"):
        query.plan()


def test_spark_itself_publishes_to_partitions_and_reads_them_back(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    import leash.spark.source

    spark.dataSource.register(leash.spark.source.RabbitMQ)
    layout = Partitions("orders", weights(3), slots=SLOTS).declare(uri)
    keys = random_keys(500)
    frame = spark.createDataFrame(
        [(str(i), key) for i, key in enumerate(keys)], "value string, routing_key string"
    )
    frame.write.format("rabbitmq").option("url", uri).option("partitions", "orders").mode("append").save()
    stream = spark.readStream.format("rabbitmq").options(**given(uri, tmp_path / "staging")).load()
    query = (
        stream.selectExpr("int(string(value)) AS number", "queue")
        .writeStream.format("memory")
        .queryName("partitioned")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    found = {row["number"]: row["queue"] for row in spark.table("partitioned").collect()}
    assert [found[i] for i in range(500)] == list(layout.route_many(keys))
