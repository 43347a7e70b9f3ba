"""Limbo: where messages that were redelivered too often wait until a worker begins with them.

`leash.amqp.delivery_limit` has the rule and its reasons. A delivery in danger never gets into a lane's
buffer: its copy goes to its queue's limbo. Only a worker that begins with a message at once takes it from
there, so a message that is back was really begun. After a few such rounds it is parked: it takes processes,
or connections, down with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from leash.amqp import Connection, delivery_limit
from leash.consumer.engine import Engine
from leash.consumer.failures import Failures
from leash.consumer.link import Link
from leash.consumer.message import Message
from leash.consumer.outbox import Outbox
from leash.consumer.raw_delivery import PROPERTIES, REDELIVERED, Raw
from leash.consumer.settings import Queue
from leash.errors import AmqpError, NeverSettled
from leash.flow import Dispatch, unbuffered_messages
from leash.logfmt import logger

log = logger("leash.consumer")

FATAL = 3
"""A message from limbo is parked when it is redelivered after this many workers had it."""

EVERY = 50_000_000
"""While other work waits, one message from limbo is begun per this many ns."""

PATIENCE = 5_000_000_000
"""While messages are on their way into limbo, nothing is begun for up to this many ns."""

CHANNELS = 16
"""From this many limbos on, channels without a message in work are closed."""

ALONE = 30_000_000_000
"""For this many ns a message from limbo is the only one of them in work, so that no other goes down with it.
One that takes longer holds up the others just once."""


class Limbo:
    """The limbo of one consumer's queues."""

    def __init__(self, engine: Engine, specs: Iterable[Queue], failures: Failures) -> None:
        self._engine = engine
        self._specs = {spec.name: spec for spec in specs}
        self._failures = failures
        self._connection: Connection | None = None
        self._outbox: Outbox | None = None
        self._links: dict[str, Link] = {}
        self._waiting: dict[str, int] = {}
        self._fetching = False
        self._next = 0
        self._alone: tuple[int, Link, int] | None = None  # what was taken last, and until when it is alone
        self._made: set[str] = set()
        self._rescuing: dict[Link, int] = {}
        self._since = 0
        self._helpless: set[str] = set()

    # --- in the reader's thread ---

    def sift(self, link: Link, raws: list[Raw]) -> list[int] | None:
        """The indexes of those that may be buffered, None for all; the others are rescued or parked."""
        if not (link.alive and link.counted) or link.queue in self._helpless:
            return None
        counts = [
            0 if self._unsuspected(raw) else delivery_limit.delivery_count(raw[PROPERTIES]) for raw in raws
        ]
        if link.spec.ordered:
            out = _lethal_heads(link, counts)
        else:
            danger = delivery_limit.danger(link.limit)
            out = [at for at, count in enumerate(counts) if count >= danger]
        if not out:
            return None
        if not link.spec.ordered:
            with self._engine.lock:
                self._since = self._engine.clock.now()
                self._rescuing[link] = self._rescuing.get(link, 0) + len(out)
        for at in out:
            message = Message(raws[at], self._engine.settler.settle)
            if link.spec.ordered:
                self._failures.never_settled(message, NeverSettled(counts[at], None))
            else:
                self._failures.rescue(message)
        if not link.spec.ordered:
            self._engine.note(
                logging.WARNING,
                "rescued",
                queue=link.queue,
                messages=len(out),
                reason=f"delivered {max(counts)} times and never settled; the broker's limit: {link.limit}",
            )
        return [at for at in range(len(raws)) if at not in set(out)]

    def _unsuspected(self, raw: Raw) -> bool:
        return not raw[REDELIVERED] or self._failures.exempt(raw[PROPERTIES])

    def rescuing(self, now: int) -> bool:
        """True if messages are on their way into limbo: then no worker begins a message, which might take the
        process down before they are safe. This is limited in time. Under the engine's lock.
        """
        if not self._rescuing:
            return False
        self._rescuing = {link: count for link, count in self._rescuing.items() if link.alive and count}
        return bool(self._rescuing) and now < self._since + PATIENCE

    def rescued(self, link: Link) -> None:
        """One of them is safe. Under the engine's lock."""
        self._rescuing[link] = self._rescuing.get(link, 1) - 1

    def cannot_rescue(self, message: Message) -> None:
        """Buffer a message that cannot be copied, for lack of permission; from now on, all of its queue."""
        with self._engine.lock:
            self._helpless.add(message.queue)
            self._rescuing.pop(message.link, None)
            self._engine.keep(message)

    # --- what is there ---

    def made(self, queue: str, there: bool = True) -> None:
        """Note that a queue has a limbo, or that none can be declared."""
        (self._made.add if there else self._made.discard)(queue)

    def exists(self, queue: str) -> bool:
        return queue in self._made

    def seen(self, queue: str, ready: int) -> None:
        """Note how many messages are in a queue's limbo."""
        self.made(queue)
        with self._engine.lock:
            if ready:
                self._waiting[queue] = ready
                self._engine.wake()
            else:
                self._waiting.pop(queue, None)

    def added(self, queue: str) -> None:
        """Note that a copy was confirmed. Under the engine's lock."""
        self._waiting[queue] = self._waiting.get(queue, 0) + 1
        self._engine.wake()

    def connected(self, connection: Connection, outbox: Outbox) -> None:
        with self._engine.lock:
            self._connection, self._outbox = connection, outbox
            self._links.clear()
            self._waiting.clear()

    # --- workers ---

    def due(self, now: int) -> bool:
        """True if the calling worker should take its next message from here. Under the engine's lock."""
        if not self._waiting or self._fetching:
            return False
        if self._alone is not None and _in_work(now, *self._alone):
            return False
        if self._engine.flow.buffered and now < self._next:
            return False
        return self._eligible(now) is not None

    def _eligible(self, now: int) -> str | None:
        return next(
            (name for name in self._waiting if unbuffered_messages.may_begin(self._engine.flow, now, name)),
            None,
        )

    def begin(self) -> list[Dispatch]:
        """The next message, for the worker that calls; empty if there is none. Asks the broker."""
        engine = self._engine
        with engine.lock:
            now = engine.clock.now()
            queue = self._eligible(now) if self.due(now) and not engine.stopping else None
            if queue is None:
                return []
            self._fetching = True
            self._next = now + EVERY
            until = unbuffered_messages.begin(engine.flow, now, queue)
        raw: Raw | None = None
        try:
            raw = self._fetch(queue)
        except AmqpError as error:
            log.debug("event=limbo_failed queue=%r reason=%r", queue, str(error))
            with engine.lock:
                self._waiting.pop(queue, None)  # until the next look
        finally:
            with engine.lock:
                self._fetching = False
                if raw is None:
                    unbuffered_messages.begin_not(engine.flow, engine.clock.now(), queue, until)
                else:
                    unbuffered_messages.owe(engine.flow, queue, raw)
        return [] if raw is None else [Dispatch(queue, [raw], 1, until)]

    def _fetch(self, queue: str) -> Raw | None:
        engine = self._engine
        link = self._links.get(queue)
        if link is None or not link.alive or link.channel.closed:  # it may have ended before it was watched
            link = self._open(queue)
        came = link.channel.get(delivery_limit.limbo_queue(queue))
        ok: Any = None if came is None else came.method
        with engine.lock:
            left = 0 if ok is None else ok.message_count
            self._waiting.pop(queue, None)
            if left:
                self._waiting[queue] = left  # behind those of other queues
            if came is None:
                return None
            link.ledger.delivered += 1
            now = engine.clock.now()
            self._alone = (now + ALONE, link, ok.delivery_tag)
        raw = (ok.delivery_tag, True, ok.exchange, ok.routing_key, came.properties, came.body, link, now)
        count = delivery_limit.delivery_count(came.properties)
        if count < FATAL:
            return raw
        error = NeverSettled(delivery_limit.danger(link.limit) + count, FATAL)
        self._failures.never_settled(Message(raw, engine.settler.settle), error)
        return None

    def _open(self, queue: str) -> Link:
        engine = self._engine
        with engine.lock:
            connection, outbox = self._connection, self._outbox
        assert connection is not None
        assert outbox is not None
        self._make_room()
        channel = connection.channel()
        link = Link(self._specs[queue], channel, outbox, engine.clock, limbo=True)
        channel.on_lost = lambda error: engine.lost(link, error)
        with engine.lock:
            self._links[queue] = link
        return link

    def _make_room(self) -> None:
        """Close the channel of a limbo of which nothing is in work, if there are many."""
        with self._engine.lock:
            for link in self._links.values():
                link.flush()
            idle = [name for name, link in self._links.items() if not link.ledger.unsettled]
            closed = [self._links.pop(name) for name in idle] if len(self._links) >= CHANNELS else []
        for link in closed:
            self._engine.drain(link.outbox)
            link.channel.close()

    def links(self) -> list[Link]:
        """The links of limbo's channels. Under the engine's lock."""
        return list(self._links.values())


def _in_work(now: int, until: int, link: Link, tag: int) -> bool:
    return now < until and link.alive and not link.ledger.is_settled(tag)


def _lethal_heads(link: Link, counts: list[int]) -> list[int]:
    """An ordered lane's messages that no worker should begin any more.

    Those behind the first one are redelivered as often as it is, without blame: so the first of a channel
    is parked early, and the others when their next delivery may be the last.
    """
    limit = delivery_limit.LIMIT if link.limit is None else link.limit
    early = max(1, limit * 3 // 4)
    last = max(1, limit - 1)
    first = link.ledger.delivered == 0
    return [
        at
        for at, count in enumerate(counts)
        if (count >= last and link.limit is not None) or (first and at == 0 and count >= early)
    ]
