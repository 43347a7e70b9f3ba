"""Failed messages: later tries, the dead queue, and no hot loop."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, Outgoing, Properties, Publisher, decode_properties
from leash.amqp.topology import bind_queue, declare_exchange, declare_queue, delete_queue
from leash.amqp.uri import Uri
from leash.broker import Broker
from leash.consumer.copies import _properties
from leash.errors import ConfigError
from tests.admin import add_user, memory_alarm, remove_user
from tests.consumer.kit import depth, fill, publish, running, until


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_failing_message_comes_again_after_the_delay_and_is_parked_in_the_end(
    channel: Channel, uri: str, kind: str
) -> None:
    declare_exchange(channel, "orders", kind="topic")
    declare_queue(channel, "q", kind=kind)
    bind_queue(channel, "q", "orders", "#")
    with Publisher(channel.connection) as publisher:
        properties = Properties(headers={"tenant": 7}, message_id="m1", delivery_mode=2)
        publisher.publish([Outgoing(b"bad", "orders", "eu.new", properties)])
    times: list[float] = []
    seen: list[tuple[int, str, str, object]] = []
    spec = Queue("q", kind=kind)  # type: ignore[arg-type]
    consumer = Consumer(uri, [spec], retry=Retry(tries=3, delay=0.3))

    @consumer.handler
    def work(message: Message) -> None:
        times.append(time.monotonic())
        seen.append((message.tries, message.exchange, message.routing_key, message.headers["tenant"]))
        raise ValueError("no such customer")

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
        counts = consumer.stats().queues["q"].counts
    assert seen == [(tries, "orders", "eu.new", 7) for tries in range(3)]
    assert all(later - sooner >= 0.29 for sooner, later in pairwise(times))
    assert (counts["failed"], counts["retried"], counts["parked"]) == (3, 2, 1)
    parked = channel.get("leash.dead.q")
    assert parked is not None
    properties = decode_properties(parked.properties)
    headers = properties.headers or {}
    assert parked.body == b"bad"
    assert properties.message_id == "m1"
    assert headers["x-leash-error"] == "ValueError: no such customer"
    assert "in work" in str(headers["x-leash-traceback"])
    assert (headers["x-leash-exchange"], headers["x-leash-routing-key"]) == ("orders", "eu.new")
    assert (headers["x-leash-queue"], headers["x-leash-tries"], headers["tenant"]) == ("q", 3, 7)
    assert depth(channel, "q") == 0


def test_waits_grow_up_to_the_cap_and_each_has_its_queue(channel: Channel, uri: str) -> None:
    retry = Retry(tries=6, delay=0.1, factor=2, cap=0.3)
    assert [retry.wait(failures) for failures in range(1, 7)] == [100, 200, 300, 300, 300, None]
    declare_queue(channel, "q")
    consumer = Consumer(uri, ["q"], retry=retry)
    consumer.handler(lambda _: None)
    with running(consumer):
        for wait in (100, 200, 300):
            assert depth(channel, f"leash.retry.q.{wait}") == 0


@pytest.mark.parametrize(("mode", "dead"), [("reject", 1), ("discard", 0)])
def test_what_is_exhausted_is_rejected_or_discarded_when_asked_for(
    channel: Channel, uri: str, mode: str, dead: int
) -> None:
    declare_queue(channel, "dlq")
    fill(channel, "q", 1, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"})
    tries: list[int] = []
    consumer = Consumer(uri, ["q"], retry=Retry(2, delay=0.05), on_exhausted=mode)  # type: ignore[arg-type]

    @consumer.handler
    def work(message: Message) -> None:
        tries.append(message.tries)
        raise OSError("still down")

    with running(consumer):
        until(lambda: len(tries) == 2)
        until(lambda: consumer.stats().queues["q"].unsettled == 0)
        until(lambda: (depth(channel, "q"), depth(channel, "dlq")) == (0, dead))


def test_without_retry_a_message_is_tried_once(channel: Channel, uri: str) -> None:
    fill(channel, "q", 5)
    seen: Counter[bytes] = Counter()
    consumer = Consumer(uri, ["q"], retry=None)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.body] += 1
        raise KeyError(message.body)

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 5)
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_nothing_overtakes_what_an_ordered_lane_requeues(channel: Channel, uri: str, kind: str) -> None:
    fill(channel, "q", 6, kind=kind, arguments={"x-single-active-consumer": True})
    consumer = Consumer(uri, [Queue("q", ordered=True)], workers=4)
    began: list[tuple[bytes, bool]] = []

    @consumer.handler
    def work(message: Message) -> None:
        began.append((message.body, message.redelivered))
        if len(began) < 30 and message.body == b"2":
            assert message.requeue()
            assert not message.requeue()

    with running(consumer):
        until(lambda: began and began[-1][0] == b"5")
        until(lambda: not consumer.stats().queues["q"].unsettled)
        assert consumer.stats().queues["q"].counts["requeued"] == 27
    again = [(b"2", True)] * 27
    assert began == [
        (b"0", False),
        (b"1", False),
        (b"2", False),
        *again,
        *[(b"%d" % n, False) for n in (3, 4, 5)],
    ]
    assert depth(channel, "q") == 0


def test_a_deleted_retry_queue_is_made_again(channel: Channel, uri: str) -> None:
    declare_queue(channel, "q")
    tries: list[int] = []
    consumer = Consumer(uri, ["q"], retry=Retry(2, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        tries.append(message.tries)
        if not message.tries:
            raise ValueError("again")

    with running(consumer):
        delete_queue(channel, "leash.retry.q.100")
        publish(channel, "q", [b"x"])
        until(lambda: tries == [0, 1])


def test_a_blocked_broker_holds_up_only_what_failed(channel: Channel, uri: str, broker: Broker) -> None:
    fill(channel, "q", 200)
    done: list[bytes] = []
    tries: Counter[int] = Counter()
    go = threading.Event()
    consumer = Consumer(uri, [Queue("q", window=50)], retry=Retry(2, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        go.wait(120)
        tries[message.tries] += 1
        if message.body in (b"3", b"70") and not message.tries:
            raise ValueError("again")
        done.append(message.body)

    with running(consumer):
        with memory_alarm(broker):
            go.set()
            until(lambda: len(done) >= 198)
            assert consumer.stats().republishing == 2
            assert tries[1] == 0
        until(lambda: len(done) == 200)
    assert tries[1] == 2
    assert sorted(done) == sorted(str(number).encode() for number in range(200))


def test_a_user_who_may_not_declare_is_told_at_the_start(channel: Channel, uri: str, broker: Broker) -> None:
    declare_queue(channel, "q")
    vhost = channel.connection.uri.vhost
    broker.management.ask("PUT", "/api/users/worker", {"password": "secret", "tags": ""})
    path = f"/api/permissions/{vhost}/worker"
    broker.management.ask("PUT", path, {"configure": "^$", "write": ".*", "read": ".*"})
    theirs = uri.replace(uri.split("@")[0], "amqp://worker:secret")
    consumer = Consumer(theirs, ["q"], retry=Retry(2, delay=0.1))
    consumer.handler(lambda _: None)
    with pytest.raises(ConfigError, match=r"leash\.retry\.q\.100.*configure"):
        consumer.start()
    fill(channel, "leash.retry.q.100", 0)
    fill(channel, "leash.dead.q", 0)
    again = Consumer(theirs, ["q"], retry=Retry(2, delay=0.1))
    again.handler(lambda _: None)
    with running(again):
        pass


def test_what_an_ordered_lane_is_done_with_cannot_be_requeued(channel: Channel, uri: str) -> None:
    fill(channel, "q", 2, arguments={"x-single-active-consumer": True})
    kept: list[Message] = []
    consumer = Consumer(uri, [Queue("q", ordered=True)])
    consumer.handler(kept.append)
    with running(consumer):
        until(lambda: len(kept) == 2 and not consumer.stats().queues["q"].unsettled)
        assert not kept[0].requeue()
        publish(channel, "q", [b"2"])
        until(lambda: len(kept) == 3)
    assert [message.body for message in kept] == [b"0", b"1", b"2"]


@pytest.fixture
def worker(broker: Broker, uri: str) -> Iterator[tuple[Uri, Callable[[str], object]]]:
    """A user, and what sets where he may write to."""
    yield add_user(broker, uri, ".*"), lambda where: add_user(broker, uri, ".*", where)
    remove_user(broker, uri)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_user_who_may_not_publish_is_told_at_the_start(
    channel: Channel, worker: tuple[Uri, Callable[[str], object]], ordered: bool
) -> None:
    theirs, may_write = worker
    fill(channel, "q", 1, arguments={"x-single-active-consumer": True} if ordered else None)
    may_write("^$")

    def consumer(**settings: Any) -> Consumer:
        made = Consumer(theirs, [Queue("q", ordered=ordered)], **settings)
        made.handler(lambda _: None)
        return made

    with pytest.raises(ConfigError, match="may write to the default exchange"):
        consumer(retry=None).start()
    assert depth(channel, "q") == 1
    with running(consumer(retry=None, on_exhausted="discard")):  # he needs no copies
        until(lambda: depth(channel, "q") == 0)
    may_write(".*")
    with running(consumer(retry=None)):
        pass
    assert depth(channel, "q") == 0  # asking left nothing behind


def test_an_ordered_queue_waits_at_what_this_user_may_not_park_and_says_so(
    channel: Channel, worker: tuple[Uri, Callable[[str], object]], caplog: pytest.LogCaptureFixture
) -> None:
    theirs, may_write = worker
    fill(channel, "q", 4, arguments={"x-single-active-consumer": True})
    order: list[bytes] = []
    go = threading.Event()
    consumer = Consumer(theirs, [Queue("q", ordered=True)], retry=None)

    @consumer.handler
    def work(message: Message) -> None:
        go.wait(120)
        order.append(message.body)
        if message.body == b"1":
            raise ValueError("never")

    with running(consumer):
        may_write("^$")
        go.set()
        waits = "an ordered queue with them, wait until this user may write"
        until(lambda: waits in str(consumer.stats().republish_trouble) and waits in caplog.text)
        assert consumer.stats().queues["q"].blocked
        assert order == [b"0", b"1"]
        may_write(".*")
        until(lambda: len(order) == 4)
        assert consumer.stats().republish_trouble is None
    assert order == [b"0", b"1", b"2", b"3"]
    assert depth(channel, "leash.dead.q") == 1


def test_copies_leave_out_what_would_lose_or_multiply_them(channel: Channel, uri: str) -> None:
    for name in ("q", "other"):
        declare_queue(channel, name)
    with Publisher(channel.connection) as publisher:
        properties = Properties(
            headers={"CC": ["other"], "tenant": 7},
            expiration="60000",
            user_id=channel.connection.uri.username,
            message_id="m1",
        )
        publisher.publish([Outgoing(b"bad", "", "q", properties)])
    consumer = Consumer(uri, ["q"], retry=Retry(2, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError("no")

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
    assert depth(channel, "other") == 1
    parked = channel.get("leash.dead.q")
    assert parked is not None
    found = decode_properties(parked.properties)
    assert (found.expiration, found.user_id, found.message_id) == (None, None, "m1")
    assert (found.headers or {})["tenant"] == 7


def test_a_message_with_malformed_properties_is_parked_with_its_body(uri: str) -> None:
    broken = b"\x20\x00\x00\x00\x00\x09\x03abcZ\x00\x00\x00\x00"  # a header of a type that does not exist
    assert _properties(broken, {"x-leash-tries": 1, "CC": None})
    kept = decode_properties(_properties(broken, {"x-leash-tries": 1, "CC": None}))
    assert kept.headers == {"x-leash-tries": 1}
