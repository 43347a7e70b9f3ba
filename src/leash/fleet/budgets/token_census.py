"""Are all tokens there? Each process that uses a wheel publishes from time to time which tokens it saw.

A token is lost if no process saw it for longer than it can be set aside, and it is not ready either: because
of a purge by hand, or a crash of the broker. Then the wheel is replaced. A wrong result costs a pause, but
never breaks the bound. If some tokens were not seen, those that are ready are fetched for a moment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from leash.amqp import Connection, Deliveries, Outgoing, Properties, Publisher, topology
from leash.fleet.budgets.state_at_broker import Card, seen_queue, wheel_queue
from leash.logfmt import logger

if TYPE_CHECKING:
    from leash.fleet.budgets.take_tokens import Wheel

log = logger("leash.fleet")

WINDOW = 25.0
"""Seconds beyond the period of the wheel. Within both, every token in use is seen."""

_CONFIRM = 2.0  # seconds: permits wait during this time
_SILENCE = 0.5  # seconds without a token: other processes got them


class Census:
    """The census of one wheel, in one process."""

    def __init__(self, wheel: Wheel, card: Card) -> None:
        self._wheel = wheel
        self._card = card
        self._since = time.monotonic()
        self._looked = 0.0

    def take(self, connection: Connection) -> bool:
        """Publish which tokens were seen; True if tokens are certainly lost."""
        wheel, name = self._wheel, self._wheel.budget.name
        shape = wheel.numbers.shape
        window = WINDOW + shape.period / 1000
        if self._card.form == "held" or connection.blocked is not None:
            return False
        with connection.channel() as channel:
            topology.declare_queue(channel, seen_queue(name))
        numbers, wheel.seen = wheel.seen, {}
        body = f"{self._card.generation} {_packed(numbers)}".encode()
        expiry = Properties(delivery_mode=1, expiration=str(int(window * 1000)))
        with Publisher(connection, timeout=_CONFIRM) as publisher:
            publisher.publish([Outgoing(body, "", seen_queue(name), expiry)])
        if time.monotonic() - self._since < window:
            return False
        known = self._union(connection)
        if len(known) < len(shape.worths) and time.monotonic() - self._looked < window:
            return False
        if len(known) < len(shape.worths):
            self._looked = time.monotonic()
            known |= self._here(connection)
        lost = len(shape.worths) - len(known)
        if lost > 0:
            log.warning("event=tokens_lost budget=%r lost=%d of=%d", name, lost, len(shape.worths))
        return lost > 0

    def _union(self, connection: Connection) -> set[int]:
        """What all processes saw within the window; closing the channel returns the notes to the queue."""
        seen: set[int] = set()
        with connection.channel() as channel:
            while (came := channel.get(seen_queue(self._wheel.budget.name))) is not None:
                generation, _, packed = bytes(came.body).decode().partition(" ")
                if int(generation) == self._card.generation:
                    seen |= _unpacked(packed)
        return seen

    def _here(self, connection: Connection) -> set[int]:
        """The tokens that are ready: all of them are fetched, and returned at once."""
        found: set[int] = set()
        wheel, count = wheel_queue(self._wheel.budget.name, self._card.generation), 0
        with connection.channel() as channel:
            ready = topology.state(channel, wheel).ready
            channel.qos(0)
            tag = channel.consume(wheel)
            while count < ready and (batch := channel.deliveries(_SILENCE)) is not None:
                found |= _numbers(batch)
                count += len(batch)
            channel.cancel(tag)
            while (batch := channel.deliveries(0.0)) is not None:
                found |= _numbers(batch)
                count += len(batch)
            if count:
                channel.nack(count, multiple=True)  # the first tag of a channel is 1
        return found


def _numbers(batch: Deliveries) -> set[int]:
    return {int(bytes(body).split()[0]) for body in batch.bodies}


def _packed(numbers: dict[int, None]) -> str:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return f"{bits:x}"


def _unpacked(text: str) -> set[int]:
    bits, at, found = int(text or "0", 16), 0, set()
    while bits:
        if bits & 1:
            found.add(at)
        bits >>= 1
        at += 1
    return found
