"""Quorum queues drop what came back too often: not what Spark's tasks gave back, however often they fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from leash.amqp import Outgoing, Properties, Publisher, connect, topology
from leash.amqp.delivery_limit import declare_limbo, limbo_queue
from leash.broker import Broker
from leash.errors import ConfigError, StagingError
from tests.admin import set_policy

from . import victim
from .harness import Query, Row, declare, delete, options, publish, ready, unflagged, values, wait_plan

COUNT = 400
ORDERED = pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])


def _full(_: object) -> str:
    raise OSError(28, "No space left on device")


def _given(
    uri: str, staging: Path, ordered: bool, delivery_limit: int | None = None, **more: object
) -> dict[str, str]:
    arguments: dict[str, object] = {} if delivery_limit is None else {"delivery_limit": delivery_limit}
    if ordered:
        arguments["single_active_consumer"] = True
    declare(uri, kind="quorum", **arguments)
    return options(uri, staging, ordered=str(ordered).lower(), **more)


def _fail(query: Query, times: int) -> None:
    """So many attempts end at a full disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leash.spark.staging.chunks.ChunkWriter.finish", _full)
        for _ in range(times):
            with pytest.raises(StagingError, match="No space left"):
                query.read()


def _check(rows: list[Row], sent: list[bytes], ordered: bool) -> None:
    """Everything is there, at most once without its flag, and in order but for repeats."""
    assert sorted(set(values(rows))) == sent
    assert len(unflagged(rows)) == len(set(unflagged(rows)))
    if ordered:
        assert list(dict.fromkeys(values(rows))) == sent


@ORDERED
def test_a_disk_that_is_full_for_forty_attempts_loses_nothing(uri: str, staging: Path, ordered: bool) -> None:
    query = Query(_given(uri, staging, ordered))
    sent = publish(uri, COUNT)
    assert query.plan()
    _fail(query, 40)
    rows = query.read()
    _check(rows + query.drain(), sent, ordered)
    assert len(rows) == COUNT
    assert ready(uri, expect=0) == 0


@ORDERED
def test_a_real_disk_that_fills_up_in_the_middle_of_forty_attempts_loses_nothing(
    uri: str, disk: Path, ordered: bool
) -> None:
    """There is still credit for more messages when the first of them are given back."""
    query = Query(_given(uri, disk, ordered))
    sent = [b"%06d" % number + os.urandom(50_000) for number in range(COUNT // 4)]  # 5 MB do not fit
    with connect(uri) as link, Publisher(link) as publisher:
        publisher.publish(Outgoing(body, "", "q", Properties(delivery_mode=2)) for body in sent)
    assert query.plan()
    for _ in range(40):
        with pytest.raises(StagingError, match="No space left"):
            query.read()
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    _check(query.read() + query.drain(), sent, ordered)
    assert ready(uri, expect=0) == 0


@ORDERED
def test_forty_killed_tasks_lose_nothing(uri: str, staging: Path, ordered: bool) -> None:
    query = Query(_given(uri, staging, ordered))
    sent = publish(uri, COUNT)
    assert query.plan()
    victim.die_often(query.given, query.partitions()[0], "before-seal", 40)
    _check(query.read() + query.drain(), sent, ordered)


@ORDERED
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_low_limit_is_kept_in_mind(uri: str, staging: Path, ordered: bool, limit: int) -> None:
    query = Query(_given(uri, staging, ordered, delivery_limit=limit))
    sent = publish(uri, 50)
    assert query.plan()
    _fail(query, 3 * limit + 3)
    _check(query.read() + query.drain(), sent, ordered)


@ORDERED
@pytest.mark.parametrize("size", [10, 30])
def test_a_new_query_rescues_what_another_one_left_in_danger(
    uri: str, staging: Path, ordered: bool, size: int
) -> None:
    given = _given(uri, staging, ordered, delivery_limit=1, maxRecordsPerTrigger=30)
    sent = publish(uri, 50)
    query = Query(given)
    assert query.plan()
    victim.die_often(query.given, query.partitions()[0], "before-seal", 1)
    query.reader.stop()
    query = Query(given | options(uri, staging.with_name("other"), maxRecordsPerTrigger=size))
    assert wait_plan(query, 10)
    victim.die_often(query.given, query.partitions()[0], "before-seal", 2)
    _check(query.read() + query.drain(), sent, ordered)


@ORDERED
@pytest.mark.parametrize("dedup", ["none", "messageId"])
def test_a_task_killed_between_a_copy_and_its_ack_repeats_and_loses_nothing(
    uri: str, staging: Path, ordered: bool, dedup: str
) -> None:
    query = Query(_given(uri, staging, ordered) | {"deduplication": dedup})
    sent = publish(uri, 100)
    assert query.plan()
    victim.die_often(query.given, query.partitions()[0], "after-copy,before-seal", 14)
    rows = query.read() + query.drain()
    _check(rows, sent, ordered)
    assert len(rows) == 100 if dedup == "messageId" else len(rows) > 100


@ORDERED
def test_the_row_of_a_rescued_message_is_that_of_its_original_but_flagged(
    uri: str, staging: Path, ordered: bool
) -> None:
    query = Query(_given(uri, staging, ordered) | {"includeHeaders": "true"})
    with connect(uri) as link, link.channel() as channel, Publisher(link) as publisher:
        topology.bind_queue(channel, "q", "amq.topic", "orders.#")
        full = Properties(message_id="m", headers={"a": "1", "CC": ["elsewhere"]}, delivery_mode=2)
        publisher.publish([Outgoing(b"x", "amq.topic", "orders.new", full), Outgoing(b"y", "", "q")])
    assert query.plan()
    victim.die_often(query.given, query.partitions()[0], "before-seal", 12)
    rows = {row["value"]: row for row in query.read()}
    assert all(row["redelivered"] for row in rows.values())
    first, second = rows[b"x"], rows[b"y"]
    assert (first["exchange"], first["routing_key"], first["message_id"]) == ("amq.topic", "orders.new", "m")
    assert (second["exchange"], second["routing_key"]) == ("", "q")
    told = {name: value for name, value in first["headers"] if not name.startswith("x-")}
    assert told == {"a": "1"}  # CC would send the copy to other queues again
    assert not any(name.startswith("x-leash") for row in rows.values() for name, _ in row["headers"] or [])


def test_messages_in_limbo_are_planned_for_and_come_first(uri: str, staging: Path) -> None:
    query = Query(_given(uri, staging, True, maxRecordsPerTrigger=30))
    sent = publish(uri, 50)
    assert query.plan()
    _fail(query, 12)
    rows = query.read()
    assert values(rows) == sent[:30]
    _check(rows + query.drain(), sent, True)
    assert ready(uri, limbo_queue("q"), expect=0) == 0


def test_limbo_is_read_by_a_query_that_starts_anew(uri: str, staging: Path) -> None:
    query = Query(_given(uri, staging, True))
    sent = publish(uri, 50)
    assert query.plan()
    _fail(query, 12)
    query.reader.stop()
    assert ready(uri, expect=0) == 0
    fresh = Query(options(uri, staging.with_name("other"), ordered="true"))
    _check(fresh.drain(), sent, True)


def test_available_now_reads_limbo_too(uri: str, staging: Path) -> None:
    query = Query(_given(uri, staging, True))
    sent = publish(uri, 50)
    assert query.plan()
    _fail(query, 12)
    query.reader.stop()
    fresh = Query(options(uri, staging.with_name("other"), ordered="true"))
    fresh.reader.prepareForTriggerAvailableNow()
    _check(fresh.drain(), sent, True)


@ORDERED
def test_a_queue_that_comes_later_is_looked_at_as_well(uri: str, staging: Path, ordered: bool) -> None:
    query = Query(options(uri, staging, ordered=str(ordered).lower(), failOnDataLoss="false"))
    assert not query.plan()
    _given(uri, staging, ordered, delivery_limit=5)
    sent = publish(uri, 50)
    assert wait_plan(query, 10)
    _fail(query, 8)
    _check(query.read() + query.drain(), sent, ordered)


@ORDERED
@pytest.mark.parametrize("before", ["classic", "quorum"])
@pytest.mark.parametrize("planned", ["before", "after"])
def test_a_queue_made_again_while_the_driver_does_not_look_loses_nothing(
    uri: str, staging: Path, ordered: bool, before: str, planned: str
) -> None:
    single = {"single_active_consumer": True} if ordered and before == "quorum" else {}
    declare(uri, kind=before, **single)
    publish(uri, 50)
    given = options(uri, staging, ordered=str(ordered).lower(), maxRecordsPerTrigger=30)
    query = Query(given)
    assert query.plan()
    if planned == "after":
        assert len(query.read()) == 30
    delete(uri, "q")
    _given(uri, staging, ordered, delivery_limit=5)
    sent = publish(uri, 50)
    assert planned == "before" or wait_plan(query, 10)
    victim.die_often(query.given, query.partitions()[0], "before-seal", 8)
    rows = query.read()
    assert wait_plan(query, 10)
    assert query.last.limbo == (("q",) if ordered else ())
    _check(rows + query.read() + query.drain(), sent, ordered)


def test_a_queue_made_again_that_keeps_no_order_is_refused_and_nothing_is_lost(
    uri: str, staging: Path
) -> None:
    declare(uri)
    query = Query(options(uri, staging, ordered="true", maxRecordsPerTrigger=30))
    publish(uri, 50)
    assert query.plan()
    delete(uri, "q")
    declare(uri, kind="quorum", delivery_limit=1)
    sent = publish(uri, 50)
    victim.die_often(query.given, query.partitions()[0], "before-seal", 5)
    assert values(query.read()) == sent[:30]
    with pytest.raises(ConfigError, match="keeps no order"):
        query.plan()
    assert ready(uri, expect=20) == 20


def test_a_policy_may_give_limbo_a_limit(uri: str, staging: Path, broker: Broker) -> None:
    set_policy(broker, uri, delivery_limit=20)
    query = Query(_given(uri, staging, True, maxRecordsPerTrigger=80))
    sent = publish(uri, 100)
    assert query.plan()
    _fail(query, 45)
    rows = query.read()
    assert values(rows) == sent[:80]
    _check(rows + query.drain(), sent, True)


@pytest.mark.parametrize("limit", [None, 20])
def test_limbo_may_hold_more_than_one_window_does(
    uri: str, staging: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    """A window of 65,535 messages, which is 40 here."""
    monkeypatch.setattr("leash.spark.task.ordered.PREFETCH_MAX", 40)
    if limit is not None:
        set_policy(broker, uri, delivery_limit=limit)
    query = Query(_given(uri, staging, True, maxRecordsPerTrigger=30))
    with connect(uri) as link:
        declare_limbo(link, "q")
        sent = publish(uri, 100, limbo_queue("q")) + publish(uri, 20, first=100)
        with link.channel() as channel:
            channel.consume(limbo_queue("q"))
            came = 0
            while came < 100:
                lot = channel.deliveries(60)
                assert lot is not None
                came += len(lot)
    assert ready(uri, limbo_queue("q"), expect=100) == 100
    assert query.plan()
    _fail(query, 3 if limit is None else limit + 5)
    _check(query.read() + query.drain(), sent, True)


@ORDERED
def test_headers_that_nearly_fill_a_frame_are_no_way_out(uri: str, staging: Path, ordered: bool) -> None:
    """Nor do they keep those behind them from being rescued."""
    query = Query(_given(uri, staging, ordered))
    with connect(uri) as link, Publisher(link) as publisher:
        sizes = [link.frame_max - 100, link.frame_max - 900, 0, link.frame_max - 500, 0]
        sent = [b"%06d" % number for number in range(len(sizes))]
        publisher.publish(
            Outgoing(body, "", "q", Properties(delivery_mode=2, headers={"h": "." * size}), mandatory=True)
            for body, size in zip(sent, sizes, strict=True)
        )
    assert query.plan()
    _fail(query, 30)
    _check(query.read() + query.drain(), sent, ordered)


@ORDERED
def test_what_expires_after_a_rescue_goes_where_its_queue_sends_it(
    uri: str, staging: Path, ordered: bool
) -> None:
    """Or does not expire at all."""
    declare(uri, "dead", kind="quorum")
    more = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    declare(uri, kind="quorum", **more, **({"single_active_consumer": True} if ordered else {}))
    query = Query(options(uri, staging, ordered=str(ordered).lower()))
    sent = [b"%06d" % number for number in range(20)]
    mortal = Properties(delivery_mode=2, expiration="3000")
    with connect(uri) as link, Publisher(link) as publisher:
        publisher.publish(Outgoing(body, "", "q", mortal, mandatory=True) for body in sent)
    assert query.plan()
    _fail(query, 12)
    if ordered:
        declare(uri, "witness", kind="quorum")
        with connect(uri) as link, Publisher(link) as publisher:
            publisher.publish([Outgoing(b"x", "", "witness", mortal, mandatory=True)])
        assert ready(uri, "witness", expect=0) == 0  # it came last
        assert ready(uri, limbo_queue("q")) == 20
        assert values(query.read()) == sent
    else:
        assert ready(uri, "dead", expect=20) == 20


def test_an_unordered_query_says_that_limbo_is_not_for_it(
    uri: str, staging: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(_given(uri, staging, True))
    publish(uri, 50)
    assert query.plan()
    _fail(query, 12)
    query.reader.stop()
    caplog.clear()
    Query(options(uri, staging.with_name("other"))).plan()
    assert "has 50 messages in 'leash.limbo.q'" in caplog.text
