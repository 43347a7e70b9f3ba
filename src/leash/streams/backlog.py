"""What a publisher was given and the broker has not confirmed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from leash.streams.encoding import Rows


@dataclass(slots=True)
class Batch:
    """Rows on their way: the first `written` of them are out."""

    rows: Rows
    written: int = 0


class Backlog:
    """Batches in their order. A stream confirms in the order of publishing, so counting is enough."""

    def __init__(self) -> None:
        self.unanswered = 0
        """Entries that are out on this connection, and neither confirmed nor refused."""
        self._batches: deque[Batch] = deque()
        self._answered = 0  # entries of the first batch

    @property
    def left(self) -> int:
        """Entries that are not answered, written or not."""
        return sum(len(each.rows.ids) for each in self._batches) - self._answered

    def batches(self) -> list[Batch]:
        return list(self._batches)

    def append(self, rows: Rows) -> None:
        self._batches.append(Batch(rows))

    def write(self, batch: Batch, count: int) -> None:
        """The next entries of a batch go out."""
        batch.written += count
        self.unanswered += count

    def answer(self, count: int) -> None:
        """The broker has answered for so many."""
        self.unanswered -= count
        self._answered += count
        while self._batches and self._answered >= len(self._batches[0].rows.ids):
            self._answered -= len(self._batches.popleft().rows.ids)

    def resume(self, sequence: int | None) -> None:
        """On another connection: what has an id up to `sequence` is in the stream, all else is to be written.
        None if that is not known; then nothing that was written may be unanswered.
        """
        self.unanswered = 0
        if sequence is None:
            return
        for each in self._batches:
            each.written = int(np.searchsorted(each.rows.ids, np.uint64(sequence), side="right"))
        while self._batches and self._batches[0].written == len(self._batches[0].rows.ids):
            self._batches.popleft()
        self._answered = self._batches[0].written if self._batches else 0
