"""The deliveries of one channel: which are settled, and which acks are still to go out.

Acks are coalesced: one frame acks everything up to a tag if no older message is still in work; otherwise they
go one by one. Acking a tag twice would close the channel, so each is remembered until its ack is sent.
"""

from __future__ import annotations

from leash.amqp import wire
from leash.consumer.settle import Outcome


def frame(channel: int, tag: int, outcome: Outcome) -> bytes:
    """The frame for an outcome that is not an ack."""
    if outcome is Outcome.GIVEN_BACK:
        return wire.nack(channel, tag, requeue=True)
    if outcome is Outcome.DROPPED:
        return wire.nack(channel, tag, requeue=False)
    return wire.reject(channel, tag, requeue=outcome in (Outcome.REQUEUED, Outcome.DELAYED))


class Ledger:
    """The deliveries of one channel. Tags count up from 1."""

    __slots__ = ("_above", "_channel", "_loose", "_low", "_prefix", "delivered", "settled", "unsent")

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._low = 1  # every tag below is settled
        self._above: set[int] = set()  # settled tags with unsettled ones below them
        self._loose: list[int] = []  # those of them whose ack is not sent
        self._prefix = 0  # the highest tag below `_low` whose ack is not sent
        self.delivered = 0
        self.settled = 0
        self.unsent = 0
        """Acks that are not sent yet."""

    @property
    def unsettled(self) -> int:
        return self.delivered - self.settled

    def settled_before(self, tag: int) -> bool:
        """True if all older deliveries are settled."""
        return tag <= self._low

    def is_settled(self, tag: int) -> bool:
        return tag < self._low or tag in self._above

    def ack(self, tag: int) -> bool:
        """Settle by an ack that goes out with the next flush. False: it was settled before."""
        low = self._low
        if tag == low:
            self._prefix = tag
            low += 1
            if self._above:
                low = self._advance(low)
            self._low = low
        elif tag < low or tag in self._above:
            return False
        else:
            self._above.add(tag)
            self._loose.append(tag)
        self.settled += 1
        self.unsent += 1
        return True

    def settle(self, tag: int, outcome: Outcome) -> bytes | None:
        """Settle by a frame that must go out now. None: it was settled before."""
        if tag < self._low or tag in self._above:
            return None
        self.settled += 1
        self._above.add(tag)
        self._low = self._advance(self._low)
        return frame(self._channel, tag, outcome)

    def _advance(self, low: int) -> int:
        above, start = self._above, low
        while low in above:
            above.remove(low)
            low += 1
        if low != start and self._loose:
            passed = [tag for tag in self._loose if tag < low]
            if passed:
                self._prefix = max(self._prefix, *passed)
                self._loose = [tag for tag in self._loose if tag >= low]
        return low

    def flush(self, singles: bool = True) -> bytes:
        """The acks that are due; without `singles` only those that one frame covers."""
        out = b""
        if self._prefix:
            out = wire.ack(self._channel, self._prefix, multiple=True)
            self._prefix = 0
        if singles and self._loose:
            out += b"".join([wire.ack(self._channel, tag) for tag in self._loose])
            self._loose = []
        self.unsent = len(self._loose)
        return out
