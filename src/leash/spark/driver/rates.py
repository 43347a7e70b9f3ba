"""The rates of a query: a token bucket for each queue that has a rate, and one for all queues together.

A batch takes its tokens when it is planned; what it did not read is refunded. The levels are in the offset:
so the rates hold over all executors, batches and restarts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from leash.policies.tokens import TokenBucket
from leash.spark.settings import Limits

_TOTAL = ""  # the name of the bucket for all queues; no queue can have it


class Rates:
    def __init__(self, settings: Limits, state: Mapping[str, Any], now: int) -> None:
        self._buckets: dict[str, TokenBucket] = {}
        for queue in settings.queues:
            if queue.rate is not None:
                self._buckets[queue.name] = _bucket(queue.rate, queue.burst)
        if settings.max_rate_per_second is not None:
            self._buckets[_TOTAL] = _bucket(settings.max_rate_per_second, settings.burst)
        for name, bucket in self._buckets.items():
            if name in state:
                bucket.restore(now, state[name])

    def state(self) -> dict[str, Any]:
        return {name: bucket.state() for name, bucket in self._buckets.items()}

    def levels(self, now: int) -> dict[str, float]:
        """The tokens of each bucket."""
        return {name: round(bucket.level(now), 3) for name, bucket in self._buckets.items()}

    def limit(self, queue: str, count: int, now: int) -> int:
        """So many of `count` messages may be read from a queue."""
        return min(count, self._buckets[queue].available(now)) if queue in self._buckets else count

    def limit_all(self, count: int, now: int) -> int:
        """So many of `count` messages may be read from all queues together."""
        return self.limit(_TOTAL, count, now)

    def take(self, queue: str, count: int, now: int) -> None:
        """A queue was granted `count` messages."""
        for bucket in self._of(queue):
            bucket.take(now, count)

    def refund(self, queue: str, count: int, now: int) -> None:
        """A queue gave `count` messages less than it was granted."""
        for bucket in self._of(queue):
            bucket.refund(now, count)

    def wait(self, queues: Iterable[str], now: int) -> int:
        """Nanoseconds until one of these queues may be granted a message."""
        waits = {name: bucket.wait(now) for name, bucket in self._buckets.items()}
        return max(waits.get(_TOTAL, 0), min((waits.get(queue, 0) for queue in queues), default=0))

    def _of(self, queue: str) -> list[TokenBucket]:
        return [self._buckets[name] for name in (queue, _TOTAL) if name in self._buckets]


def _bucket(rate: Any, burst: int | None) -> TokenBucket:
    return TokenBucket(rate, burst or max(1, math.ceil(rate)))
