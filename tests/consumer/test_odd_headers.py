"""Headers that hardly anything can read: their messages are retried and parked like any other."""

from __future__ import annotations

from contextlib import suppress

import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, Outgoing, Publisher, read_header, with_headers
from leash.amqp.topology import bind_queue, declare_exchange, declare_queue
from tests.amqp.odd import long, nested, with_table
from tests.consumer.kit import depth, running, until

ODD = {
    "500 tables": nested(500, "table"),
    "500 arrays": nested(500, "array"),
    "3000 of both": nested(3_000, "both"),  # RabbitMQ itself takes seconds for ten times that
    "a name that is not UTF-8": b"F" + long(b"\x02\xff\xfet\x01"),
    "an impossible date": b"T" + b"\xff" * 8,
}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("odd", ODD)
def test_a_message_with_odd_headers_is_retried_and_parked_with_all_of_them(
    channel: Channel, uri: str, kind: str, odd: str
) -> None:
    declare_exchange(channel, "orders", kind="topic")
    declare_queue(channel, "q", kind=kind)
    bind_queue(channel, "q", "orders", "#")
    raw = with_table((b"odd", ODD[odd]), (b"tenant", b"I\x00\x00\x00\x07"))
    mortal = with_table(
        *((b"odd", ODD[odd]), (b"tenant", b"I\x00\x00\x00\x07")), others=b"\x0560000\x03m-1", flags=0x2180
    )
    assert with_headers(mortal, {}, without=("expiration",)) == raw
    with Publisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"bad", "orders", "eu.new", mortal, mandatory=True)])
    seen: list[tuple[int, str, str, object]] = []
    spec = Queue("q", kind=kind)  # type: ignore[arg-type]
    consumer = Consumer(uri, [spec], retry=Retry(tries=3, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        with suppress(KeyError):
            seen.append((message.tries, message.exchange, message.routing_key, message.headers["tenant"]))
        raise ValueError("no such customer")

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)
    assert seen == [(tries, "orders", "eu.new", 7) for tries in range(3)]
    parked = channel.get("leash.dead.q")
    assert parked is not None
    assert read_header(parked.properties, "x-leash-tries") == 3
    ours = dict.fromkeys(
        ["x-leash-tries", "x-leash-exchange", "x-leash-routing-key", "x-leash-error", "x-leash-queue"]
    )
    deaths = dict.fromkeys(
        [
            "x-death",
            *(f"x-{n}-death-{what}" for n in ("first", "last") for what in ("exchange", "queue", "reason")),
        ]
    )
    counts = {"x-leash-traceback": None, "x-delivery-count": None, "x-acquired-count": None}
    assert with_headers(parked.properties, ours | deaths | counts) == raw
