"""Adopting a queue under load, and kills: what was confirmed to publishers is handled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leash.amqp import Channel, Connection, Publisher, connect, topology
from leash.broker import Broker
from leash.consumer import Consumer
from leash.errors import TopologyError
from tests.admin import memory_alarm, unblock
from tests.consumer.kit import running
from tests.tenants.kit import JOBS, Ledger, Workers, message, send
from tests.waiting import until

NAMES = [f"tenant {n}" for n in range(20)]


@pytest.fixture
def workers(uri: str, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(uri, tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_adopting_under_load_loses_nothing_and_repeats_nothing(
    uri: str, broker: Broker, channel: Channel, workers: Workers, kind: str
) -> None:
    topology.declare_queue(channel, "old", kind=kind)
    topology.bind_queue(channel, "old", "amq.topic", "job.#")
    send(uri, [message(NAMES[n % 20], b"%d" % n, "", "old") for n in range(2000)])
    feeds = [Ledger(uri, "", "old", NAMES, 1_000_000), Ledger(uri, "amq.topic", "job.new", NAMES, 2_000_000)]
    for feed in feeds:
        feed.start()
    JOBS.declare(uri)
    workers.start()
    workers.start()
    until(lambda: all(len(feed.confirmed) > 100 for feed in feeds))
    moved, _, trouble = JOBS.adopt(uri, "old", broker.management)
    assert ([each.source for each in moved], trouble) == (["amq.topic"], "")
    marks = [len(feed.confirmed) for feed in feeds]
    until(lambda: all(len(feed.confirmed) > mark + 300 for feed, mark in zip(feeds, marks, strict=True)))
    confirmed = [*range(2000), *feeds[0].end(), *feeds[1].end()]
    until(lambda: len(workers.handled()) >= len(confirmed))
    workers.stop()
    handled = workers.handled()
    assert sorted(handled) == sorted(confirmed), "nothing lost"
    assert {number: times for number, times in handled.items() if times > 1} == {}, "nothing repeated"
    assert topology.state(channel, "old").ready == 0


def test_kills_lose_nothing(uri: str, broker: Broker, channel: Channel, workers: Workers) -> None:
    topology.declare_queue(channel, "old", kind="quorum")
    JOBS.declare(uri)
    JOBS.adopt(uri, "old", broker.management)
    feeds = [Ledger(uri, "", "old", NAMES), Ledger(uri, "jobs", "", NAMES, 1_000_000)]
    for feed in feeds:
        feed.start()
    for _ in range(3):
        workers.start()
    for at in range(6):
        mark = len(workers.handled())
        until(lambda: len(workers.handled()) > mark + 100)  # noqa: B023
        workers.kill()
        workers.start()
        if at == 2:
            JOBS.isolate(uri, NAMES[0])
        elif at == 4:
            JOBS.release(uri, NAMES[0])
    confirmed = {*feeds[0].end(), *feeds[1].end()}
    until(lambda: set(workers.handled()) >= confirmed)
    workers.stop()
    until(lambda: topology.state(channel, "old").ready == 0)


def test_a_broker_that_restarts_loses_nothing(
    uri: str, broker: Broker, coordinated: None, workers: Workers
) -> None:
    with connect(uri) as connection, connection.channel() as channel:
        topology.declare_queue(channel, "old", kind="quorum")
    JOBS.declare(uri)
    JOBS.adopt(uri, "old", broker.management)
    send(uri, [message(NAMES[n % 20], b"%d" % n, "", "old") for n in range(3000)])
    workers.start()
    until(lambda: len(workers.handled()) > 100)
    broker.kill()
    broker.start()
    send(uri, [message(NAMES[n % 20], b"%d" % n, "", "old") for n in range(3000, 3100)])
    until(lambda: set(workers.handled()) >= set(range(3100)))
    workers.stop()


def test_what_is_adopted_begins_and_ends_while_a_consumer_runs(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "old")
    JOBS.declare(uri)
    seen: list[bytes] = []
    consumer = Consumer(uri, tenants=JOBS)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        send(uri, [message("acme", b"1", "", "old")])
        JOBS.adopt(uri, "old")
        until(lambda: seen == [b"1"])
        JOBS.unadopt(uri, "old")
        until(lambda: topology.state(channel, "old").consumers == 0)
        send(uri, [message("acme", b"2", "", "old")])
        JOBS.adopt(uri, "old")
        until(lambda: seen == [b"1", b"2"])
        topology.delete_queue(channel, "old")
        topology.declare_queue(channel, "old")
        send(uri, [message("acme", b"3", "", "old")])
        until(lambda: seen == [b"1", b"2", b"3"])
    assert topology.state(channel, "old").consumers == 0


def test_a_message_with_its_publishers_name_or_with_cc_is_moved_once(
    uri: str, broker: Broker, channel: Channel
) -> None:
    topology.declare_queue(channel, "old")
    user = channel.connection.uri.username
    with_cc = message("acme", b"cc", "", "old")
    with_cc.properties.headers["CC"] = ["elsewhere"]  # type: ignore[union-attr,index]
    send(uri, [message("acme", b"named", "", "old", user=user), with_cc])
    topology.declare_queue(channel, "elsewhere")
    JOBS.declare(uri)
    JOBS.adopt(uri, "old")
    seen: list[bytes] = []
    consumer = Consumer(uri, tenants=JOBS)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: sorted(seen) == [b"cc", b"named"])
    assert topology.state(channel, "elsewhere").ready == 0


def test_a_consumer_that_came_too_early_can_be_started_again(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "old")
    send(uri, [message("acme", b"1", "", "old")])
    seen: list[bytes] = []
    consumer = Consumer(uri, tenants=JOBS)
    consumer.handler(lambda message: seen.append(message.body))
    with pytest.raises(TopologyError):
        consumer.start()
    JOBS.declare(uri)
    JOBS.adopt(uri, "old")
    with running(consumer):
        until(lambda: seen == [b"1"])


def test_an_alarm_drops_nothing_although_the_queue_has_a_delivery_limit(
    uri: str, broker: Broker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0

    class Impatient(Publisher):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection, timeout=0.1)

        def wait(self) -> None:
            nonlocal waits
            waits += 1
            super().wait()

    topology.declare_queue(channel, "old", kind="quorum", arguments={"x-delivery-limit": 1})
    send(uri, [message("acme", b"%d" % n, "", "old") for n in range(50)])
    JOBS.declare(uri)
    JOBS.adopt(uri, "old")
    seen: list[int] = []
    consumer = Consumer(uri, tenants=JOBS)
    consumer.handler(lambda message: seen.append(int(message.body)))
    monkeypatch.setattr("leash.fleet.tenants.move_messages.Publisher", Impatient)
    with memory_alarm(broker):
        with running(consumer):
            until(lambda: waits >= 10)
            assert seen == []
            unblock(broker)
            until(lambda: len(seen) >= 50)
    assert sorted(seen) == list(range(50))
