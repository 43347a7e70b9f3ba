"""One turn of a stream's lane: what was delivered, what is settled, and the prefix below which all is.

A stream takes no acks. What is settled is written in a ledger by offset, and the lane stores the last offset
of the prefix. Offsets have gaps where the broker keeps other things: the ledger knows which ones came.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from leash.consumer.clock import Clock
from leash.consumer.ledger import Ledger
from leash.consumer.link import Link
from leash.consumer.settle import ACKED, Outcome
from leash.consumer.stream_settings import StreamQueue

SPAN = 10_000
"""Messages that may be settled above one that is not: a crash repeats at most these, and those in work."""


class StreamLedger(Ledger):
    """The deliveries of one turn. Tags are offsets, which only grow."""

    __slots__ = ("_ahead", "_lowest", "_runs", "last")

    def __init__(self) -> None:
        super().__init__(0)
        self.last: int | None = None
        """The highest offset below which, and including which, all that was delivered is settled."""
        self._lowest = -1  # the lowest that is not settled; -1: all are
        self._runs: deque[tuple[int, int]] = deque()  # first and end of those from `_lowest` on
        self._ahead: set[int] = set()

    def expect(self, offsets: list[int]) -> None:
        """These are delivered next."""
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            self._runs.append((offsets[0], offsets[-1] + 1))
        else:
            begin = before = offsets[0]
            for offset in offsets[1:]:
                if offset != before + 1:
                    self._runs.append((begin, before + 1))
                    begin = offset
                before = offset
            self._runs.append((begin, before + 1))
        if self._lowest < 0:
            self._lowest = offsets[0]

    @property
    def spread(self) -> int:
        """How many are settled above one that is not."""
        return len(self._ahead)

    def is_settled(self, tag: int) -> bool:
        return self._lowest < 0 or tag < self._lowest or tag in self._ahead

    def settled_before(self, tag: int) -> bool:
        return self._lowest < 0 or tag <= self._lowest

    def ack(self, tag: int) -> bool:
        if self.is_settled(tag):
            return False
        self.settled += 1
        if tag != self._lowest:
            self._ahead.add(tag)
            return True
        ahead, low = self._ahead, tag
        while True:
            self.last = low
            low += 1
            if low == self._runs[0][1]:
                self._runs.popleft()
                low = self._runs[0][0] if self._runs else -1
            if low not in ahead:
                break
            ahead.remove(low)
        self._lowest = low
        return True


class StreamLink(Link):
    """Stands for a stream where the engine expects a link to a queue. Also under the engine's lock.

    It is `fleeting`: a pause leaves it as it is, because the broker is not asked for more anyway.
    """

    stream = True
    spec: StreamQueue
    ledger: StreamLedger

    def __init__(
        self,
        spec: StreamQueue,
        clock: Clock,
        window: int,
        epoch: int,
        more: threading.Event,
        connected: Callable[[], bool],
        frame_max: Callable[[], int],
    ) -> None:
        nothing: Any = None  # no channel, and all that would use one is overridden
        super().__init__(spec, nothing, nothing, clock, limit=None, fleeting=True, ledger=StreamLedger())
        self.window = window
        self.epoch = epoch
        self.asked = False
        """True if Flow wants to know how many messages there are."""
        self._more = more
        self._connected = connected
        self._frame_max = frame_max

    @property
    def connected(self) -> bool:
        return self._connected()

    @property
    def frame_max(self) -> int:
        return self._frame_max()

    @property
    def room(self) -> int:
        """How many messages may be delivered now."""
        if self.ending or not self.alive or self.ledger.spread >= SPAN:
            return 0
        return self.window - self.ledger.unsettled

    def probe(self) -> bool:
        self.asked = True
        self._more.set()
        return True

    def epoch_of(self, tag: str) -> int:  # noqa: ARG002
        return self.epoch

    @property
    def idle_for_proof(self) -> bool:
        return False

    def failed(self, tag: int, failures: int, head: object) -> None:  # noqa: ARG002
        """Several messages may be about to be tried again."""
        done = self.ledger.is_settled
        self.failures = {each: count for each, count in self.failures.items() if not done(each)}
        self.failures[tag] = failures

    def resize(self, window: int, epoch: int, resume: int | None) -> None:  # noqa: ARG002
        self.window, self.epoch = window, epoch
        self._more.set()

    def resume(self) -> None:
        """Deliver more when half of the window is settled."""
        if 2 * self.ledger.unsettled <= self.window and self.alive:
            self._more.set()

    def stop(self) -> None:
        self.ending = True

    def end(self) -> None:
        self.alive = False

    def restart(self, window: int, epoch: int) -> None:
        self.ending = False
        self.resize(window, epoch, None)

    def settle(self, tag: int, outcome: Outcome) -> bool:
        """Write it off. What is given back stays where it is: in the stream, above the stored offset."""
        if not self.alive or (outcome not in ACKED and outcome is not Outcome.DROPPED):
            return False
        return self.ledger.ack(tag)

    def flush(self, singles: bool = True) -> None:
        """Nothing goes to the broker: the lane stores offsets from time to time."""
