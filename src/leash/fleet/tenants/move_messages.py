"""Moves messages from a queue to an exchange, while publishers and consumers go on.

The rule: a message is acked once the broker has confirmed its copy. So a death in between repeats a message,
and never loses one; without a death, nothing is lost or repeated.

A copy is the message itself, without what the broker would refuse or repeat it for: the publisher's name, CC
and BCC. While it cannot be published (the broker blocks publishers, a lane is full, the exchange is gone),
messages are kept instead of given back: each return would count towards the delivery limit of a quorum queue.
One that was returned too often all the same is rescued: see `leash.amqp.delivery_limit`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

from leash.amqp import (
    Channel,
    Connection,
    Deliveries,
    Outgoing,
    Publisher,
    connect,
    delivery_limit,
    with_headers,
)
from leash.amqp.last_acks import settled
from leash.amqp.properties import NONE
from leash.amqp.publish import refused
from leash.amqp.queue_traits import traits
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import AmqpError, ChannelError, Interrupted, ProtocolError, PublishError, Rejected
from leash.logfmt import logger

log = logger("leash.tenants")

PREFETCH = 200
_LOOK = 0.2  # seconds between two checks whether to leave
_EMPTY = 1.0  # seconds without a message after which a queue counts as empty
_BACKOFF = (0.1, 5.0)
_REMOVED = dict.fromkeys([*delivery_limit.COUNTS, "CC", "BCC"])


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
                    self._in_trouble,
                )
            except (AmqpError, Interrupted) as error:
                self._in_trouble(error)
            except Exception:
                log.exception("event=feed_failed queue=%r", self.queue)
            self._left.wait(backoff.next())

    def _in_trouble(self, error: Exception) -> None:
        if str(error) != self.trouble:
            log.warning("event=feed_interrupted queue=%r reason=%r", self.queue, str(error))
        self.trouble = str(error)

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
        pour(uri, queue, exchange, lambda: moved >= most, count)
    return moved


def pour(
    uri: str | Uri,
    queue: str,
    exchange: str,
    left: Callable[[], bool],
    count: Callable[[int], None],
    trouble: Callable[[Exception], None] | None = None,
) -> None:
    """Move messages until `left()`; `count` gets how many, after each lot.

    With `trouble`, which gets the reason, it waits for messages and for whatever they cannot be published
    for; without, it returns once the queue is empty, and raises.
    """
    cancelled = threading.Event()
    with ExitStack() as stack:
        giving = stack.enter_context(connect(uri, name=f"leash feed {queue}"))
        taking = stack.enter_context(connect(uri, name=f"leash feed {queue}"))
        channel = stack.enter_context(taking.channel())
        carrier = _Carrier(giving, channel, queue, exchange, left, trouble)
        channel.qos(PREFETCH)
        tag = channel.consume(queue, on_cancel=lambda _: cancelled.set())
        while not left():
            lot = channel.deliveries(_LOOK if trouble else _EMPTY)
            if lot is not None:
                count(carrier.carry(lot))
            elif trouble is None:
                break
            elif cancelled.is_set():
                raise Interrupted(f"the broker ended the consumer of queue {queue!r}: was it deleted?")
        if not cancelled.is_set():
            channel.cancel(tag)
            while (lot := channel.deliveries(0)) is not None:
                count(carrier.carry(lot))
            settled([(channel, queue)])


class _Carrier:
    """Publishes what came and acks what was confirmed; keeps the rest, and tries it again."""

    def __init__(
        self,
        giving: Connection,
        channel: Channel,
        queue: str,
        exchange: str,
        left: Callable[[], bool],
        trouble: Callable[[Exception], None] | None,
    ) -> None:
        self._giving, self._channel = giving, channel
        self._queue, self._exchange = queue, exchange
        self._left, self._trouble = left, trouble
        self._publisher = Publisher(giving)
        told = traits(channel.connection, queue)
        self._danger = delivery_limit.danger(delivery_limit.limit_of(told, channel.connection.version))

    def carry(self, lot: Deliveries) -> int:
        """Returns how many were moved: all, unless it had to leave while some could not be."""
        copies = [
            Outgoing(body, self._exchange, key, _properties(raw), mandatory=True)
            for body, key, raw in zip(lot.bodies, lot.routing_keys, lot.properties, strict=True)
        ]
        held = list(zip(lot.tags, copies, strict=True))
        backoff, pause = Backoff(*_BACKOFF), threading.Event()
        rescued: set[int] = set()
        while True:
            try:
                self._publish([copy for _, copy in held])
                break
            except (Rejected, ChannelError) as error:
                messages = error.messages if isinstance(error, Rejected) else self._publisher.unconfirmed
                held = self._ack(held, None if messages is None else list(messages))
                rescued |= self._rescue(lot, {tag for tag, _ in held})
                held = [each for each in held if each[0] not in rescued]
                if self._trouble is None or self._left() or self._channel.closed:
                    for tag, _ in held:
                        self._channel.nack(tag)
                    raise
                self._trouble(error)
            pause.wait(backoff.next())
        if len(held) == len(lot):
            self._channel.ack(lot.tags[-1], multiple=True)
        else:
            self._ack(held, [])
        return len(lot) - len(rescued)

    def _ack(
        self, held: list[tuple[int, Outgoing]], messages: list[object] | None
    ) -> list[tuple[int, Outgoing]]:
        """Ack what was published; returns the others. None: nobody knows which were."""
        if messages is None:
            return held
        not_taken = refused([copy for _, copy in held], messages)
        for (tag, _), no in zip(held, not_taken, strict=True):
            if not no:
                self._channel.ack(tag)
        return [each for each, no in zip(held, not_taken, strict=True) if no]

    def _rescue(self, lot: Deliveries, held: set[int]) -> set[int]:
        """Copy messages that the broker would soon drop to the end of their queue, and ack them."""
        copies: dict[int, Outgoing] = {}
        for tag, body, raw in zip(lot.tags, lot.bodies, lot.properties, strict=True):
            if tag in held and delivery_limit.delivery_count(raw) >= self._danger:
                with suppress(ProtocolError):  # malformed: nothing can be said in its headers
                    copies[tag] = delivery_limit.copy(self._queue, body, raw)
        if not copies:
            return set()
        try:
            with Publisher(self._giving) as publisher:
                publisher.publish(copies.values())
        except (PublishError, ChannelError) as error:
            log.warning("event=cannot_rescue queue=%r reason=%r", self._queue, str(error))
            return set()
        for tag in copies:
            self._channel.ack(tag)
        log.warning("event=rescued queue=%r messages=%d", self._queue, len(copies))
        return set(copies)

    def _publish(self, copies: list[Outgoing]) -> None:
        """Return when all are confirmed. Waits for a broker that blocks publishers, or is slow."""
        pause = threading.Event()
        while self._giving.blocked is not None and not self._left():
            pause.wait(_LOOK)
        if self._publisher.closed:  # the exchange was missing, or forbidden
            self._publisher = Publisher(self._giving)
        try:
            self._publisher.publish(copies)
            return
        except Rejected:
            raise
        except PublishError:
            if self._publisher.unconfirmed is None:
                raise
        while not self._left():
            try:
                self._publisher.wait()
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
