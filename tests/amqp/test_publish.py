"""Publishing: confirmed means there; refused, returned or blocked is said."""

from __future__ import annotations

import threading
import time

import pytest

from leash import errors
from leash.amqp import (
    Channel,
    Connection,
    Outgoing,
    Properties,
    Publisher,
    connect,
    encode_properties,
    topology,
)
from leash.amqp.publish import refused
from leash.broker import Broker
from tests.admin import memory_alarm, unblock


def test_a_hundred_thousand_confirmed_messages_are_all_there(
    connection: Connection, channel: Channel
) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(connection) as publisher:
        assert publisher.publish(Outgoing(b"%d" % n, "", "q") for n in range(100_000)) == 100_000
    assert topology.state(channel, "q").ready == 100_000


@pytest.mark.parametrize("size", [0, 131_064, 131_065, 5 * 1024 * 1024])
def test_bodies_of_every_size_arrive_whole(connection: Connection, channel: Channel, size: int) -> None:
    topology.declare_queue(channel, "q")
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(body, "", "q")] * 2)
    channel.consume("q")
    got: list[bytes] = []
    while len(got) < 2:
        batch = channel.deliveries(60)
        assert batch is not None
        got += batch.bodies
    assert got == [body, body]


def test_unroutable_mandatory_messages_are_reported_and_the_others_are_there(
    connection: Connection, channel: Channel
) -> None:
    topology.declare_queue(channel, "q")
    batch = [
        Outgoing(b"ok", "", "q", mandatory=True),
        Outgoing(b"lost", "", "no-such-queue", mandatory=True),
    ] * 3
    with Publisher(connection) as publisher:
        with pytest.raises(
            errors.Unroutable, match="3 messages, the first with routing key 'no-such-queue'"
        ) as caught:
            publisher.publish(batch)
        assert [m.routing_key for m in caught.value.messages] == ["no-such-queue"] * 3  # type: ignore[attr-defined]
        assert publisher.publish(batch[:1]) == 1
    assert topology.state(channel, "q").ready == 4


def test_what_comes_back_is_the_very_one_that_was_published(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    headers = Properties(
        headers={"z": 1, "deep": [{"z": b"b", "a": 1}], "a": 2}, delivery_mode=2, message_id="m"
    )
    other = Properties(
        headers={"z": 2, "deep": [{"z": b"b", "a": 1}], "a": 1}, delivery_mode=2, message_id="m"
    )
    kinds = (None, headers, encode_properties(other), b"\x80\x00\x04text")
    batch = [
        Outgoing(b"the same", "", queue, properties, mandatory=True)
        for properties in kinds
        for queue in ("q", "none", "none", "q")
    ] * 300
    with Publisher(connection) as publisher, pytest.raises(errors.Unroutable) as caught:
        publisher.publish(batch)
    assert [id(each) for each in caught.value.messages] == [id(each) for each in returned(batch)]
    assert refused(batch, caught.value.messages) == [each.routing_key == "none" for each in batch]
    assert topology.state(channel, "q").ready == len(batch) // 2


def returned(batch: list[Outgoing]) -> list[Outgoing]:
    return [each for each in batch if each.routing_key == "none"]


def test_what_was_changed_on_its_way_back_is_known_by_its_body() -> None:
    batch = [Outgoing(body, "", "q") for body in (b"a", b"b", b"a", b"c")]
    changed = Outgoing(b"a", "", "q", Properties(headers={"by": "the broker"}), mandatory=True)
    assert refused(batch, [changed, batch[3]]) == [True, False, True, True]
    assert refused(batch, [batch[2]]) == [False, False, True, False]


def test_messages_that_the_broker_refuses_are_named(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "full", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    with Publisher(connection) as publisher, pytest.raises(errors.Nacked, match="refused") as caught:
        publisher.publish(Outgoing(b"%d" % n, "", "full") for n in range(10))
    accepted = topology.state(channel, "full").ready
    assert len(caught.value.messages) == 10 - accepted > 0


def test_an_unknown_exchange_ends_the_batch_with_an_error(connection: Connection) -> None:
    with Publisher(connection) as publisher, pytest.raises(errors.NotFound, match="no exchange 'nowhere'"):
        publisher.publish([Outgoing(b"x", "nowhere", "k")])


def test_a_routing_key_that_is_too_long_is_refused_before_anything_is_sent(
    connection: Connection, channel: Channel
) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(connection) as publisher:
        with pytest.raises(errors.ConfigError, match="at most 255 bytes"):
            publisher.publish([Outgoing(b"a", "", "q"), Outgoing(b"b", "", "k" * 256)])
        assert publisher.publish([Outgoing(b"c", "", "q")]) == 1
    assert topology.state(channel, "q").ready == 1


def test_publishing_waits_while_the_broker_is_under_a_memory_alarm(
    uri: str, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(uri) as opened, connect(uri) as watching:
        channel = watching.channel()
        topology.declare_queue(channel, "q")
        publisher = Publisher(opened, timeout=2)
        with memory_alarm(broker):
            began = time.monotonic()
            with pytest.raises(errors.PublishBlocked, match="low on memory"):
                publisher.publish([Outgoing(b"x", "", "q")] * 10)
            assert time.monotonic() - began > 1.5
            began = time.monotonic()
            publisher.close()
            assert time.monotonic() - began < 30  # not for as long as a reply may take
            assert opened.blocked is not None
            assert "blocks publishers" in caplog.text
            assert topology.state(channel, "q").ready == 0  # consuming connections are not blocked

            with connect(uri) as second:
                waiting = Publisher(second, timeout=60)
                thread = threading.Thread(target=waiting.publish, args=([Outgoing(b"y", "", "q")] * 10,))
                thread.start()
                thread.join(1)
                assert thread.is_alive()
                unblock(broker)
                thread.join(60)
                assert not thread.is_alive()
        deadline = time.monotonic() + 60
        while topology.state(channel, "q").ready < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert topology.state(channel, "q").ready == 20  # the first ten were only late


def test_a_stuck_socket_does_not_hang_a_big_publish(uri: str, broker: Broker) -> None:
    with connect(uri, heartbeat=60) as opened:
        topology.declare_queue(opened.channel(), "q")
        publisher = Publisher(opened, timeout=2)
        broker.pause()
        try:
            began = time.monotonic()
            with pytest.raises(errors.PublishError):
                publisher.publish(Outgoing(b"x" * 100_000, "", "q") for _ in range(1000))
            assert time.monotonic() - began < 50  # heartbeats would end it later
        finally:
            broker.resume()


def test_a_publish_cut_off_by_a_dying_broker_says_so(uri: str, broker: Broker) -> None:
    opened = connect(uri)
    topology.declare_queue(opened.channel(), "q")
    publisher = Publisher(opened)
    killer = threading.Timer(0.3, broker.kill)
    killer.start()
    try:
        with pytest.raises(errors.ConnectionLost):
            publisher.publish(Outgoing(b"x" * 1000, "", "q") for _ in range(10_000_000))
    finally:
        killer.join()
        broker.start()
