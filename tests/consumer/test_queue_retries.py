"""Quorum queues of RabbitMQ 4.3 that delay what is rejected to them: retries without copies."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, decode_properties
from leash.amqp.queue_traits import traits
from leash.amqp.topology import declare_queue, state
from leash.errors import ConfigError, NotFound
from tests.consumer.kit import depth, publish, running, until

DELAYS = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 200, "x-delayed-retry-max": 300}


@pytest.fixture
def queue(channel: Channel) -> str:
    if channel.connection.version < (4, 3):
        pytest.skip("queues delay retries since RabbitMQ 4.3")
    declare_queue(channel, "q", kind="quorum", arguments=DELAYS)
    return "q"


def test_the_arguments_are_seen_and_a_missing_queue_stays_missing(channel: Channel, queue: str) -> None:
    connection = channel.connection
    told = traits(connection, queue)
    assert told is not None
    assert (told.kind, told.arguments, told.delays) == ("quorum", DELAYS, True)
    limited = {**DELAYS, "x-delivery-limit": 7, "x-queue-leader-locator": "balanced"}
    declare_queue(channel, "limited", kind="quorum", arguments=limited)
    told = traits(connection, "limited")
    assert told is not None
    assert told.arguments == limited
    declare_queue(channel, "no time", kind="quorum", arguments={"x-delayed-retry-type": "failed"})
    returned = {"x-delayed-retry-type": "returned", "x-delayed-retry-min": 10}
    declare_queue(channel, "returned", kind="quorum", arguments=returned)
    declare_queue(channel, "plain", kind="quorum")
    for name in ("no time", "returned", "plain"):
        told = traits(connection, name)
        assert told is not None
        assert not told.delays, name
    with pytest.raises(NotFound):
        traits(connection, "missing")
    with pytest.raises(NotFound), connection.channel() as other:
        state(other, "missing")


def test_a_failed_message_comes_again_from_its_own_queue(channel: Channel, uri: str, queue: str) -> None:
    consumer = Consumer(uri, [queue])
    seen: list[tuple[int, float]] = []

    @consumer.handler
    def work(message: Message) -> None:
        seen.append((message.tries, time.monotonic()))
        if message.tries < 3:
            raise ConnectionError("not yet")

    publish(channel, queue, [b"x"])
    with running(consumer):
        until(lambda: len(seen) == 4)
        until(lambda: consumer.stats().queues[queue].unsettled == 0)
        counts = consumer.stats().queues[queue].counts
    assert [tries for tries, _ in seen] == [0, 1, 2, 3]
    assert all(after - before >= 0.19 for (_, before), (_, after) in pairwise(seen))
    assert (counts["failed"], counts["retried"], counts["delayed"]) == (3, 3, 3)
    assert "republished" not in counts


def test_after_the_last_try_it_is_parked(channel: Channel, uri: str, queue: str) -> None:
    consumer = Consumer(uri, [queue], retry=Retry(tries=3))

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError("bad")

    publish(channel, queue, [b"x"])
    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
        counts = consumer.stats().queues[queue].counts
    got = channel.get("leash.dead.q")
    assert got is not None
    headers = decode_properties(got.properties).headers or {}
    assert (headers["x-leash-tries"], headers["x-leash-error"]) == (3, "ValueError: bad")
    assert (counts["failed"], counts["delayed"], counts["republished"]) == (3, 2, 1)


def test_before_the_broker_would_drop_it_copies_go_on(channel: Channel, uri: str) -> None:
    if channel.connection.version < (4, 3):
        pytest.skip("queues delay retries since RabbitMQ 4.3")
    arguments = {**DELAYS, "x-delayed-retry-min": 10, "x-delivery-limit": 6}
    declare_queue(channel, "q", kind="quorum", arguments=arguments)
    consumer = Consumer(uri, ["q"], retry=Retry(tries=9, delay=0.01))
    tries: list[int] = []

    @consumer.handler
    def work(message: Message) -> None:
        tries.append(message.tries)
        raise ValueError("bad")

    publish(channel, "q", [b"x"])
    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
        counts = consumer.stats().queues["q"].counts
    assert tries == list(range(9))
    assert (counts["failed"], counts["parked"]) == (9, 1)
    assert "rescued" not in counts


def test_what_a_dead_process_had_comes_again_and_counts_as_tried(
    channel: Channel, uri: str, queue: str
) -> None:
    begun, release = threading.Event(), threading.Event()
    consumer = Consumer(uri, [queue])

    @consumer.handler
    def hang(message: Message) -> None:
        begun.set()
        release.wait(60)

    publish(channel, queue, [b"x"])
    consumer.start()
    begun.wait(60)
    consumer.abandon()
    release.set()
    tries: list[int] = []
    other = Consumer(uri, [queue])

    @other.handler
    def work(message: Message) -> None:
        tries.append(message.tries)

    with running(other):
        until(lambda: tries)
        until(lambda: other.stats().queues[queue].unsettled == 0)
    assert tries == [1]


@pytest.mark.parametrize("what", ["failed", "returned", "all"])
def test_a_queue_that_keeps_back_what_comes_back_has_no_order(
    channel: Channel, uri: str, queue: str, what: str
) -> None:
    """A lost connection returns several messages, and those behind them do not wait."""
    arguments = {**DELAYS, "x-delayed-retry-type": what, "x-single-active-consumer": True}
    declare_queue(channel, "line", kind="quorum", arguments=arguments)
    consumer = Consumer(uri, [queue, Queue("line", ordered=True)])
    consumer.handler(lambda _: None)
    with pytest.raises(ConfigError, match=r"'line'.*x-delayed-retry-type"):
        consumer.start()
