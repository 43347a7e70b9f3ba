"""Copies of failed messages: what is in the way of one holds up no other, and none is lost or repeated."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leash import Breaker, Consumer, Message, Queue, Retry
from leash.amqp import Channel, Connection, Outgoing, Properties, Publisher, decode_properties
from leash.amqp.topology import bind_queue, declare_exchange, declare_queue
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.consumer.copy_courier import Courier, Republisher
from leash.lab.proxy import Proxy
from tests.admin import memory_alarm, unblock
from tests.consumer.kit import depth, fill, publish, running, until


def on_the_queue(broker: Broker, channel: Channel, name: str, what: str) -> None:
    """Something done to the process of a quorum queue."""
    vhost = channel.connection.uri.vhost
    found = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"{name}">>))'
    done = f"ra:{what}(quorum_queues, amqqueue:get_pid(Q))"
    if what in ("suspend", "resume"):
        done = f"sys:{what}(element(1, amqqueue:get_pid(Q)))"
    broker.eval(f"{found}, {done}.")


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
        until(lambda: consumer.stats().queues["a"].unsettled == 0)
        assert consumer.stats().republish_trouble is None
    assert depth(channel, "leash.dead.a") == 2
    assert seen == {b"bad 0": 2, b"bad 1": 2, b"bad 2": 2, b"once a": 2, b"once b": 2}


def test_copies_that_were_taken_are_not_repeated_when_their_queue_is_deleted_amid_them(
    channel: Channel, uri: str
) -> None:
    declare_queue(channel, "there")  # "gone" is not: each copy meets one or the other, and not by luck
    confirmed: list[Message] = []
    mended: list[Connection] = []

    def mend(connection: Connection, _: str | None) -> None:
        mended.append(connection)
        with connection.channel() as declaring:
            declare_queue(declaring, "gone")

    office = Republisher(parse(uri), "tests", confirmed.append, mend)
    link = SimpleNamespace(alive=True)
    names = ["there", "gone", "gone", "there", "gone"]
    messages = [cast(Message, SimpleNamespace(link=link)) for _ in names]
    office.pending = len(names)
    batch = [
        (message, Outgoing(b"the same", "", name, Properties(headers={"n": n}), mandatory=True))
        for n, (message, name) in enumerate(zip(messages, names, strict=True))
    ]
    Courier(office, "there or gone").deliver(batch)
    office.stop()
    assert len(mended) == 1
    assert (depth(channel, "there"), depth(channel, "gone")) == (2, 3)
    assert sorted(map(id, confirmed)) == sorted(map(id, messages))
    assert office.pending == 0


def test_copies_that_were_taken_are_not_repeated_when_the_connection_is_lost_amid_them(
    channel: Channel, uri: str, broker: Broker
) -> None:
    declare_queue(channel, "quick")
    declare_queue(channel, "stuck", kind="quorum")
    confirmed: list[Message] = []
    link = SimpleNamespace(alive=True)
    batch = [
        (cast(Message, SimpleNamespace(link=link)), Outgoing(b"x", "", name, mandatory=True))
        for name in ["quick", "stuck", "quick"]
    ]
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        place = replace(parse(uri), hosts=(("127.0.0.1", proxy.port),))
        office = Republisher(place, "tests", confirmed.append, lambda *_: None)
        office.pending = 1 + len(batch)
        courier = Courier(office, "quick or stuck")
        courier.deliver(batch[1:2])  # so that its channel knows the queue
        confirmed.clear()
        on_the_queue(broker, channel, "stuck", "suspend")
        thread = threading.Thread(target=courier.deliver, args=(batch,), daemon=True)
        thread.start()
        until(lambda: (out := courier._publisher) is not None and out.unconfirmed == [batch[1][1]])
        assert not confirmed
        proxy.cut()
        until(lambda: len(confirmed) == 2)
        on_the_queue(broker, channel, "stuck", "resume")
        thread.join(120)
        assert not thread.is_alive()
        office.stop()
    assert depth(channel, "quick") == 2
    assert depth(channel, "stuck") >= 2  # whether it got there before the cut, too, is not known
    assert len(confirmed) == 3
    assert office.pending == 0


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
        until(lambda: depth(channel, "leash.dead.q") == 1 and seen[b"fine"])
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

    with memory_alarm(broker):
        with running(consumer):
            until(lambda: len(order) == 2)
            time.sleep(1)
            assert order == [b"0", b"1"]
            unblock(broker)
            until(lambda: len(order) == 4)
            assert depth(channel, "leash.dead.q") == 1
    assert order == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("how", ["a breaker", "no delay"])
def test_a_message_that_its_own_full_queue_does_not_take_again_makes_no_standstill(
    channel: Channel, uri: str, how: str
) -> None:
    """While its copy waited for room, it would fill the window, and so there would never be room."""
    declare_queue(channel, "q", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    publish(channel, "q", [b"0"])
    began, full = threading.Event(), threading.Event()
    done: list[bytes] = []
    breaker = Breaker(failures=1, probe=0.1) if how == "a breaker" else None
    retry = Retry(tries=9, delay=0 if how == "no delay" else 1.0)
    consumer = Consumer(uri, [Queue("q", window=1)], workers=1, breaker=breaker, retry=retry)

    @consumer.handler
    def work(message: Message) -> None:
        began.set()
        assert full.wait(120)
        if consumer.stats().republish_trouble is None:
            raise ConnectionError("it is away")
        done.append(message.body)

    with running(consumer):
        assert began.wait(120)
        publish(channel, "q", [b"1", b"2", b"3"])
        full.set()
        until(lambda: set(done) == {b"0", b"1", b"2", b"3"}, 60)
