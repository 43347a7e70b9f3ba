"""Queues that are treated in their own way: deleted with their last consumer, streams, unknown ones."""

from __future__ import annotations

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel
from leash.amqp.queue_traits import traits
from leash.amqp.topology import declare_queue, delete_queue, state
from leash.broker import Broker
from leash.errors import ConfigError
from leash.lab.proxy import Proxy
from tests.admin import add_user
from tests.consumer.kit import depth, fill, publish, running, until

COUNT = 3000


def _numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_an_auto_delete_queue_outlives_every_change_of_its_window(channel: Channel, uri: str) -> None:
    declare_queue(channel, "q", auto_delete=True)
    publish(channel, "q", _numbers(COUNT))
    seen: list[bytes] = []
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == COUNT, what=f"{len(seen)}")
        total = COUNT + _until_its_window_changes(consumer, channel, seen)
        consumer.pause("q")
        publish(channel, "q", _numbers(10))
        consumer.resume("q")
        until(lambda: len(seen) == total + 10)
    assert seen[:COUNT] == _numbers(COUNT)


def _until_its_window_changes(consumer: Consumer, channel: Channel, seen: list[bytes]) -> int:
    """However busy the machine is; returns how many more messages that took."""
    before = len(seen)
    for _ in range(60):
        if consumer.stats().queues["q"].window != 16:  # where it started
            break
        count = len(seen)
        publish(channel, "q", _numbers(COUNT))
        until(lambda at=count: len(seen) == at + COUNT)  # type: ignore[misc]
    assert consumer.stats().queues["q"].window != 16
    return len(seen) - before


def test_windows_change_without_the_right_to_ask_what_a_queue_is(
    broker: Broker, channel: Channel, uri: str
) -> None:
    declare_queue(channel, "q", auto_delete=True)
    declare_queue(channel, "leash.dead.q")
    publish(channel, "q", _numbers(COUNT))
    seen: list[bytes] = []
    consumer = Consumer(add_user(broker, uri, "^$"), ["q"], retry=None)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == COUNT, what=f"{len(seen)}")
        _until_its_window_changes(consumer, channel, seen)
    assert seen[:COUNT] == _numbers(COUNT)


def test_a_stream_is_refused_by_name(channel: Channel, uri: str) -> None:
    declare_queue(channel, "events", kind="stream")
    consumer = Consumer(uri, ["events"])
    consumer.handler(lambda _: None)
    with pytest.raises(ConfigError, match=r"'events'.* stream"):
        consumer.start()


def test_a_queue_that_became_another_while_nobody_was_connected(
    broker: Broker, channel: Channel, uri: str
) -> None:
    fill(channel, "q", 1)
    seen: list[bytes] = []
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        consumer = Consumer(uri.replace(f":{broker.port('amqp')}/", f":{proxy.port}/"), ["q"])
        consumer.handler(lambda message: seen.append(message.body))
        with running(consumer):
            until(lambda: seen == [b"0"])
            proxy.refuse = True
            proxy.cut()
            until(lambda: state(channel, "q").consumers == 0)
            delete_queue(channel, "q")
            declare_queue(channel, "q", kind="quorum", arguments={"x-delivery-limit": 5})
            proxy.refuse = False
            engine = consumer.session.engine
            assert engine is not None
            until(lambda: (link := engine.links.get("q")) is not None and link.counted and link.limit == 5)
            publish(channel, "q", [b"1"])
            until(lambda: seen == [b"0", b"1"])


def test_a_queue_that_became_a_quorum_queue_has_a_limbo(channel: Channel, uri: str) -> None:
    fill(channel, "q", 1)
    seen: list[tuple[bytes, bool]] = []
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda message: seen.append((message.body, message.link.limbo)))
    with running(consumer):
        until(lambda: seen == [(b"0", False)])
        delete_queue(channel, "q")
        declare_queue(channel, "q", kind="quorum", arguments={"x-delivery-limit": 4})
        engine = consumer.session.engine
        until(lambda: (link := engine.links.get("q")) is not None and link.counted)
        consumer.pause("q")
        until(lambda: state(channel, "q").consumers == 0)
        publish(channel, "q", [b"1"])
        for _ in range(2):
            with channel.connection.channel() as taker:
                until(lambda taker=taker: taker.get("q") is not None)  # type: ignore[misc]
        consumer.resume("q")
        until(lambda: len(seen) == 2)
    assert seen[1] == (b"1", True)


def test_a_queue_that_became_a_stream_is_not_consumed(
    channel: Channel, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, "q", 1)
    consumer = Consumer(uri, ["q"])
    seen: list[bytes] = []
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: seen == [b"0"])
        delete_queue(channel, "q")
        declare_queue(channel, "q", kind="stream")
        until(lambda: "this is a stream" in caplog.text)
        delete_queue(channel, "q")
        fill(channel, "q", 2)
        until(lambda: seen == [b"0", b"0", b"1"])


def test_an_exclusive_consumer_is_refused_where_it_would_exclude_nobody(channel: Channel, uri: str) -> None:
    declare_queue(channel, "orders", kind="quorum")
    consumer = Consumer(uri, [Queue("orders", exclusive=True)])
    consumer.handler(lambda _: None)
    with pytest.raises(ConfigError, match=r"exclusive=True.*'orders'.*x-single-active-consumer"):
        consumer.start()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_dead_queue_is_of_the_queues_own_kind(channel: Channel, uri: str, kind: str) -> None:
    fill(channel, "q", 1, kind=kind)
    consumer = Consumer(uri, [Queue("q")], retry=None)

    @consumer.handler
    def work(_: Message) -> None:
        raise ValueError

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
    made = traits(channel.connection, "leash.dead.q")
    assert made is not None
    assert made.kind == kind
