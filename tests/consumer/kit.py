"""What the consumer's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leash import Consumer
from leash.amqp import Channel, Outgoing, Properties, Publisher
from leash.amqp.topology import declare_queue, state
from tests.waiting import until

TRANSIENT = Properties(delivery_mode=1)
"""What measures time is not to wait for a disk."""

__all__ = ["TRANSIENT", "depth", "fill", "numbered", "publish", "running", "until"]


def fill(channel: Channel, name: str, count: int, *, kind: str = "classic", arguments: object = None) -> None:
    """Declare a queue and put `count` messages with their number as body into it."""
    declare_queue(channel, name, kind=kind, arguments=arguments)  # type: ignore[arg-type]
    publish(channel, name, [str(number).encode() for number in range(count)])


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def publish(channel: Channel, name: str, bodies: list[bytes]) -> None:
    if bodies:
        with Publisher(channel.connection) as publisher:
            publisher.publish(Outgoing(body, "", name, TRANSIENT) for body in bodies)


def depth(channel: Channel, name: str) -> int:
    return state(channel, name).ready


@contextmanager
def running(consumer: Consumer) -> Iterator[Consumer]:
    consumer.start()
    try:
        yield consumer
    finally:
        consumer.stop()
