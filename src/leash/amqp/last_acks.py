"""Acks that are followed by the end of their channel.

RabbitMQ's channel has at most 33 settlements on their way to a quorum queue, each a frame's worth for one
consumer, or for one get. It holds back those that come meanwhile, until the queue has written some to disk.
If the channel ends first, it forgets them. So the messages come back, although they were acked and there was
no error. A round trip on the channel does not help, since it does not reach the queue.

Starting and ending a consumer does reach the queue, behind all that was sent. Once that is done, the channel
knows what was applied, and has sent what it held back. When it is done again, that has been applied, too.

Such a consumer may take a message, which then goes back once more. One that the broker would drop for that is
rescued instead: see `rescue`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from pamqp import commands

from leash.amqp import delivery_limit, wire
from leash.amqp.channel import REPLY_TIMEOUT, Channel, Reply
from leash.amqp.connection import connect
from leash.amqp.publish import Publisher
from leash.amqp.queue_traits import traits
from leash.amqp.wire import Deliveries
from leash.errors import AmqpError
from leash.logfmt import logger

log = logger(__name__)

AT_ONCE = 32
"""So many settlements are never kept back: whoever has sent no more of them may just close."""

_LAST = -1000  # the consumer's priority: where others have room, it takes nothing from them
_PATIENCE = 10.0  # seconds for the confirm of a rescue
_TAGS = ("leash-~1", "leash-~2")  # behind those of Spark's tasks: what goes back does so in their order
_Consume = wire.unchecked(commands.Basic.Consume)


class Taken(NamedTuple):
    channel: Channel
    tag: int
    queue: str
    body: bytes
    properties: bytes


def settled(channels: Iterable[tuple[Channel, str]], timeout: float = REPLY_TIMEOUT) -> list[Taken]:
    """Wait until all that was settled on these channels, each of one queue, has been applied.

    Their own consumers must have ended. A message or two may come: this rescues those that must not go back,
    and returns the others, which go back with their channel. Where a channel ends meanwhile, or does not
    answer in time, nobody can know.
    """
    channels = list(channels)
    taken: list[Taken] = []
    deadline = time.monotonic() + timeout
    for tag in _TAGS:
        for step in (
            _start,
            _end,
        ):  # a channel of RabbitMQ's dies of a cancel that comes before its consume-ok
            asked: list[Reply] = []
            for channel, queue in channels:
                with suppress(AmqpError):
                    asked.append(step(channel, queue, tag, taken))
            for reply in asked:
                with suppress(AmqpError):
                    reply(max(0.0, deadline - time.monotonic()))
    return [each for each in taken if not _rescued(each)]


def _rescued(taken: Taken) -> bool:
    """Copy a message to the end of its queue, and ack it, if it was returned as often as its queue allows."""
    count = delivery_limit.delivery_count(taken.properties)
    if not count:
        return False
    link = taken.channel.connection
    try:
        told = traits(link, taken.queue)
        limit = delivery_limit.limit_of(told, link.version)
        if limit is None or count < limit or (told is not None and told.kind != "quorum"):
            return False
        with connect(link.uri, name="leash rescue") as own, Publisher(own, timeout=_PATIENCE) as publisher:
            publisher.publish([delivery_limit.copy(taken.queue, taken.body, taken.properties)])
        taken.channel.ack(taken.tag)
    except AmqpError as error:
        log.warning("event=cannot_rescue queue=%r reason=%r", taken.queue, str(error))
        return False
    log.info("event=rescued queue=%r messages=1", taken.queue)
    return True


def _start(channel: Channel, queue: str, tag: str, taken: list[Taken]) -> Reply:
    def take(lot: Deliveries) -> None:
        rows = zip(lot.tags, lot.bodies, lot.properties, strict=True)
        taken.extend([Taken(channel, each, queue, body, properties) for each, body, properties in rows])

    channel.expect_consumer(tag, take)
    channel.ask(commands.Basic.Qos(0, 1, False), commands.Basic.QosOk)
    consume = _Consume(0, queue, tag, False, False, False, False, {"x-priority": _LAST})
    return channel.ask(consume, commands.Basic.ConsumeOk)


def _end(channel: Channel, _: str, tag: str, __: list[Taken]) -> Reply:
    return channel.ask(commands.Basic.Cancel(tag, False), commands.Basic.CancelOk)
