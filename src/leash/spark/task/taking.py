"""Taking messages from a queue for one split, and holding them until they are sealed.

In rounds of consume and cancel, with nothing acked in between: a prefetch window of the whole grant would
be unbounded memory when bodies are big. Every message arrives once, because a cancelled consumer keeps its
unacked ones. `ordered.py` takes all at once instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from leash.amqp import Channel, Connection, Deliveries, topology, wire
from leash.amqp.delivery_limit import NACK_IS_FREE, UNKNOWN, danger, limit_of
from leash.amqp.last_acks import AT_ONCE, settled
from leash.amqp.queue_traits import traits
from leash.errors import AmqpError, CannotRescue, NotFound
from leash.spark.task.rescuing import Rescuer, endangered, only, restore

PREFETCH_MAX = 65_535  # 16 bits
DEADLINE = 120.0  # seconds; far below the broker's consumer_timeout of 30 minutes
_FIRST_ROUND = 64
_GROWTH = 8  # a round is at most this many times as big as the last: sizes may change suddenly
_ROUND_BYTES = 64 << 20
_IN_PLACE = 10_000  # messages, at most, that are held beyond those shown so that all keep their places


class QueueTaker:
    """See `attempt.Taker`. Messages redelivered too often are first moved to the end of their queue.

    `looking`: what is taken is always returned, to a queue with a limit, so nothing may be taken that
    cannot be rescued.
    `in_place`: it also keeps its place in a quorum queue, see `ordered.py`.
    """

    def __init__(
        self,
        link: Connection,
        queue: str,
        poll_timeout: float,
        rescuer: Rescuer,
        looking: bool = False,
        in_place: bool = False,
    ) -> None:
        self.ended = ""
        self.left_behind = None
        self._link = link
        self._queue = queue
        self._poll_timeout = poll_timeout
        self._danger: int | None = None
        self._rescuer = rescuer
        self._looking, self._in_place = looking, in_place
        self._came_back = False
        self._settlements = 0  # as a quorum queue counts them: see `settling`
        self._channel: Channel = link.channel()
        self._consumer = ""
        self._cancelled = False
        self._last = self._rounds = 0
        self._deadline = time.monotonic() + DEADLINE

    def lots(self, grant: int) -> Iterator[Deliveries]:
        left, size, taken, weight = grant, _FIRST_ROUND, 0, 0
        while left > 0 and not self.ended:
            size = min(left, size, PREFETCH_MAX)
            for lot in self._round(size):
                left -= len(lot)
                taken += len(lot)
                weight += sum(map(len, lot.bodies))
                yield lot
            mean = max(1, weight // max(1, taken))
            size = max(1, min(size * _GROWTH, _ROUND_BYTES // mean))
        self.ended = self.ended or "filled"

    def _round(self, size: int) -> Iterator[Deliveries]:
        self._cancelled = False
        try:
            self._consume(size)
        except NotFound:
            self.ended = "gone"
            return
        left = size
        while left > 0 and not self._over():
            lot = self._channel.deliveries(self._poll_timeout)
            if lot is not None:
                lot = self._held(lot)
                left -= len(lot)
                if len(lot):
                    yield lot
            elif self._nothing_more():
                break
        for lot in self._cancel():
            if len(kept := self._held(lot)):
                yield kept

    def _consume(self, size: int) -> None:
        # Messages of a channel's consumers return to a quorum queue in the order of the consumers' tags.
        self._rounds += 1
        self._channel.qos(size)
        self._consumer = self._channel.consume(
            self._queue, tag=f"leash-{self._rounds:06}", on_cancel=self._on_cancel
        )

    def _held(self, lot: Deliveries) -> Deliveries:
        """The part of a lot that we hold until the end: the rest was rescued, acked, and arrives again."""
        self._came_back = lot.redelivered[-1]
        restore(lot)
        places = self._endangered(lot)
        if places:
            if not self._last:  # all before them, too: then one ack is enough for all
                places = list(range(places[-1] + 1))
            lot = self._without(lot, self._rescued(lot, places))
        if len(lot):
            self._last = lot.tags[-1]
        return lot

    def _endangered(self, lot: Deliveries) -> list[int]:
        """Inspected again by every attempt that gets a redelivery: the queue may have been declared anew."""
        if self._danger is None and endangered(lot, 1):
            limit: int | None = UNKNOWN
            with suppress(NotFound):
                limit = limit_of(traits(self._link, self._queue), self._link.version)
            self._danger = danger(limit)
        return [] if self._danger is None else endangered(lot, self._danger)

    def _without(self, lot: Deliveries, rescued: list[int]) -> Deliveries:
        """Ack these; earlier messages are not to be acked yet."""
        if rescued and not self._last and rescued == list(range(len(rescued))):
            self._channel.ack(lot.tags[len(rescued) - 1], multiple=True)
            self._settlements += 1
        else:
            self._channel.write(b"".join(wire.ack(lot.channel, lot.tags[at], False) for at in rescued))
            self._settlements += len(rescued)
        gone = set(rescued)
        return only(lot, [at for at in range(len(lot)) if at not in gone]) if gone else lot

    def _rescued(self, lot: Deliveries, places: list[int]) -> list[int]:
        if not places:
            return []
        found = self._rescuer.send(self._queue, lot, places)
        if len(found) < len(places) and self._looking:
            raise CannotRescue(
                f"queue {self._queue!r} drops messages that come back too often, some have come back "
                f"{self._danger} times, and they could not be copied to its end: looking at them again might "
                "lose them. May this user write to the default exchange?"
            )
        return found

    def _over(self) -> bool:
        """True if this round has lasted long enough, or the broker ended it."""
        if time.monotonic() > self._deadline:
            self.ended = "deadline"
        return bool(self.ended) or self._cancelled

    def _cancel(self) -> Iterator[Deliveries]:
        """End the consumer; messages in flight until then belong to us too."""
        consumer, self._consumer = self._consumer, ""
        if not consumer or self.ended == "gone":
            return
        self._channel.cancel(consumer)
        while (lot := self._channel.deliveries(0)) is not None:
            yield lot

    def _on_cancel(self, _: str) -> None:
        self._cancelled = True

    def _nothing_more(self) -> bool:
        ready = self._ready()
        if ready is None:
            self.ended = "gone"
        elif ready == 0:
            self.ended = "drained"  # except for messages in flight, which arrive until the cancel
        return bool(self.ended)

    def _ready(self) -> int | None:
        """Ready messages; None if the queue is gone. On a separate channel, which that would close."""
        try:
            with self._link.channel() as channel:
                return topology.state(channel, self._queue).ready
        except NotFound:
            return None

    def confirm(self) -> None:
        if self.ended != "gone":
            self._round_trip()

    def ack(self) -> None:
        """Ack everything. Every round has ended with a cancel, so acks let no more in."""
        try:
            if self.ended == "gone":
                return
            if self._last:
                self._channel.ack(self._last, multiple=True)
                self._settlements += self._rounds
            self._settle()
            self._round_trip()
        finally:
            self._close()

    def give_back(self) -> None:
        """Return messages to their places.

        Since 4.3 a nack does not count against a quorum queue's delivery limit, unless a consumer is still
        there and gets the message again at once. Before, it does, and on 3.10 also loses the place: closing
        keeps that.
        """
        free = self._link.version >= NACK_IS_FREE
        self._looking = False  # what cannot be rescued is returned too
        if self.ended != "gone":
            with suppress(AmqpError):
                if free or self._in_place or self._settlements > AT_ONCE:
                    for lot in self._cancel():
                        if self._in_place:
                            self._held(lot)
                if self._in_place:
                    self._hold_all()
                self._settle()
                if free:
                    self._channel.nack(0, multiple=True)  # 0: all that is not settled
                self._round_trip()
        self._close()

    def _hold_all(self) -> None:
        """Hold all returned messages: half of them would be returned behind the other half."""
        size, held = 1, 0
        while self._came_back and held < _IN_PLACE and self._ready():
            self._consume(size)
            lot = self._channel.deliveries(self._poll_timeout)
            lots = [each for each in (lot, *self._cancel()) if each is not None]
            if not lots:
                return  # another consumer gets them
            held += sum(map(len, lots))
            for each in lots:
                self._held(each)
            size = min(size * _GROWTH, _IN_PLACE)

    def _settle(self) -> None:
        if self._settlements > AT_ONCE:
            settled([(self._channel, self._queue)])

    def _round_trip(self) -> None:
        self._channel.qos(1)

    def _close(self) -> None:
        with suppress(AmqpError):
            self._channel.close()
