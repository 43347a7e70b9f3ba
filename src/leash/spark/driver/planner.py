"""How much of which queue goes into the next batch. Pure: depths, counts and the time in, grants out.

Grants are permissions, not counts: other consumers, expiry and purges make reads short, and `settle` corrects
balances and tokens afterwards. Everything that the next process needs is in the offset, as `state`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from leash.policies.fair import DeficitRoundRobin, Ticket
from leash.spark.driver.rates import Rates
from leash.spark.settings import MAX_ORDERED_SPLIT, Limits
from leash.spark.staging.seals import Seal

_SIZE_UNKNOWN = 1 << 20  # bytes: before the first batch, assume big messages
_FIRST_BUDGET = 10_000  # rows, for targetDelay, before anything is measured
_EMPTY_BATCHES = 2  # in a row end a queue's part in AvailableNow

Grant = tuple[str, int]


class Planner:
    """The policies of one source, restored from one offset."""

    def __init__(self, settings: Limits, state: Mapping[str, Any], now: int) -> None:
        self._settings = settings
        self._names = [queue.name for queue in settings.queues]
        self._fair = DeficitRoundRobin(
            {queue.name: queue.quantum for queue in settings.queues},
            tiers={queue.name: queue.tier for queue in settings.queues},
        )
        self._rates = Rates(settings, state.get("tokens", {}), now)
        self._means: dict[str, int] = dict(state.get("means", {}))
        self._budget: int = state.get("budget", settings.max_records_per_trigger or _FIRST_BUDGET)
        self.planned_at: int | None = state.get("planned_at")
        if "fair" in state:
            self._fair.restore(state["fair"])

    def state(self) -> dict[str, Any]:
        return {
            "fair": self._fair.state(),
            "tokens": self._rates.state(),
            "means": self._means,
            "budget": self._budget,
            "planned_at": self.planned_at,
        }

    # --- the batch that ended ---

    def settle(self, results: Iterable[tuple[Grant, Seal]], now: int, took: int | None) -> dict[str, int]:
        """Correct what the grants assumed; returns the rows of each queue.

        `took` is how long the batch ran.
        """
        granted: dict[str, int] = {}
        rows: dict[str, int] = {}
        size: dict[str, int] = {}
        dry: dict[str, bool] = {}
        for (name, grant), seal in results:
            if name not in self._names:
                continue  # the options changed since
            granted[name] = granted.get(name, 0) + grant
            rows[name] = rows.get(name, 0) + seal.rows
            size[name] = size.get(name, 0) + seal.size
            dry[name] = dry.get(name, False) or seal.ended in ("drained", "gone")
        for name, grant in granted.items():
            self._fair.settle(Ticket(name, grant), min(rows[name], grant), dry=dry[name])
            self._rates.refund(name, max(0, grant - rows[name]), now)
            if rows[name]:
                fresh = size[name] // rows[name]
                self._means[name] = (3 * self._means.get(name, fresh) + fresh) // 4
        self._resize(sum(granted.values()), sum(rows.values()), took)
        return rows

    def _resize(self, granted: int, rows: int, took: int | None) -> None:
        """Steer towards the target delay, by a factor of at most two at a time, so that one odd batch does
        little harm."""
        target = self._settings.target_delay
        if target is None or not rows or not took:
            return
        aim = rows * target // took
        # A batch that the queues could not fill says only that more rows would have fitted.
        if granted >= self._budget or aim < self._budget:
            self._budget = max(1, min(max(aim, -(-self._budget // 2)), 2 * self._budget))

    # --- the batch to come ---

    def wanted(
        self, ready: Mapping[str, int], now: int, *, all_available: bool = False, hurry: bool = False
    ) -> dict[str, int]:
        """How many permits of each budget the next batch could use; empty if it should wait."""
        backlog, size = self._demand(ready, now, all_available, hurry)
        wanted = {} if self._settings.budget is None else {self._settings.budget.name: size}
        for queue in self._settings.queues:
            if queue.budget is not None and queue.budget != self._settings.budget:
                wanted[queue.budget.name] = min(
                    size, wanted.get(queue.budget.name, 0) + backlog.get(queue.name, 0)
                )
        return {name: count for name, count in wanted.items() if count}

    def grants(
        self,
        ready: Mapping[str, int],
        now: int,
        *,
        all_available: bool = False,
        hurry: bool = False,
        permits: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """The grant of each queue; empty if the batch should wait. `hurry`: do not wait for a minimum.

        `permits` are those that were taken from each budget for this batch: its queues get no more.
        """
        backlog, budget = self._demand(ready, now, all_available, hurry)
        for name, count in (permits or {}).items():
            if self._settings.budget is not None and name == self._settings.budget.name:
                budget = min(budget, count)
            else:
                backlog |= self._shared(name, backlog, count)
        budget = min(budget, sum(backlog.values()))
        if budget == 0:
            return {}
        grants = {name: grant for name, grant in self._fair.plan(backlog, budget).items() if grant}
        for name, grant in grants.items():
            self._rates.take(name, grant, now)
        self.planned_at = now
        return grants

    def _shared(self, name: str, backlog: Mapping[str, int], permits: int) -> dict[str, int]:
        """The most that the queues of one budget get, by quantum."""
        quanta = {
            queue.name: queue.quantum
            for queue in self._settings.queues
            if queue.budget is not None and queue.budget.name == name
        }
        parts = DeficitRoundRobin(quanta).plan({queue: backlog[queue] for queue in quanta}, permits)
        return {queue: parts.get(queue, 0) for queue in quanta}

    def _demand(
        self, ready: Mapping[str, int], now: int, all_available: bool, hurry: bool
    ) -> tuple[dict[str, int], int]:
        """The backlog of each queue, and how many messages the batch could have."""
        least = self._settings.min_records_per_trigger
        if least is not None and not hurry and sum(ready.values()) < least and not self._waited(now):
            return {}, 0
        backlog = {}
        for name in self._names:
            limit = ready.get(name, 0)
            if self._settings.ordered:
                limit = min(limit, MAX_ORDERED_SPLIT)
            backlog[name] = self._rates.limit(name, limit, now)
        budget = sum(backlog.values())
        if not all_available:
            budget = min(budget, self._size_limit(backlog))
        return backlog, self._rates.limit_all(budget, now)

    def _waited(self, now: int) -> bool:
        if self.planned_at is None:
            self.planned_at = now
        return now - self.planned_at >= self._settings.max_trigger_delay

    def _size_limit(self, backlog: Mapping[str, int]) -> int:
        limits = [sum(backlog.values())]
        if self._settings.max_records_per_trigger is not None:
            limits.append(self._settings.max_records_per_trigger)
        if self._settings.max_bytes_per_trigger is not None:
            weight = sum(n * self._means.get(name, _SIZE_UNKNOWN) for name, n in backlog.items())
            mean = max(1, weight // max(1, sum(backlog.values())))
            limits.append(max(1, self._settings.max_bytes_per_trigger // mean))
        if self._settings.target_delay is not None:
            limits.append(self._budget)
        return min(limits)

    def wait(self, names: Iterable[str], now: int) -> int:
        """Nanoseconds until one of these queues may be granted a message."""
        return self._rates.wait(names, now)

    def tokens(self, now: int) -> dict[str, float]:
        return self._rates.levels(now)

    def balances(self) -> dict[str, int]:
        return {name: self._fair.balance(name) for name in self._names}


def cut(grants: Mapping[str, int], settings: Limits) -> list[Grant]:
    """Splits of nearly equal size per queue, dealt out in turn so that tasks side by side read
    different queues."""
    total = sum(grants.values())
    per_queue = []
    for name, grant in grants.items():
        parts = math.ceil(grant / settings.max_records_per_partition)
        if settings.min_partitions is not None:
            parts = max(parts, math.ceil(settings.min_partitions * grant / total))
        parts = 1 if settings.ordered else min(parts, grant)
        size, more = divmod(grant, parts)
        per_queue.append([(name, size + (i < more)) for i in range(parts)])
    longest = max(map(len, per_queue), default=0)
    return [splits[i] for i in range(longest) for splits in per_queue if i < len(splits)]


class Targets:
    """What AvailableNow still has to read: the ready counts at the start, less the rows read since."""

    def __init__(self, ready: Mapping[str, int]) -> None:
        self._left = dict(ready)
        self._empty = dict.fromkeys(ready, 0)

    def settle(self, came: Iterable[tuple[str, int]]) -> None:
        """Count the rows read. A queue that gave none twice in a row is done: others took its messages."""
        rows: dict[str, int] = {}
        for name, count in came:
            rows[name] = rows.get(name, 0) + count
        for name, count in rows.items():
            if name not in self._left:
                continue
            self._left[name] = max(0, self._left[name] - count)
            self._empty[name] = 0 if count else self._empty[name] + 1
            if self._empty[name] >= _EMPTY_BATCHES:
                self._left[name] = 0

    def left(self) -> dict[str, int]:
        return {name: left for name, left in self._left.items() if left}
