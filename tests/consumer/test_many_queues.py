"""More queues than one connection has channels for: several connections, each of which may be lost alone."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pamqp import commands

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, Connection, Outgoing, Publisher, Uri
from leash.amqp.delivery_limit import limbo_queue
from leash.amqp.queue_traits import Traits
from leash.amqp.topology import declare_queues
from leash.consumer import copies, failures, reconnect
from leash.consumer.copy_courier import Republisher
from leash.consumer.engine import Engine
from leash.consumer.link import Link
from leash.consumer.one_connection import SPARE, Line
from leash.consumer.outbox import Outbox
from leash.consumer.rescuing import Limbo
from leash.errors import AccessRefused, ConnectionLost, NotFound
from leash.flow import Flow, Lane
from leash.flow.decisions import Probe
from leash.testing import Rehearsal
from leash.units import MS
from tests.consumer.kit import TRANSIENT, depth, fill, running, until

CHANNELS = 2047  # RabbitMQ's default


def lines_of(consumer: Consumer) -> list[Line]:
    return consumer.session._connector.lines


def cut(line: Line) -> None:
    assert line.connection is not None
    line.connection.abort()


def spread(channel: Channel, names: list[str], each: int) -> set[bytes]:
    """Put `each` messages into every queue; returns their bodies."""
    declare_queues(channel, [(name, "classic", {}) for name in names])
    bodies = [(name, f"{name} {number}".encode()) for number in range(each) for name in names]
    with Publisher(channel.connection) as publisher:
        publisher.publish(Outgoing(body, "", name, TRANSIENT) for name, body in bodies)
    return {body for _, body in bodies}


@pytest.mark.broker
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_of_several_connections_is_lost_and_the_others_go_on(
    channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    monkeypatch.setattr(reconnect, "SPARE", CHANNELS - 4)  # four queues to a connection
    names = [f"many.{number}" for number in range(10)]
    wanted = spread(channel, names, 60)
    seen: Counter[bytes] = Counter()
    flagged: Counter[bytes] = Counter()
    consumer = Consumer(uri, names, workers=2)
    half, go = threading.Event(), threading.Event()

    @consumer.handler
    def work(message: Message) -> None:
        (flagged if message.redelivered else seen)[message.body] += 1
        if len(seen) == 100:
            half.set()
        if len(seen) >= 100:
            go.wait(60)

    with running(consumer):
        lines = lines_of(consumer)
        assert [len(line.queues) for line in lines] == [4, 4, 2]
        assert half.wait(60)
        links = dict(consumer.session.engine.links)
        others = [name for line in lines if line is not lines[lost] for name in line.queues]
        cut(lines[lost])
        until(lambda: not links[lines[lost].queues[0]].alive)
        go.set()
        until(lambda: set(seen) | set(flagged) == wanted)
        until(lambda: consumer.stats().reconnects == 1 and consumer.stats().connected)
        until(lambda: all(depth(channel, name) == 0 for name in names))
        assert all(consumer.session.engine.links[name] is links[name] for name in others)
    assert set(seen.values()) == {1}
    assert set(flagged.values()) <= {1}
    assert {body.decode().split()[0] for body in flagged} <= set(lines[lost].queues)
    assert all(depth(channel, name) == 0 for name in names)


@pytest.mark.broker
def test_all_connections_are_lost_and_every_queue_is_consumed_again(
    channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "SPARE", CHANNELS - 4)
    names = [f"many.{number}" for number in range(10)]
    wanted = spread(channel, names, 5)
    seen: set[bytes] = set()
    consumer = Consumer(uri, names)
    consumer.handler(lambda message: seen.add(message.body))
    with running(consumer):
        until(lambda: seen == wanted)
        for line in lines_of(consumer):
            cut(line)
        until(lambda: consumer.stats().reconnects == 3)
        wanted |= spread(channel, names, 7)
        until(lambda: seen == wanted)
        until(lambda: all(each.connected for each in consumer.stats().queues.values()))
    assert all(depth(channel, name) == 0 for name in names)


@pytest.mark.broker
def test_queues_for_copies_of_many_queues_are_declared_when_a_message_fails(
    channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "AT_START", 1)
    for name in ("a", "b", "c"):
        fill(channel, name, 1)
    consumer = Consumer(uri, ["a", "b", "c"], retry=Retry(tries=2, delay=0.05))
    handled: list[str] = []

    @consumer.handler
    def work(message: Message) -> None:
        handled.append(message.queue)
        if message.queue == "b":
            raise RuntimeError("always")

    with running(consumer):
        until(lambda: handled.count("b") == 2 and depth_or_none(channel, "leash.dead.b") == 1)
    assert depth_or_none(channel, "leash.dead.a") == 0
    assert depth_or_none(channel, "leash.dead.c") is None
    assert depth_or_none(channel, "leash.retry.b.50") == 0
    assert depth_or_none(channel, "leash.retry.c.50") is None


def depth_or_none(channel: Channel, name: str) -> int | None:
    try:
        with channel.connection.channel() as other:
            return depth(other, name)
    except NotFound:
        return None


def test_in_memory_too_each_queue_is_settled_on_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "SPARE", CHANNELS - 4)
    names = [f"many.{number}" for number in range(10)]
    consumer = Consumer("amqp://nowhere.invalid", names)
    consumer.handler(lambda _: None)
    with Rehearsal(consumer, takes=0.001) as stage:
        for name in names:
            stage.publish(name, [b"x"] * 20)
        stage.run()
        assert [len(line.queues) for line in lines_of(consumer)] == [4, 4, 2]
        assert len({id(connection) for connection in consumer.session._connector.connections}) == 3
        assert [stage.depth(name) for name in names] == [0] * 10
        assert len(stage.handled) == 200
        assert all(not link.ledger.unsettled for link in consumer.session.engine.links.values())


def test_a_queue_that_is_gone_keeps_no_other_connection_s_queues_from_being_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "SPARE", CHANNELS - 1)
    consumer = Consumer("amqp://nowhere.invalid", ["a", "b", "c"])
    consumer.handler(lambda _: None)
    with Rehearsal(consumer) as stage:
        stage.run()
        session = consumer.session
        lanes = session.engine.flow.lanes
        del stage._broker.queues["a"]
        for lane in lanes.values():
            lane.probing, lane.depth = True, None
        session._connector.look_at(["a", "b", "c"])
        assert [lane.probing for lane in lanes.values()] == [False] * 3
        assert [lane.depth for lane in lanes.values()] == [None, 0, 0]
        stage.declare("a")


def test_a_host_with_fewer_channels_gets_the_rest_of_the_queues_by_one_more_connection() -> None:
    names = [f"many.{number}" for number in range(10)]
    consumer = Consumer("amqp://nowhere.invalid", names)
    consumer.handler(lambda _: None)
    with Rehearsal(consumer) as stage:
        stage.run()
        connector = consumer.session._connector
        dial = connector.dial

        def dial_other(uri: Uri, avoid: str) -> Connection:
            connection = dial(uri, avoid)
            connection.channel_max = SPARE + 6
            return connection

        connector.dial = dial_other  # type: ignore[method-assign]
        fail(connector.lines[0])
        connector.reconnect()
        assert [len(line.queues) for line in connector.lines] == [6, 4]
        until(lambda: connector.whole)
        until(lambda: not any(thread.is_alive() for thread in connector._reopening.values()))
        connector.tend()
        for name in names:
            stage.publish(name, [b"x"] * 3)
        stage.run()
        assert len(stage.handled) == 30
        assert [stage.depth(name) for name in names] == [0] * 10


def fail(line: Line) -> None:
    """What a reader does when its connection is lost."""
    connection, error = line.connection, ConnectionLost("cut")
    assert connection is not None
    connection.close()
    for channel in list(connection._channels.values()):
        if channel.on_lost is not None:
            channel.on_lost(error)


def test_an_error_that_nobody_foresaw_does_not_end_the_thread_that_connects(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconnect, "RECONNECT", (0.001, 0.001))
    consumer = Consumer("amqp://nowhere.invalid", ["q"])
    consumer.handler(lambda _: None)
    with Rehearsal(consumer) as stage:
        stage.run()
        connector = consumer.session._connector
        dial, tries = connector.dial, []

        def dial_again(uri: Uri, avoid: str) -> Connection:
            tries.append(avoid)
            if len(tries) < 3:
                raise RuntimeError("can't start new thread")
            return dial(uri, avoid)

        connector.dial = dial_again  # type: ignore[method-assign]
        fail(connector.lines[0])
        connector._reopen(connector.lines[0])
        assert connector.whole
    assert caplog.text.count("event=connect_failed") == 2


def test_without_a_limbo_a_message_is_rescued_to_the_end_of_its_queue_also_if_that_shows_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "AT_START", 1)
    queues = [Queue("a"), Queue("b")]
    engine = Engine(Flow([Lane("a"), Lane("b")]), None)
    engine.traits = {each.name: Traits("quorum") for each in queues}
    decides = failures.Failures(engine, queues, lambda _: Retry(1), "discard")
    engine.limbo = Limbo(engine, queues, decides)
    sent: list[tuple[Message, Outgoing]] = []
    connection: Any = SimpleNamespace(version=(4, 1), frame_max=131072)
    decides.republisher = cast(Republisher, SimpleNamespace(put=lambda *pair: sent.append(pair)))
    refused: set[str] = {limbo_queue("b")}
    monkeypatch.setattr(copies, "declare", lambda _, wanted, __: refused & {each.name for each in wanted})
    decides.prepare(connection)
    channel: Any = SimpleNamespace(number=1, connection=connection, closed=False)
    link = engine.links["b"] = Link(queues[1], channel, Outbox(connection, engine.lock))
    raw = (1, True, "", "b", b"\0\0", b"body", link, 0)
    decides.rescue(Message(raw, engine.settler.settle))
    message, copy = sent.pop()
    assert copy.routing_key == limbo_queue("b")
    with pytest.raises(AccessRefused) as error:  # as the courier learns
        decides.prepare(connection, copy.routing_key)
    assert decides.barred(message, copy, error.value)
    message, copy = sent.pop()
    assert (copy.routing_key, copy.body) == ("b", b"body")
    buffer = engine.flow.lanes["b"].buffer
    assert len(buffer) == 0
    assert decides.barred(message, copy, error.value)  # not there either: it is handled
    assert sent == []
    assert [entry[0] for entry in buffer] == [raw]


def test_idle_lanes_are_probed_a_few_at_a_time() -> None:
    flow = Flow([Lane(f"q{number}") for number in range(1000)])
    for name in flow.lanes:
        flow.probed(0, name, 0, 1, MS)
    asked = Counter[str]()
    for tick in range(1, 20 * 15):
        now = tick * 50 * MS
        flow.tick(now)
        names = [each.lane for each in flow.decisions if isinstance(each, Probe)]
        assert len(names) <= 5
        flow.decisions.clear()
        for name in names:
            asked[name] += 1
            flow.probed(now, name, 0, 1, MS)
    assert set(asked) == set(flow.lanes)
    assert max(asked.values()) == 2


@pytest.mark.broker
@pytest.mark.soak
def test_2500_queues_by_two_connections_of_which_one_is_killed(channel: Channel, uri: str) -> None:
    names = [f"many.{number}" for number in range(2500)]
    wanted = spread(channel, names, 8)
    seen: set[bytes] = set()
    consumer = Consumer(uri, names, workers=2)
    consumer.handler(lambda message: seen.add(message.body))
    with running(consumer):
        lines = lines_of(consumer)
        assert [len(line.queues) for line in lines] == [2000, 500]
        until(lambda: len(seen) > 5000)
        cut(lines[0])
        until(lambda: seen == wanted)
        until(lambda: consumer.stats().reconnects == 1 and consumer.stats().connected)
        until(lambda: all(each.connected for each in consumer.stats().queues.values()))
        wanted |= spread(channel, names, 10)
        until(lambda: seen == wanted)
    with channel.connection.channel() as other:
        asked = [other.ask(commands.Queue.Declare(0, name, True), commands.Queue.DeclareOk) for name in names]
        assert sum(answer(60.0).message_count for answer in asked) == 0
