"""The source against a real broker, driven as Spark drives it: batches, shares, columns, sizes."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from leash.amqp import Channel, Deliveries, Outgoing, Properties, Publisher, QueueState, connect, topology
from leash.errors import LeashError
from leash.spark.task import attempt

from .harness import (
    Query,
    Row,
    declare,
    options,
    publish,
    ready,
    values,
    wait_plan,
)


def test_available_now_ends_while_another_consumer_takes_from_the_same_queue(uri: str, staging: Path) -> None:
    declare(uri)
    published = publish(uri, 3000)
    query = Query(options(uri, staging, maxRecordsPerTrigger=100))
    query.reader.prepareForTriggerAvailableNow()
    theirs: list[bytes] = []
    rows: list[Row] = []
    with connect(uri) as link, link.channel() as channel:

        def take(batch: Deliveries) -> None:
            theirs.extend(batch.bodies)
            channel.ack(batch.tags[-1], multiple=True)

        channel.qos(5)
        channel.consume("q", deliver=take)
        while query.plan():
            rows += query.read()
            assert len(query.log) < 60
    ours = values(rows)
    assert ours
    assert theirs
    assert sorted(ours + theirs) == published  # between them every message, and none twice
    assert ready(uri) == 0


def test_available_now_ends_after_a_purge_and_leaves_what_came_later(uri: str, staging: Path) -> None:
    declare(uri, "q", "purged")
    publish(uri, 100)
    publish(uri, 100, "purged")
    query = Query(options(uri, staging, queues="q,purged", maxRecordsPerTrigger=40))
    query.reader.prepareForTriggerAvailableNow()
    publish(uri, 30, first=100)  # after the start: not this time
    with connect(uri) as link, link.channel() as channel:
        topology.purge_queue(channel, "purged")
        rows: list[dict[str, object]] = []
        while query.plan():
            rows += query.read()
            assert len(query.log) < 20
    assert len(rows) == 100
    assert ready(uri) == 30


def test_available_now_waits_for_tokens_instead_of_ending(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 60)
    query = Query(options(uri, staging, maxRatePerSecond=40, burst=20, minRecordsPerTrigger=50))
    query.reader.prepareForTriggerAvailableNow()
    started = time.monotonic()
    rows: list[dict[str, object]] = []
    while query.plan():
        rows += query.read()
    assert sorted(values(rows)) == sent
    assert time.monotonic() - started >= 0.95


@pytest.mark.parametrize("lag", [0, 3600, -3600], ids=["same", "behind", "ahead"])
def test_available_now_finishes_a_batch_that_a_dead_driver_began(
    uri: str, staging: Path, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reads no more than that, whatever the clocks of executors say."""
    monkeypatch.setattr(attempt, "time", SimpleNamespace(time_ns=lambda: time.time_ns() - lag * 10**9))
    declare(uri)
    sent = publish(uri, 100)
    query = Query(options(uri, staging, maxRecordsPerTrigger=40, maxRecordsPerPartition=20))
    assert query.plan()
    query.read(query.partitions()[:1])
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    rows = query.read()
    late = publish(uri, 10, first=100)
    while query.plan():
        rows += query.read()
        assert len(query.log) < 20
    assert sorted(values(rows)) == sent
    assert ready(uri) == len(late)


def test_ten_backlogged_queues_stay_within_one_round_after_every_batch(uri: str, staging: Path) -> None:
    quanta = {f"q{i:02}": 4 * i for i in range(1, 11)}
    declare(uri, *quanta)
    for name in quanta:
        publish(uri, 300, name)
    queues = ",".join(f"{name}:{quantum}" for name, quantum in quanta.items())
    query = Query(options(uri, staging, queues=queues, maxRecordsPerTrigger=333))
    got = dict.fromkeys(quanta, 0)
    for _ in range(4):
        assert wait_plan(query)
        for row in query.read():
            got[row["queue"]] += 1
        rounds = [got[name] / quantum for name, quantum in quanta.items()]
        assert max(rounds) - min(rounds) <= 1


def test_planning_on_without_commits_is_refused_as_async_progress_tracking(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 30)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10))
    offset = query.first
    for _ in range(2):
        offset = query.reader.latestOffset(offset, query.reader.getDefaultReadLimit())
    with pytest.raises(LeashError, match="asyncProgressTrackingEnabled"):
        query.reader.latestOffset(offset, query.reader.getDefaultReadLimit())


def test_properties_and_headers_become_columns(uri: str, staging: Path) -> None:
    import datetime

    declare(uri)
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    with connect(uri) as link, Publisher(link) as publisher:
        full = Properties(
            message_id="m1",
            timestamp=at,
            content_type="text/plain",
            priority=3,
            delivery_mode=2,
            message_type="t",
            headers={"text": "x", "number": 7, "deep": {"a": [1, 2]}},
        )
        publisher.publish([Outgoing(b"b", "", "q", full), Outgoing(b"", "", "q")])
    row, empty = Query(options(uri, staging, includeHeaders="true")).batch() or []
    assert (row["value"], row["message_id"], row["timestamp"]) == (b"b", "m1", at)
    assert row["properties"]["content_type"] == "text/plain"
    assert row["properties"]["type"] == "t"
    assert row["properties"]["priority"] == 3
    assert dict(row["headers"]) == {"text": "x", "number": "7", "deep": '{"a": [1, 2]}'}
    assert (empty["value"], empty["message_id"], empty["headers"]) == (b"", None, None)


def test_a_batch_of_200000_is_exact(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 200_000, ids=False)
    query = Query(options(uri, staging, maxRecordsPerTrigger=200_000, maxRecordsPerPartition=65_535))
    assert query.plan()
    assert [grant for _, grant in query.last.splits] == [50_000] * 4
    seen: set[bytes] = set()
    for partition in query.partitions():
        for batch in query.reader.read(partition):
            seen.update(batch.column("value").to_pylist())
    assert len(seen) == 200_000


def test_a_split_of_65535_is_exact_and_in_order(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 65_600, ids=False)
    query = Query(options(uri, staging, ordered="true"))
    assert query.plan()
    assert query.last.splits == ((0, 65_535),)
    (partition,) = query.partitions()
    batches = list(query.reader.read(partition))
    assert [body for batch in batches for body in batch.column("value").to_pylist()] == sent[:65_535]
    assert ready(uri) == 65


def test_big_messages_are_taken_in_rounds_that_bound_the_memory(uri: str, staging: Path) -> None:
    import resource

    declare(uri)
    publish(uri, 400, size=1 << 20)
    query = Query(options(uri, staging, maxRecordsPerPartition=400))
    assert query.plan()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (partition,) = query.partitions()
    count = sum(len(batch) for batch in query.reader.read(partition))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert count == 400
    assert grown < 300 * 1024  # KiB; the messages are 400 MiB


def test_an_idle_query_asks_the_broker_only_now_and_then(
    uri: str, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(uri)
    query = Query(options(uri, staging))
    assert not query.plan()
    asked: list[str] = []
    real = topology.state

    def state(channel: Channel, name: str) -> QueueState:
        asked.append(name)
        return real(channel, name)

    monkeypatch.setattr(topology, "state", state)
    for every, most in ((3600.0, 1), (0.0, 50)):
        monkeypatch.setattr("leash.spark.driver.driver._PROBE_EVERY", every)
        asked.clear()
        for _ in range(50):
            assert not query.plan()
        assert len(asked) <= most
    assert asked


def test_drained_queues_do_not_hold_a_batch_up_beyond_the_poll_timeout(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 10)
    query = Query(options(uri, staging, pollTimeout="200ms"))
    assert query.plan()
    with connect(uri) as link, link.channel() as channel:
        topology.purge_queue(channel, "q")
    started = time.monotonic()
    assert query.read() == []
    assert 0.2 <= time.monotonic() - started < 100  # not until the deadline
