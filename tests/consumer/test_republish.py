"""Copies of failed messages: what is in the way of one holds up no other, and none is lost or repeated."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, Outgoing, Properties, Publisher, decode_properties
from leash.amqp.topology import bind_queue, declare_exchange, declare_queue
from leash.broker import Broker
from tests.consumer.kit import depth, fill, publish, running, until


def on_the_queue(broker: Broker, channel: Channel, name: str, what: str) -> None:
    """Something done to the process of a quorum queue."""
    vhost = channel.connection.uri.vhost
    found = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"{name}">>))'
    broker.ctl("eval", f"{found}, ra:{what}(quorum_queues, amqqueue:get_pid(Q)).")


def test_a_queue_that_takes_no_copies_holds_up_no_other(channel: Channel, uri: str, broker: Broker) -> None:
    for name in "ab":
        declare_queue(channel, name, kind="quorum")
    seen: Counter[bytes] = Counter()
    queues = [Queue(name, kind="quorum") for name in "ab"]
    consumer = Consumer(uri, queues, retry=Retry(2, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.body] += 1
        if message.body.startswith(b"bad") or not message.tries:
            raise ValueError("no")

    with running(consumer):
        publish(channel, "a", [b"bad 0"])
        until(lambda: depth(channel, "leash.dead.a") == 1)  # by a channel that is used again
        on_the_queue(broker, channel, "leash.dead.a", "stop_server")
        try:
            publish(channel, "a", [b"bad 1", b"once a"])
            until(lambda: seen[b"bad 1"] == 2 and seen[b"once a"] == 2)
            publish(channel, "b", [b"once b", b"bad 2"])
            until(lambda: depth(channel, "leash.dead.b") == 1)
            until(lambda: seen[b"once b"] == 2)
            assert consumer.stats().queues["a"].unsettled == 1
            time.sleep(11)  # longer than anybody waits for a confirm
            assert "leash.dead.a" in str(consumer.stats().republish_trouble)
        finally:
            on_the_queue(broker, channel, "leash.dead.a", "restart_server")
        until(lambda: consumer.stats().queues["a"].unsettled == 0, 40)
        assert consumer.stats().republish_trouble is None
    assert depth(channel, "leash.dead.a") == 2
    assert seen == {b"bad 0": 2, b"bad 1": 2, b"bad 2": 2, b"once a": 2, b"once b": 2}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    "error",
    [
        ValueError(os.fsdecode(b"caf\xe9.txt")),
        ValueError("lone \ud800"),
        Unprintable(),
        ValueError("é" * 200_000),
        KeyError(),
    ],
    ids=["not utf-8", "half a pair", "unprintable", "long", "empty"],
)
def test_any_error_can_be_parked(channel: Channel, uri: str, error: Exception) -> None:
    fill(channel, "q", 1)
    tries: list[int] = []
    consumer = Consumer(uri, ["q"], retry=Retry(2, delay=0.05))

    @consumer.handler
    def work(message: Message) -> None:
        tries.append(message.tries)
        raise error

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
    assert tries == [0, 1]
    parked = channel.get("leash.dead.q")
    assert parked is not None
    headers = decode_properties(parked.properties).headers or {}
    assert str(headers["x-leash-error"]).startswith(type(error).__name__)


@pytest.mark.parametrize(
    ("headers", "routing_key", "most"),
    [
        ({"x-leash-tries": -3}, "k", 3),
        ({"x-leash-tries": 2**63 - 1}, "k", 1),
        ({"x-leash-tries": "many"}, "k", 3),
        ({"big": "x" * 126_000}, "k", 3),
        ({"big": "x" * 130_800}, "k", 3),
        ({}, b"caf\xe9".decode("utf-8", "surrogateescape"), 3),
    ],
    ids=["less than none", "too many", "text", "large headers", "as large as a frame", "address not utf-8"],
)
def test_any_message_can_be_parked(
    channel: Channel, uri: str, headers: dict[str, Any], routing_key: str, most: int
) -> None:
    declare_exchange(channel, "all", kind="fanout")
    declare_queue(channel, "q")
    bind_queue(channel, "q", "all", "")
    with Publisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"bad", "all", routing_key, Properties(headers=headers))])
        publisher.publish([Outgoing(b"fine", "all", "k")])
    seen: Counter[bytes] = Counter()
    keys: set[str] = set()
    consumer = Consumer(uri, ["q"], retry=Retry(3, delay=0.05, factor=2))

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.body] += 1
        if message.body == b"bad":
            keys.add(message.routing_key)
            raise ValueError("é" * 10_000)

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
        until(lambda: consumer.stats().queues["q"].unsettled == 0)
    assert 1 <= seen[b"bad"] <= most
    assert seen[b"fine"] == 1
    assert keys == {routing_key}
    parked = channel.get("leash.dead.q")
    assert parked is not None
    assert parked.body == b"bad"


def test_what_failed_cannot_be_settled_by_hand_any_more(channel: Channel, uri: str) -> None:
    fill(channel, "q", 1)
    kept: list[Message] = []
    consumer = Consumer(uri, ["q"], retry=Retry(2, delay=0.3))

    @consumer.handler
    def work(message: Message) -> None:
        kept.append(message)
        raise ValueError("no")

    with running(consumer):
        until(lambda: consumer.stats().queues["q"].counts.get("failed") == 1)
        assert kept[0].settled
        assert not kept[0].ack()
        assert not kept[0].requeue()
        until(lambda: depth(channel, "leash.dead.q") == 1)
    assert len(kept) == 2
    assert depth(channel, "q") == 0


def test_an_ordered_queue_goes_on_only_when_what_failed_is_parked(
    channel: Channel, uri: str, broker: Broker
) -> None:
    fill(channel, "q", 4, arguments={"x-single-active-consumer": True})
    order: list[bytes] = []
    consumer = Consumer(uri, [Queue("q", ordered=True)], retry=None)

    @consumer.handler
    def work(message: Message) -> None:
        order.append(message.body)
        if message.body == b"1":
            raise ValueError("never")

    broker.ctl("set_vm_memory_high_watermark", "0.0000001")
    try:
        with running(consumer):
            until(lambda: len(order) == 2)
            time.sleep(1)
            assert order == [b"0", b"1"]
            broker.ctl("set_vm_memory_high_watermark", "0.4")
            until(lambda: len(order) == 4, 40)
            assert depth(channel, "leash.dead.q") == 1
    finally:
        broker.ctl("set_vm_memory_high_watermark", "0.4")
    assert order == [b"0", b"1", b"2", b"3"]
