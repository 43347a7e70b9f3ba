"""Reading streams by the reader's own calls, without Spark."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from leash.amqp import Channel, Outgoing, Properties, topology
from leash.amqp import Publisher as AmqpPublisher
from leash.streams import Connection, Publisher, create_super_stream
from leash.streams.amqp10 import sections

from .kit import Query, bodies, fill, make, read_batch, values, wait_plan


def test_everything_comes_once_in_order_with_its_place(place: str) -> None:
    make(place, "s")
    sent = fill(place, "s", 0, 5000, pieces=7)
    query = Query(place, stream="s")
    rows = query.drain()
    assert values(rows) == sent
    assert [row["offset"] for row in rows] == list(range(5000))
    assert {row["stream"] for row in rows} == {"s"}
    assert rows[0]["timestamp"] <= rows[-1]["timestamp"]
    more = fill(place, "s", 5000, 10)
    assert values(query.batch()) == more


def test_a_planned_batch_is_the_same_whatever_happens_after(place: str) -> None:
    make(place, "s")
    fill(place, "s", 0, 3000, pieces=5)
    query = Query(place, stream="s", maxRecordsPerTrigger=1000, maxRecordsPerPartition=300)
    first = query.batch()
    fill(place, "s", 3000, 500)
    query.restart(maxRecordsPerTrigger=7, maxRecordsPerPartition=2)
    assert query.read() == first
    assert values(first) == bodies(0, 1000)
    assert len(query.partitions()) == 4
    assert values(query.batch()) == bodies(1000, 7)


def test_ordered_is_one_task_for_each_stream(place: str) -> None:
    make(place, "a", "b")
    fill(place, "a", 0, 100_000)
    fill(place, "b", 0, 10)
    query = Query(place, streams="a,b", ordered="true", maxRecordsPerPartition=10, minPartitions=8)
    assert query.plan()
    assert sorted(p.piece[:3] for p in query.partitions()) == [("a", 0, 100_000), ("b", 0, 10)]


def test_least_partitions_cut_a_stream_for_all_executors(place: str) -> None:
    make(place, "s")
    sent = fill(place, "s", 0, 10_001)
    query = Query(place, stream="s", minPartitions=4)
    rows = query.batch()
    assert len(query.partitions()) == 4
    assert values(rows) == sent


def test_quanta_share_every_batch_within_one_round(place: str) -> None:
    quanta = {"gold": 10, "silver": 3, "free": 1}
    make(place, *quanta)
    for name in quanta:
        fill(place, name, 0, 3000, pieces=3)
    query = Query(place, streams="gold:10,silver:3,free:1", maxRecordsPerTrigger=97)
    came: Counter[str] = Counter()
    for _ in range(20):
        came.update(row["stream"] for row in query.batch())
        rounds = [came[name] / quantum for name, quantum in quanta.items()]
        assert max(rounds) - min(rounds) <= 1
    assert came.total() == 20 * 97


def test_a_rate_is_never_exceeded_across_restarts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**18
    monkeypatch.setattr("leash.spark.streams.driver.forward_clock", lambda: lambda: now)
    make(place, "s")
    fill(place, "s", 0, 5000)
    query = Query(place, stream="s", maxRatePerSecond=100, burst=50)
    came = 0
    for step in range(40):
        now += 130_000_000
        if step % 7 == 6:
            query.restart()
        if wait_plan(query, 0.2):
            came += len(query.read())
        assert came <= 50 + 100 * (step + 1) * 0.13
    assert came >= 50 + 100 * 39 * 0.13 - 50


def test_a_lane_of_its_own_rate_and_tier(place: str) -> None:
    make(place, "a", "b")
    fill(place, "a", 0, 500)
    fill(place, "b", 0, 500)
    told = '{"a": {"tier": 0, "rate": 1, "burst": 20}, "b": {"tier": 1}}'
    rows = Query(place, streams=told, maxRecordsPerTrigger=100).batch()
    assert Counter(row["stream"] for row in rows) == {"a": 20, "b": 80}


def test_bytes_of_a_batch(place: str) -> None:
    make(place, "s")
    with Publisher(place, "s") as publisher:
        publisher.publish([bytes(1000)] * 1000)
    rows = Query(place, stream="s", maxBytesPerTrigger="100k").batch()
    assert 90 <= len(rows) <= 105


def test_a_least_number_of_records_is_waited_for(place: str) -> None:
    make(place, "s")
    fill(place, "s", 0, 10)
    query = Query(place, stream="s", minRecordsPerTrigger=20, maxTriggerDelay="1h")
    assert not wait_plan(query, 0.5)
    fill(place, "s", 10, 10)
    assert len(query.batch()) == 20


def test_available_now_ends_with_what_was_there(place: str) -> None:
    make(place, "s", "empty")
    sent = fill(place, "s", 0, 1000)
    query = Query(place, streams="s,empty", maxRecordsPerTrigger=300, maxRatePerSecond=10_000, burst=200)
    query.reader.prepareForTriggerAvailableNow()
    fill(place, "s", 1000, 500)
    rows = []
    while query.plan():  # returning nothing ends the query, so it never does before the end
        rows += query.read()
    assert values(rows) == sent


def test_progress_tells_the_lag(place: str) -> None:
    make(place, "s")
    fill(place, "s", 0, 1000)
    query = Query(place, stream="s", maxRecordsPerTrigger=300)
    query.batch()
    query.batch()
    told = query.reader.reportLatestOffset()
    assert told is not None
    assert told["batch"] == 1
    assert told["streams"] == {"s": {"granted": 300, "share": 1.0}}
    assert told["ready"] == {"s": 700}
    assert told["lag"] == {"s": 400}


def test_where_a_query_begins(place: str) -> None:
    make(place, "a", "b")
    fill(place, "a", 0, 100)
    fill(place, "b", 0, 100)
    query = Query(place, streams="a,b", startingOffsets="latest")
    fill(place, "a", 100, 1)
    assert values(query.drain()) == bodies(100, 1)
    query = Query(place, streams="a,b", startingOffsets='{"a": 90, "b": "latest"}')
    assert values(query.drain()) == bodies(90, 11)


def test_a_time_to_begin_with(place: str) -> None:
    make(place, "s")
    fill(place, "s", 0, 100)
    first = read_batch(place, stream="s")[-1]["timestamp"]
    time.sleep(0.01)  # chunks have milliseconds
    fill(place, "s", 100, 50)
    later = read_batch(place, stream="s", startingOffsets='{"s": 100}')
    cut, last = later[0]["timestamp"], later[-1]["timestamp"]
    assert cut > first
    assert values(read_batch(place, stream="s", startingTimestamp=cut.isoformat())) == bodies(100, 50)
    millis = round(last.timestamp() * 1000)
    assert values(read_batch(place, stream="s", startingTimestamp=millis + 1)) == []
    assert values(read_batch(place, stream="s", startingTimestamp=0)) == bodies(0, 150)


def test_a_batch_read_between_offsets(place: str) -> None:
    make(place, "s")
    fill(place, "s", 0, 1000, pieces=10)
    told = {"startingOffsets": '{"s": 123}', "endingOffsets": '{"s": 877}'}
    rows = read_batch(place, stream="s", maxRecordsPerPartition=100, **told)
    assert values(rows) == bodies(123, 754)


def test_filters_leave_chunks_out(place: str, link: Connection) -> None:
    if link.version < (3, 13):
        pytest.skip("filters need RabbitMQ 3.13")
    make(place, "s")
    with Publisher(place, "s") as publisher:
        for region in ("emea", "apac", None, "emea"):
            mark = [f"{region}-{n}".encode() for n in range(50)]
            publisher.publish(mark, filters=[region] * 50)
    emea = values(read_batch(place, stream="s", filterValues="emea"))
    assert [value for value in emea if value.startswith(b"emea")] == [
        b"emea-%d" % (n % 50) for n in range(100)
    ]
    assert not any(value.startswith(b"apac") for value in emea)
    also = values(read_batch(place, stream="s", filterValues="apac", matchUnfiltered="true"))
    assert Counter(value.split(b"-")[0] for value in also) == {b"apac": 50, b"None": 50}


def test_what_amqp_0_9_1_has_written(place: str, channel: Channel) -> None:
    topology.declare_queue(channel, "s", kind="stream")
    with AmqpPublisher(channel.connection) as publisher:
        publisher.publish(
            Outgoing(
                b"%d" % n, "", "s", Properties(message_id=f"m{n}", content_type="text/x", headers={"n": n})
            )
            for n in range(500)
        )
    rows = read_batch(
        place, stream="s", includeProperties="true", includeHeaders="true", includeAnnotations="true"
    )
    assert values(rows) == [b"%d" % n for n in range(500)]
    assert [row["message_id"] for row in rows] == [f"m{n}" for n in range(500)]
    assert rows[7]["properties"]["content_type"] == "text/x"
    assert ("n", "7") in rows[7]["headers"]
    assert rows[7]["annotations"]


def test_columns_on_demand(place: str) -> None:
    make(place, "s")
    with Publisher(place, "s") as publisher:
        some = sections({"message_id": "m", "group_sequence": 3}, {"a": 1, "b": None}, {"x-opt": True})
        publisher.publish([b"v", b"w"], sections=some)
        publisher.publish([b"bare"])
    rows = read_batch(
        place, stream="s", includeProperties="true", includeHeaders="true", includeAnnotations="true"
    )
    assert rows[1]["message_id"] == "m"
    assert rows[1]["properties"]["group_sequence"] == 3
    assert dict(rows[1]["headers"]) == {"a": "1", "b": None}
    assert dict(rows[1]["annotations"]) == {"x-opt": "true"}
    assert (rows[2]["value"], rows[2]["message_id"], rows[2]["headers"]) == (b"bare", None, None)


def test_a_super_stream_and_a_partition_that_is_added(
    place: str, uri: str, link: Connection, channel: Channel
) -> None:
    create_super_stream(link, "orders", 2, amqp=uri)
    fill(place, "orders-0", 0, 100)
    fill(place, "orders-1", 100, 100)
    query = Query(place, superStream="orders")
    assert sorted(values(query.drain())) == bodies(0, 200)
    planned = query.log[-1]
    make(place, "orders-2")
    fill(place, "orders-2", 200, 100)
    topology.bind_queue(channel, "orders-2", "orders", "2", {"x-stream-partition-order": 2})
    query.restart()
    assert query.log[-1] == planned
    assert sorted(values(query.read())) != []
    assert values(query.batch()) == bodies(200, 100)


def test_large_messages(place: str) -> None:
    make(place, "s")
    with Publisher(place, "s") as publisher:
        publisher.publish([bytes([n]) * 1_000_000 for n in range(20)])
    rows = Query(place, stream="s", maxRecordsPerPartition=7).batch()
    assert [(row["value"][0], len(row["value"])) for row in rows] == [(n, 1_000_000) for n in range(20)]
