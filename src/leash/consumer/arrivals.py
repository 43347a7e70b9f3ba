"""Puts arriving messages into their lane, and those in danger into limbo."""

from __future__ import annotations

import logging
from itertools import repeat
from typing import TYPE_CHECKING

from leash.amqp.properties import decode_properties
from leash.amqp.wire import Deliveries
from leash.consumer.costs import Costs
from leash.consumer.link import Link
from leash.consumer.message import identity
from leash.consumer.raw_delivery import BODY, PROPERTIES, TAG, Raw
from leash.errors import LeashError

if TYPE_CHECKING:
    from leash.consumer.engine import Engine

_TELL_EVERY = 1_000_000_000


class Arrivals:
    """The arrivals of one consumer. Called by the connection's reader thread."""

    def __init__(self, engine: Engine, costs: Costs | None) -> None:
        self._engine = engine
        self._costs = costs
        self._tried: dict[str, tuple[object, int]] = {}
        """The message at the head of an ordered lane whose channel is gone, and how often it failed."""
        self._next_trouble = 0  # when to log an invalid cost again

    def deliver(self, link: Link, batch: Deliveries) -> None:
        now = self._engine.clock.now()
        raws: list[Raw] = list(
            zip(
                batch.tags,
                batch.redelivered,
                batch.exchanges,
                batch.routing_keys,
                batch.properties,
                batch.bodies,
                repeat(link),
                repeat(now),
                strict=False,
            )
        )
        size = sum(map(len, batch.bodies))
        costs = None if self._costs is None else self._cost(now, link, batch, raws)
        ages = None
        if link.spec.deadline is not None:
            wall = self._engine.clock.wall()
            ages = [_age(raw, wall) for raw in batch.properties]
        keep = None
        if True in batch.redelivered:
            if link.spec.ordered:
                self._recognise(link, raws[0])
            if self._engine.limbo is not None:
                keep = self._engine.limbo.sift(link, raws)
        with self._engine.lock:
            link.ledger.delivered += len(raws)
            if not link.alive:
                return
            if keep is not None:
                raws = [raws[at] for at in keep]
                costs = None if costs is None else [costs[at] for at in keep]
                ages = None if ages is None else [ages[at] for at in keep]
            if not raws:
                return
            if link.ending:
                self._engine.settler.give_back(link, raws)
                self._engine.nudge.set()
                return
            epoch = link.epoch_of(batch.consumer_tag)
            self._engine.flow.arrive(now, link.queue, raws, costs, ages, epoch, size)
            if not link.gathers:
                self._engine.wake()

    def _cost(self, now: int, link: Link, batch: Deliveries, raws: list[Raw]) -> list[int]:
        assert self._costs is not None
        costs, trouble = self._costs(batch, raws, self._engine.flow.lanes[link.queue].quantum)
        if trouble is not None and now >= self._next_trouble:  # a publisher must not fill the log
            self._next_trouble = now + _TELL_EVERY
            self._engine.note(logging.ERROR, "cost_failed", queue=link.queue, reason=trouble)
        return costs

    def _recognise(self, link: Link, first: Raw) -> None:
        """Recognise the head of an ordered lane on a new channel if it failed on the old one."""
        known = self._tried.get(link.queue)
        if known is not None and link.ledger.delivered == 0:
            del self._tried[link.queue]
            if known[0] == identity(first[PROPERTIES], first[BODY]):
                link.failures, link.head = {first[TAG]: known[1]}, known[0]

    def remember(self, link: Link) -> None:
        """Remember how often the head of an ordered lane failed, until it is redelivered. Under the lock."""
        for tag, failures in link.failures.items():
            if not link.ledger.is_settled(tag):
                self._tried[link.queue] = (link.head, failures)


def _age(raw: bytes, wall: float) -> int:
    """Ns since a message's timestamp; 0 without one."""
    try:
        stamp = decode_properties(raw).timestamp
    except LeashError:
        return 0
    return 0 if stamp is None else max(0, int((wall - stamp.timestamp()) * 1e9))
