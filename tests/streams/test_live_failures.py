"""A failed message of a stream: tried in place, then parked; and what cannot be done with it."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from leash import Breaker, Consumer, Message, Retry, Stream
from leash.amqp import Channel, connect
from leash.consumer.dead_queue import send_back
from leash.errors import ConfigError
from leash.streams import (
    Connection,
    query_offset,
)
from tests.consumer.kit import depth, running, until
from tests.streams.kit import made, numbers


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failing_message_is_tried_in_place_then_parked_and_the_stream_goes_on(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int, ordered: bool
) -> None:
    made(streams, stream_uri, s=200)
    tries: Counter[int | None] = Counter()
    order: list[int | None] = []
    consumer = Consumer(
        uri,
        streams=[Stream("s", ordered=ordered)],
        name="n",
        workers=1 if ordered else 4,
        retry=Retry(tries=3, delay=0.01),
        stream_port=port,
    )

    @consumer.handler
    def work(message: Message) -> None:
        tries[message.offset] += 1
        assert message.tries == tries[message.offset] - 1
        if message.offset in (5, 6, 100):
            raise ValueError("never")
        if message.offset == 50 and not message.tries:
            raise ValueError("once")
        order.append(message.offset)

    with running(consumer):
        until(lambda: len(order) == 197 and depth(channel, "leash.dead.s") == 3)
    assert {offset: count for offset, count in tries.items() if count > 1} == {5: 3, 6: 3, 50: 2, 100: 3}
    if ordered:
        assert order == [offset for offset in range(200) if offset not in (5, 6, 100)]
    assert query_offset(streams, "n", "s") == 199
    parked = channel.get("leash.dead.s")
    assert parked is not None
    assert parked.body in (b"5", b"6", b"100")


@pytest.mark.parametrize("ordered", [True, False])
def test_an_outage_with_a_breaker_parks_nothing(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int, ordered: bool
) -> None:
    made(streams, stream_uri, s=50)
    done: list[int | None] = []
    works = threading.Event()
    consumer = Consumer(
        uri,
        streams=[Stream("s", ordered=ordered)],
        name="n",
        retry=Retry(tries=20, delay=0.01),
        breaker=Breaker(failures=1, probe=0.05),
        stream_port=port,
    )

    @consumer.handler
    def work(message: Message) -> None:
        if not works.is_set():
            raise ValueError("down")
        done.append(message.offset)

    with running(consumer):
        until(lambda: consumer.stats().queues["s"].counts.get("excused", 0) > 20)
        works.set()
        until(lambda: len(done) == 50)
    assert sorted(done) == list(range(50))  # type: ignore[type-var]
    assert not ordered or done == list(range(50))
    assert depth(channel, "leash.dead.s") == 0


def test_a_parked_message_that_is_sent_back_comes_again_at_the_end(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=10)
    seen: list[bytes] = []
    consumer = Consumer(uri, streams=["s"], name="n", retry=None, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"3" and seen.count(b"3") == 1:
            raise ValueError("once")

    with running(consumer), connect(uri) as publishing:
        until(lambda: len(seen) == 10 and depth(channel, "leash.dead.s") == 1)
        assert send_back(channel.connection, publishing, "s") == 1
        until(lambda: len(seen) == 11)
    assert seen == [*numbers(10), b"3"]


def test_discarded_messages_are_skipped(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=20)
    consumer = Consumer(
        uri, streams=["s"], name="n", retry=None, on_exhausted="discard", stream_port=port, workers=3
    )

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError(message.offset)

    with running(consumer):
        until(lambda: consumer.stats().queues["s"].counts.get("discarded") == 20)
    assert query_offset(streams, "n", "s") == 19


@pytest.mark.parametrize("verb", ["requeue", "reject"])
def test_a_message_cannot_be_given_back(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int, verb: str
) -> None:
    made(streams, stream_uri, s=1)
    errors: list[str] = []
    consumer = Consumer(uri, streams=["s"], name="n", retry=None, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        try:
            getattr(message, verb)()
        except ConfigError as error:
            errors.append(str(error))
            raise

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.s") == 1)
    assert errors == [f"{verb}='s': not for a stream, which takes no message back: ack it, or raise"]


def test_a_message_settled_by_hand(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=10)
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    got: list[bool] = []
    consumer.handler(lambda message: got.extend([message.ack(), message.ack()]))
    with running(consumer):
        until(lambda: len(got) == 20)
    assert got == [True, False] * 10
    assert query_offset(streams, "n", "s") == 9
