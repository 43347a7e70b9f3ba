"""Many messages at once: which are confirmed, and which failed."""

from __future__ import annotations

from collections import deque

from leash.errors import PartlyPublished
from leash.publisher.sent import OVER, Sent
from leash.publisher.unconfirmed import Line


class Tally:
    """Of many messages, those that are not known to be confirmed, in their order."""

    def __init__(self, line: Line, timeout: float | None) -> None:
        self._line = line
        self._timeout = timeout
        self._left: deque[Sent] = deque()
        self._failures: dict[int, Exception] = {}
        self._done = 0
        self.taken = 0

    def add(self, lot: list[Sent]) -> None:
        self.taken += len(lot)
        left = self._left
        left.extend(lot)
        while left and left[0].state == OVER:
            self._count(left.popleft())

    def _count(self, sent: Sent) -> None:
        if sent.error is not None:
            self._failures[self._done] = sent.error
        self._done += 1

    def abandon(self) -> None:
        """Nobody will ask about those that are left: `flush` and `close` say what goes wrong with them."""
        for sent in self._left:
            sent.seen = False

    def finish(self) -> int:
        """Slow is not stuck: as long as confirms come, it waits for more."""
        while self._left:
            sent = self._left[0]
            confirmed = self._line.confirmed
            if sent.state != OVER and not sent.wait(self._timeout) and self._line.confirmed == confirmed:
                for each in self._left:
                    self._line.give_up(each, self._timeout)
            if sent.state == OVER:
                self._count(self._left.popleft())
        if self._failures:
            raise PartlyPublished(self._done - len(self._failures), self._failures)
        return self._done
