"""Handlers that run for too long: what waits behind them is taken back, and the log warns in time."""

from __future__ import annotations

from leash.consumer.engine import Engine
from leash.consumer.take_back import recall
from leash.consumer.workers import Worker
from leash.logfmt import logger
from leash.units import SECOND

log = logger("leash.consumer")

_SLOW = 50_000_000  # ns: a batch should take a hundredth of this
_WARN_AT = 0.8  # of the broker's consumer timeout


class Overdue:
    """Watches the workers of one consumer."""

    def __init__(self, engine: Engine, workers: list[Worker], consumer_timeout: float) -> None:
        self._engine = engine
        self._workers = workers
        self._limit = int(consumer_timeout * _WARN_AT * SECOND)
        self.count = 0
        """Handlers that came near the consumer timeout."""

    def look(self) -> None:
        """Take back what waits behind a slow handler; warn of one that comes near the broker's timeout, which
        would close the channel.
        """
        now = self._engine.clock.now()
        for worker in self._workers:
            begin = worker.begin
            if begin is not None and now - begin > _SLOW:
                recall(self._engine, worker)
            if begin is not None and not worker.warned and now - begin > self._limit:
                worker.warned = True
                self.count += 1
                log.warning(
                    "event=handler_overdue queue=%r running=%.0f reason=%r",
                    worker.queue,
                    (now - begin) / SECOND,
                    "near the broker's consumer timeout: it will close the channel and deliver again",
                )

    def running(self, now: int) -> dict[str, int]:
        """For how many ns the longest handler of each queue has been running."""
        longest: dict[str, int] = {}
        for worker in self._workers:
            if (begin := worker.begin) is not None:
                longest[worker.queue] = max(now - begin, longest.get(worker.queue, 0))
        return longest
