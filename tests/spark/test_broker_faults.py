"""The source while the broker itself goes away: restarts, power cuts, alarms."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from leash.broker import Broker
from leash.errors import PublishBlocked
from leash.spark import sink
from leash.spark.settings import sink_settings
from leash.spark.source import SplitPartition
from tests.admin import memory_alarm

from .harness import Query, declare, options, publish, ready, values, wait_plan

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


@pytest.mark.parametrize("dedup", ["none", "messageId"])
def test_a_power_cut_right_after_an_ack_brings_copies_that_are_flagged_or_dropped(
    broker: Broker, uri: str, tmp_path: Path, dedup: str
) -> None:
    _declare_for_good(uri)
    sent = publish(uri, 2000)
    query = Query(options(uri, tmp_path, maxRecordsPerTrigger=1000, deduplication=dedup))
    rows = query.batch() or []
    assert len(rows) == 1000
    broker.kill()
    broker.start()
    _until_planned(query)
    rows += query.read()
    rows += query.drain()
    assert sorted(set(values(rows))) == sent
    plain = [row["value"] for row in rows if not row["redelivered"]]
    assert len(plain) == len(set(plain))
    if dedup == "messageId":
        assert sorted(values(rows)) == sent
    assert ready(uri, expect=0) == 0


def test_a_batch_whose_acks_may_have_died_with_the_broker_is_remembered_for_the_whole_window(
    broker: Broker, uri: str, tmp_path: Path
) -> None:
    _declare_for_good(uri)
    publish(uri, 20)
    query = Query(options(uri, tmp_path, maxRecordsPerTrigger=10, deduplication="messageId"))
    assert len(query.batch() or []) == 10
    broker.kill()
    broker.start()
    _until_planned(query)
    assert [seen.kept for seen in query.last.seen or ()] == [True]


@KINDS
def test_a_broker_that_restarts_while_a_task_reads_is_waited_for(
    broker: Broker, uri: str, tmp_path: Path, kind: str
) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 500)
    query = Query(options(uri, tmp_path, pollTimeout="3s", maxRecordsPerTrigger=1000))
    assert query.plan()
    taken = _more_than_there_is(query)
    restart = threading.Timer(1.0, broker.restart)
    restart.start()
    rows = query.read(taken)  # holds all 500 and waits for more when the broker goes
    restart.join()
    assert sorted(values(rows)) == sent
    rows += query.drain()
    assert sorted(set(values(rows))) == sent
    plain = [row["value"] for row in rows if not row["redelivered"]]
    assert len(plain) == len(set(plain))


def test_a_memory_alarm_does_not_stop_the_source(broker: Broker, uri: str, tmp_path: Path) -> None:
    declare(uri)
    sent = publish(uri, 500)
    with memory_alarm(broker):
        assert sorted(values(Query(options(uri, tmp_path)).drain())) == sent


def test_a_sink_waits_for_an_alarm_to_end_and_then_says_what_holds_it_up(broker: Broker, uri: str) -> None:
    declare(uri)
    settings = sink_settings({"url": uri, "routingKey": "q", "confirmTimeout": "2s"})
    batch = pa.record_batch({"value": [b"x"] * 10})
    with memory_alarm(broker):
        started = time.monotonic()
        with pytest.raises(PublishBlocked, match="blocks publishers"):
            sink.publish(settings, iter([batch]), "job-0")
        assert time.monotonic() - started >= 2
    assert sink.publish(settings, iter([batch]), "job-0").rows == 10


def _declare_for_good(uri: str) -> None:
    """The broker writes a new queue's own record with a delay; killed at once, it forgets the queue."""
    declare(uri)
    time.sleep(3)


def _until_planned(query: Query) -> None:
    deadline = time.monotonic() + 120
    while not wait_plan(query, 1.0):
        assert time.monotonic() < deadline


def _more_than_there_is(query: Query) -> list[SplitPartition]:
    return [SplitPartition(replace(query.partitions()[0].split, grant=1000))]
