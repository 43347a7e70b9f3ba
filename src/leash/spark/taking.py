"""Taking messages from a queue for one split, and holding them until they are sealed.

In rounds of consume and cancel, with nothing acked in between: a prefetch window of the whole grant would
be unbounded memory when bodies are big. Every message comes once, because a cancelled consumer keeps its
unacked ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from leash.amqp import Channel, Connection, Deliveries, topology
from leash.errors import AmqpError, NotFound

_FIRST_ROUND = 64
_GROWTH = 8  # a round is at most this much bigger than the last: sizes may change without notice
_ROUND_BYTES = 64 << 20
_PREFETCH_MAX = 65_535  # 16 bits
_DEADLINE = 120.0  # seconds; far below the broker's consumer_timeout of 30 minutes
_NACK_KEEPS_THE_PLACE = (4, 3)


class QueueTaker:
    """See `attempt.Taker`.

    `ordered` keeps one consumer, exclusive where the queue allows it, until the ack.
    """

    def __init__(
        self, link: Connection, queue: str, poll_timeout: float, ordered: bool, exclusive: bool
    ) -> None:
        self.ended = ""
        self._link = link
        self._queue = queue
        self._poll_timeout = poll_timeout
        self._ordered, self._exclusive = ordered, exclusive
        self._channel: Channel = link.channel()
        self._consumer = ""
        self._last = 0
        self._deadline = time.monotonic() + _DEADLINE

    def lots(self, grant: int) -> Iterator[Deliveries]:
        left, size, taken, weight = grant, _FIRST_ROUND, 0, 0
        if self._ordered:
            left = size = min(grant, _PREFETCH_MAX)
        while left and not self.ended:
            size = min(left, size, _PREFETCH_MAX)
            for lot in self._round(size):
                left -= len(lot)
                taken += len(lot)
                weight += sum(map(len, lot.bodies))
                yield lot
            mean = max(1, weight // max(1, taken))
            size = max(1, min(size * _GROWTH, _ROUND_BYTES // mean))
        self.ended = self.ended or "filled"

    def _round(self, size: int) -> Iterator[Deliveries]:
        try:
            self._channel.qos(size)
            self._consumer = self._channel.consume(self._queue, exclusive=self._exclusive)
        except NotFound:
            self.ended = "gone"
            return
        left = size
        while left:
            lot = self._channel.deliveries(self._poll_timeout)
            if lot is not None:
                left -= len(lot)
                self._last = lot.tags[-1]
                yield lot
            elif self._nothing_more():
                break
        if not self._ordered:
            yield from self._cancel()

    def _cancel(self) -> Iterator[Deliveries]:
        """What was on its way when the consumer ended belongs to us too."""
        consumer, self._consumer = self._consumer, ""
        if not consumer or self.ended == "gone":
            return
        self._channel.cancel(consumer)
        while (lot := self._channel.deliveries(0)) is not None:
            self._last = lot.tags[-1]
            yield lot

    def _nothing_more(self) -> bool:
        """Asked on a channel of its own: a queue that is gone closes the channel that asks."""
        try:
            with self._link.channel() as channel:
                ready = topology.state(channel, self._queue).ready
        except NotFound:
            self.ended = "gone"
            return True
        if ready == 0:
            self.ended = "drained"
        elif time.monotonic() > self._deadline:
            self.ended = "deadline"
        return bool(self.ended)

    def confirm(self) -> None:
        if self.ended != "gone":
            self._round_trip()

    def ack(self) -> None:
        """Cancel before acking: acks free credit, and the broker would send more."""
        try:
            if self.ended == "gone":
                return
            if self._consumer:
                consumer, self._consumer = self._consumer, ""
                self._channel.cancel(consumer)
            if self._last:
                self._channel.ack(self._last, multiple=True)
            self._round_trip()
        finally:
            self._close()

    def give_back(self) -> None:
        # Below 4.3 a nack costs a quorum queue's message its place and a delivery; closing keeps the place.
        if self._last and self._link.version >= _NACK_KEEPS_THE_PLACE:
            with suppress(AmqpError):
                self._channel.nack(self._last, multiple=True)
        self._close()

    def _round_trip(self) -> None:
        self._channel.qos(1)

    def _close(self) -> None:
        with suppress(AmqpError):
            self._channel.close()
