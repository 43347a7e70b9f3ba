"""What is settled of a stream's deliveries, by offset, and the prefix below which all is: what may be stored.

Offsets have gaps where the broker keeps other things: the ledger knows which ones came.
"""

from __future__ import annotations

from collections import deque

from leash.consumer.ack_ledger import Ledger


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
