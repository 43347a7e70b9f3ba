"""Moves messages from a queue to an exchange, while publishers and consumers go on.

The rule: a message is acked once the broker has confirmed its copy. So a death in between repeats a message,
and never loses one; without a death, nothing is lost or repeated.

A copy is the message itself, without what the broker would refuse or repeat it for: the publisher's name, CC
and BCC. While the broker blocks publishers, messages are kept instead of given back: each return would count
towards the delivery limit of a quorum queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from leash.amqp import Channel, Deliveries, Outgoing, Publisher, connect, with_headers
from leash.amqp.properties import NONE
from leash.amqp.publish import refused
from leash.amqp.rescue import COUNTS
from leash.amqp.settling import settled
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import AmqpError, Interrupted, ProtocolError, PublishError, Rejected
from leash.logfmt import logger

log = logger("leash.tenants")

PREFETCH = 200
_LOOK = 0.2  # seconds between two checks whether to leave
_EMPTY = 1.0  # seconds without a message after which a queue counts as empty
_BACKOFF = (0.1, 5.0)
_REMOVED = dict.fromkeys([*COUNTS, "CC", "BCC"])


class Feed:
    """Moves whatever comes to a queue, in a thread, until it is stopped. Connects again when it must."""

    def __init__(self, uri: str | Uri, queue: str, exchange: str) -> None:
        self.queue = queue
        self.moved = 0
        self.trouble = ""
        """Why it cannot go on now."""
        self._uri = uri
        self._exchange = exchange
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"leash-feed {queue}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Take no more messages; `stop` waits for the end."""
        self._left.set()

    def stop(self) -> None:
        self.leave()
        self._thread.join(15.0)

    def _run(self) -> None:
        backoff = Backoff(*_BACKOFF)
        while not self._left.is_set():
            try:
                pour(
                    self._uri,
                    self.queue,
                    self._exchange,
                    self._left.is_set,
                    lambda n: self._count(n, backoff),
                )
            except (AmqpError, Interrupted) as error:
                if str(error) != self.trouble:
                    log.warning("event=feed_interrupted queue=%r reason=%r", self.queue, str(error))
                self.trouble = str(error)
            except Exception:
                log.exception("event=feed_failed queue=%r", self.queue)
            self._left.wait(backoff.next())

    def _count(self, count: int, backoff: Backoff) -> None:
        self.moved += count
        self.trouble = ""
        backoff.reset()


def move(uri: str | Uri, queue: str, exchange: str, most: int) -> int:
    """Move up to about `most` messages, or until the queue is empty; returns how many."""
    moved = 0

    def count(n: int) -> None:
        nonlocal moved
        moved += n

    if most:
        pour(uri, queue, exchange, lambda: moved >= most, count, until_empty=True)
    return moved


def pour(
    uri: str | Uri,
    queue: str,
    exchange: str,
    left: Callable[[], bool],
    count: Callable[[int], None],
    until_empty: bool = False,
) -> None:
    """Move messages until `left()`; `count` gets how many, after each lot."""
    cancelled = threading.Event()
    with ExitStack() as stack:
        giving = stack.enter_context(connect(uri, name=f"leash feed {queue}"))
        taking = stack.enter_context(connect(uri, name=f"leash feed {queue}"))
        publisher = stack.enter_context(Publisher(giving))
        channel = stack.enter_context(taking.channel())
        channel.qos(PREFETCH)
        tag = channel.consume(queue, on_cancel=lambda _: cancelled.set())
        while not left():
            lot = channel.deliveries(_EMPTY if until_empty else _LOOK)
            if lot is not None:
                count(_carry(channel, publisher, lot, exchange, left))
            elif until_empty:
                break
            elif cancelled.is_set():
                raise Interrupted(f"the broker ended the consumer of queue {queue!r}: was it deleted?")
        if not cancelled.is_set():
            channel.cancel(tag)
            while (lot := channel.deliveries(0)) is not None:
                count(_carry(channel, publisher, lot, exchange, left))
            settled([(channel, queue)])


def _carry(
    channel: Channel, publisher: Publisher, lot: Deliveries, exchange: str, left: Callable[[], bool]
) -> int:
    copies = [
        Outgoing(body, exchange, key, _properties(raw), mandatory=True)
        for body, key, raw in zip(lot.bodies, lot.routing_keys, lot.properties, strict=True)
    ]
    try:
        _publish(publisher, copies, left)
    except Rejected as error:
        for tag, back in zip(lot.tags, refused(copies, error.messages or ()), strict=True):
            (channel.nack if back else channel.ack)(tag)
        raise
    channel.ack(lot.tags[-1], multiple=True)
    return len(copies)


def _publish(publisher: Publisher, copies: list[Outgoing], left: Callable[[], bool]) -> None:
    """Returns when all are confirmed. A broker that blocks publishers, or is slow, is waited for."""
    pause = threading.Event()
    while publisher.connection.blocked is not None and not left():
        pause.wait(_LOOK)
    try:
        publisher.publish(copies)
        return
    except Rejected:
        raise
    except PublishError:
        if publisher.unconfirmed is None:
            raise
    while not left():
        try:
            publisher.wait()
            return
        except Rejected:
            raise
        except PublishError:
            continue
    raise Interrupted("left while the broker had not confirmed all copies: some may be repeated")


def _properties(raw: bytes) -> bytes:
    try:
        return with_headers(raw or NONE, _REMOVED, without=("user_id",))
    except ProtocolError:  # malformed: it goes on as it came
        return raw
