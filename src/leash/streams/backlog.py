"""What a publisher was given and the broker has not confirmed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from leash.streams.encoding import Rows


@dataclass(slots=True)
class Batch:
    """Rows on their way: the first `written` of them are out."""

    rows: Rows
    written: int = 0


class Backlog:
    """Batches in their order. What is confirmed is safe together with all that was published before, so
    counting is enough.
    """

    def __init__(self) -> None:
        self.unanswered = 0
        """Entries that are out on this connection, and neither confirmed nor refused."""
        self.left = 0
        """Entries that are not answered, written or not."""
        self._batches: deque[Batch] = deque()
        self._answered = 0  # entries of the first batch

    def batches(self) -> list[Batch]:
        return list(self._batches)

    def append(self, rows: Rows) -> None:
        self._batches.append(Batch(rows))
        self.left += len(rows.ids)

    def write(self, batch: Batch, count: int) -> None:
        """The next entries of a batch go out."""
        batch.written += count
        self.unanswered += count

    def answer(self, count: int) -> None:
        """The broker has answered for so many."""
        self.unanswered -= count
        self.left -= count
        self._answered += count
        while self._batches and self._answered >= len(self._batches[0].rows.ids):
            self._answered -= len(self._batches.popleft().rows.ids)

    def resume(self) -> None:
        """On another connection: what is not answered is to be written again."""
        self.unanswered = 0
        for each in self._batches:
            each.written = 0
        if self._batches:
            self._batches[0].written = self._answered
