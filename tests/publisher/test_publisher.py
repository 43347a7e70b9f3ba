"""The publisher on a real broker: confirmed means there, and every other end says what is known."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from leash import Partitions, Publisher
from leash.amqp import Channel, Properties, connect, decode_properties, topology
from leash.broker import Broker
from leash.errors import (
    ConfigError,
    InDoubt,
    NotSent,
    PartlyPublished,
    Unroutable,
)
from tests.conftest import Tls
from tests.consumer.kit import depth, until
from tests.publisher.kit import bodies_in, together


def test_a_message_is_persistent_has_an_id_and_says_what_it_is(
    publisher: Publisher, channel: Channel
) -> None:
    receipt = publisher.publish({"n": 1}, "q", headers={"tenant": "a"})
    again = publisher.publish(b"raw", "q", message_id="mine", properties=Properties(priority=3))
    assert not receipt.resent
    assert receipt.message_id != again.message_id == "mine"
    first, second = channel.get("q"), channel.get("q")
    assert first is not None
    assert second is not None
    told = decode_properties(first.properties)
    assert (first.body, told.content_type, told.delivery_mode) == (b'{"n":1}', "application/json", 2)
    assert (told.message_id, told.headers) == (receipt.message_id, {"tenant": "a"})
    other = decode_properties(second.properties)
    assert (other.message_id, other.priority, other.delivery_mode) == ("mine", 3, 2)


def test_what_was_confirmed_is_there_after_a_crash(uri: str, channel: Channel, broker: Broker) -> None:
    topology.declare_queue(channel, "q")
    broker.stop()  # a node that is killed may forget the queues of its last moments, with all that is in them
    broker.start()
    with Publisher(uri) as publisher:
        assert publisher.publish_many((b"%d" % n for n in range(100)), "q") == 100
    broker.kill()
    broker.start()
    with connect(uri) as again:
        assert bodies_in(again.channel(), "q") == [b"%d" % n for n in range(100)]


def test_eight_threads_share_one_connection_and_all_is_there_once(
    publisher: Publisher, channel: Channel
) -> None:
    def work(number: int) -> None:
        for each in range(250):
            publisher.publish(b"%d-%d" % (number, each), "q")

    together(8, work)
    found = bodies_in(channel, "q")
    assert len(found) == len(set(found)) == 2000
    for number in range(8):  # and each thread's in its order
        mine = [body for body in found if body.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, each) for each in range(250)]


def test_many_of_none_and_many_of_a_generator(publisher: Publisher, channel: Channel) -> None:
    assert publisher.publish_many([], "q") == 0
    assert publisher.publish_many((str(n) for n in range(3000)), "q") == 3000
    assert depth(channel, "q") == 3000


def test_a_generator_that_fails_is_told_what_was_sent(publisher: Publisher, channel: Channel) -> None:
    def numbers() -> Iterator[bytes]:
        yield from (b"x" for _ in range(256))
        raise OSError("the file ended")

    with pytest.raises(OSError, match="the file ended") as caught:
        publisher.publish_many(numbers(), "q")
    assert caught.value.__notes__ == ["256 messages had been sent before"]
    publisher.flush()
    assert depth(channel, "q") == 256


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}])
def test_one_body_is_not_many(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="iterable, of bodies"):
        Publisher("amqp://nowhere.invalid").publish_many(wrong, "q")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="exchnage: there is no such option"):
        Publisher("amqp://nowhere.invalid").publish(b"", exchnage="e")  # type: ignore[call-arg]


def test_a_silent_broker_is_waited_for_once(uri: str, channel: Channel, broker: Broker) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri, timeout=1) as publisher:
        publisher.publish(b"x", "q")
        broker.pause()
        try:
            with pytest.raises(InDoubt, match="sent and not confirmed within 1 s"):
                publisher.publish(b"x", "q")
            began = time.monotonic()
            with pytest.raises(PartlyPublished, match="200 messages failed") as caught:
                publisher.publish_many([b"x"] * 200, "q")
            assert time.monotonic() - began < 100  # and not 200 times a second
            assert caught.value.in_doubt
        finally:
            broker.resume()
        until(lambda: depth(channel, "q") >= 202)  # they were only late


@pytest.mark.parametrize(("queue", "says"), [("q", ""), ("nowhere", "event=not_published count=1 reason=")])
def test_the_end_of_the_process_waits_for_what_was_sent(
    uri: str, channel: Channel, queue: str, says: str
) -> None:
    topology.declare_queue(channel, "q")
    code = f"from leash import Publisher\nPublisher({uri!r}).send(b'x', {queue!r})"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)
    assert depth(channel, "q") == (queue == "q")


def test_confirms_awaited_later_come_within_the_bound(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri, in_flight=50) as publisher:
        most = 0
        sent = []
        for number in range(2000):
            sent.append(publisher.send(b"%d" % number, "q"))
            most = max(most, sum(not each.done() for each in sent[-200:]))
        assert most <= 50
        assert all(each.result(30).message_id == each.message_id for each in sent)
        told: list[object] = []
        sent[0].add_done_callback(told.append)
        assert told == [sent[0]]
    assert bodies_in(channel, "q") == [b"%d" % number for number in range(2000)]


def test_closing_waits_for_what_was_sent(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri) as publisher:
        sent = [publisher.send(b"x", "q") for _ in range(500)]
    assert all(each.done() and each.exception() is None for each in sent)
    assert depth(channel, "q") == 500
    publisher.close()  # again
    with pytest.raises(NotSent, match="closed"):
        publisher.publish(b"x", "q")
    with pytest.raises(NotSent, match="closed"):
        publisher.send(b"x", "q")


def test_an_error_that_nobody_asked_about_is_raised_at_the_end(uri: str, channel: Channel) -> None:
    with pytest.raises(Unroutable, match="queue 'nowhere'"), Publisher(uri) as publisher:
        publisher.send(b"x", "nowhere")
    with Publisher(uri) as publisher:
        assert isinstance(publisher.send(b"x", "nowhere").exception(), Unroutable)


@pytest.mark.parametrize("by", ["routing_key", "header:customer", "property:correlation_id"])
def test_partitions_get_each_key_where_it_belongs(uri: str, channel: Channel, by: str) -> None:
    orders = Partitions("orders", {"orders.0": 1, "orders.1": 1, "orders.2": 2}, by)
    layout = orders.declare(uri)
    keys = [f"customer-{n}" for n in range(40)]
    with Publisher(uri) as publisher:
        for key in keys:
            publisher.publish(key, partitions="orders", key=key)
            publisher.publish(key, partitions=orders, key=key)
    for queue in layout.queues:
        expected = [key.encode() for key in keys for _ in range(2) if layout.route(key) == queue]
        assert bodies_in(channel, queue) == expected


def test_by_tls_and_by_the_host_that_answers(uri: str, channel: Channel, tls: Tls) -> None:
    topology.declare_queue(channel, "q")
    credentials, _, rest = uri.partition("//")[2].partition("@")
    vhost = rest.partition("/")[2]
    places = [
        f"amqps://{credentials}@localhost:{tls.port}/{vhost}?cacertfile={tls.ca}",
        f"amqp://{credentials}@127.0.0.1:1,{rest}",
    ]
    for place in places:
        with Publisher(place) as publisher:
            publisher.publish_many([b"x" * 1000] * 500, "q")
    assert depth(channel, "q") == 1000


@dataclass
class Order:
    number: int


def test_publishing_from_a_handler(publisher: Publisher, channel: Channel, uri: str) -> None:
    from leash import Consumer, Message

    topology.declare_queue(channel, "next")
    consumer = Consumer(uri, ["q"], workers=4)

    @consumer.handler
    def work(message: Message) -> None:
        publisher.publish(Order(int(message.body)), "next")

    publisher.publish_many((str(n) for n in range(200)), "q")
    with consumer:
        until(lambda: depth(channel, "next") == 200)
    assert set(bodies_in(channel, "next")) == {b'{"number":%d}' % n for n in range(200)}
