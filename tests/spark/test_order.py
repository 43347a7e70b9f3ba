"""`ordered` keeps each queue's order, whatever overlaps or dies, and for repeats says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leash.amqp import connect
from leash.amqp.uri import parse
from leash.errors import QueueHeld
from leash.lab.proxy import Proxy

from . import victim
from .harness import Query, Row, declare, options, publish, unflagged, values, wait_plan

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


def in_order(rows: list[Row], sent: list[bytes]) -> None:
    """Everything is there, at most once without its flag, and in order but for repeats."""
    assert list(dict.fromkeys(values(rows))) == sent
    assert len(unflagged(rows)) == len(set(unflagged(rows)))


def declare_ordered(uri: str, kind: str) -> None:
    declare(uri, kind=kind, **({"single_active_consumer": True} if kind == "quorum" else {}))


@KINDS
def test_attempts_that_overlap_and_die_at_any_moment_keep_the_order(
    uri: str, staging: Path, kind: str
) -> None:
    declare_ordered(uri, kind)
    sent = publish(uri, 400)
    query = Query(options(uri, staging, ordered="true", maxRecordsPerTrigger=100))
    rows: list[Row] = []
    for seed in range(4):
        assert wait_plan(query, 10)
        victim.crowd(query.given, query.partitions()[0], 8, seed)
        rows += query.read()
    in_order(rows + query.drain(), sent)


@KINDS
def test_batches_of_other_sizes_after_failures_keep_the_order(uri: str, staging: Path, kind: str) -> None:
    declare_ordered(uri, kind)
    sent = publish(uri, 300)
    query = Query(options(uri, staging, ordered="true", maxRecordsPerTrigger=200))
    assert query.plan()
    victim.die_often(query.given, query.partitions()[0], "before-seal", 2)
    query.reader.stop()
    rows: list[Row] = []
    query = Query(options(uri, staging.with_name("other"), ordered="true"))
    for most in (30, 70, 50, 10, 100, 40):
        query.restart(maxRecordsPerTrigger=most)
        assert wait_plan(query, 10)
        victim.die_often(query.given, query.partitions()[0], "before-seal", 2)
        rows += query.read()
    in_order(rows + query.drain(), sent)


def test_more_came_back_than_one_prefetch_window_holds(uri: str, staging: Path) -> None:
    declare_ordered(uri, "quorum")
    sent = publish(uri, 65_600, ids=False)
    query = Query(options(uri, staging, ordered="true"))
    assert query.plan()
    victim.die_often(query.given, query.partitions()[0], "before-seal", 1)
    query.reader.stop()
    query = Query(options(uri, staging.with_name("other"), ordered="true"))
    assert wait_plan(query, 10)
    victim.die_often(query.given, query.partitions()[0], "before-seal", 2)
    in_order(query.read() + query.drain(), sent)


BIG = 8 << 20
LINK = 10 << 20  # bytes a second


@KINDS
def test_large_messages_over_a_slow_link_come_in_every_batch(uri: str, staging: Path, kind: str) -> None:
    """A message takes much longer than `pollTimeout`, while its queue says that it has none left."""
    declare_ordered(uri, kind)
    sent = publish(uri, 6, size=BIG)
    place = parse(uri)
    with Proxy(*place.hosts[0], rate=LINK) as proxy:
        near = replace(place, hosts=(("127.0.0.1", proxy.port),)).reveal()
        query = Query(options(near, staging, ordered="true", maxRecordsPerTrigger=2, pollTimeout="50ms"))
        for number in range(3):
            assert wait_plan(query, 10)
            rows = query.read()
            assert [row["value"] == body for row, body in zip(rows, sent[2 * number :], strict=False)] == [
                True,
                True,
            ]
            assert not any(row["redelivered"] for row in rows)
        query.reader.stop()


def test_a_queue_that_another_consumer_holds_is_not_taken_for_drained(
    uri: str, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes and nothing is ready, but the messages are all there: an error, and no empty batch."""
    declare_ordered(uri, "quorum")
    sent = publish(uri, 10)
    query = Query(options(uri, staging, ordered="true"))
    assert query.plan()
    monkeypatch.setattr("leash.spark.task.ordered.DEADLINE", 1.0)
    with connect(uri) as link, link.channel() as channel:
        channel.consume("q")
        assert channel.deliveries(60) is not None
        with pytest.raises(QueueHeld, match="'q' was in use"):
            query.read()
    rows = query.read()
    assert values(rows) == sent
