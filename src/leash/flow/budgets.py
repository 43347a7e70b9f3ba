"""Lanes that share a budget with other processes: they sit out while no permit is in hand.

A lane without one keeps its place in the round and saves up no turns. It does not compete, so no lane waits
for it and lower tiers are served. Permits expire, so they are asked for only when a worker can use them: one
that is free, or will be in a moment. If handlers are slow and keep all workers busy, there is none; then the
next free worker waits a moment for the permit of a lane whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from leash.flow.decisions import Ask
from leash.flow.lane import LaneState
from leash.policies.exact_numbers import Number
from leash.policies.permits import NEVER, Permits
from leash.units import MS, SECOND

if TYPE_CHECKING:
    from leash.flow.flow import Flow

PATIENCE, TRIPS = 20 * MS, 8
"""A worker waits for a permit for at most this long, or this many round trips."""

OFTEN, SELDOM = 50 * MS, SECOND
"""After a wait in vain, no worker waits for half of this time, or of the time that the budget needs for one
token. Each further one doubles the pause, up to the longer time or the token's.
"""

SOON = 4
"""A worker that is free within this part of a lease can use permits that are asked for now."""


class Purse:
    """The permits of one budget, for some lanes. `cost` is the cost of a message; None: 1 each.

    A message that costs more than `size`, the most permits that there can be at once, starts with `size`
    permits; the rest is a debt that is paid first.
    """

    __slots__ = (
        "_cost",
        "_pause",
        "_period",
        "_waits_after",
        "lanes",
        "lease",
        "missed",
        "name",
        "permits",
        "rate",
        "size",
        "waits_until",
    )

    def __init__(
        self, name: str, permits: Permits, size: int, cost: Callable[[Any], int] | None = None
    ) -> None:
        self.name = name
        self.permits = permits
        self.size = size
        self.rate: Number | None = None
        """Permits per second, for all processes; None for an `at_once`."""
        self._cost = cost
        self.lanes: list[LaneState] = []
        self.lease = 0
        """Ns; 0: not known yet, and no worker waits."""
        self.missed = False
        """It was a lane's turn, and there was no permit for it."""
        self.waits_until: int | None = None
        """Until when a worker waits for a permit."""
        self._waits_after = 0
        self.set_period(OFTEN)

    def set_period(self, period: int) -> None:
        """The budget needs `period` ns for one token."""
        self._period = max(1, period)
        self._pause = self._period // 2

    def worker_waits(self, now: int, patience: int) -> bool:
        """True if a worker that is free now is to wait for a permit, although there is other work."""
        if self.waits_until is None:
            if self.missed and now >= self._waits_after and not self._useful(now):
                self.waits_until = now + patience
        elif self._useful(now):
            self.waits_until, self.missed = None, False
            self._pause = self._period // 2
        elif now >= self.waits_until:
            self.waits_until, self.missed = None, False
            self._waits_after = now + self._pause
            self._pause = min(2 * self._pause, max(SELDOM, self._period))
        return self.waits_until is not None

    def _useful(self, now: int) -> bool:
        """True if a lane has a permit for its first message, or no message."""
        waiting = [lane for lane in self.lanes if lane.buffer and not lane.blocks]
        return not waiting or any(self.fits(now, lane, 1) for lane in waiting)

    def cost(self, message: Any) -> int:
        return 1 if self._cost is None else max(1, self._cost(message))

    def fits(self, now: int, lane: LaneState, count: int) -> int:
        """How many of the next messages of a lane have permits."""
        permits = self.permits
        here = 0 if permits.debt else permits.available(now)
        if self._cost is None:
            return min(count, here)
        fitting = 0
        while fitting < count:
            here -= min(self.size, self.cost(lane.buffer[lane.promised + fitting][0]))
            if here < 0:
                break
            fitting += 1
        return fitting

    def pay(self, now: int, lane: LaneState, count: int) -> int:
        """Use permits for `count` messages, which fit; returns when they expire."""
        self.missed = False
        if self._cost is None:
            return self.permits.take(now, count)
        until = NEVER
        for at in range(lane.promised, lane.promised + count):
            cost = self.cost(lane.buffer[at][0])
            until = min(until, self.permits.take(now, min(self.size, cost)))
            self.permits.debt += max(0, cost - self.size)
        return until

    def back(self, now: int, messages: list[Any], until: int | None) -> None:
        """Take back the permits of messages that were not begun."""
        count = sum([min(self.size, self.cost(message)) for message in messages])
        self.permits.untake(now, count, now if until is None else until)

    def wanted(self, idle: int, alone: bool) -> tuple[int, int]:
        """How many permits `idle` workers could use at once, and the fewest that are of any use.

        Unless these lanes are `alone`, other lanes have their turns between those of each.
        """
        units, least = 0, 0
        for lane in self.lanes:
            if idle <= 0:
                break
            if not lane.buffer or lane.blocks:
                continue
            count = min(len(lane.buffer), idle * lane.most)
            if not alone:
                count = min(count, lane.quantum)
            if lane.ordered:
                count = 1
            idle -= -(-count // lane.most)
            if self._cost is None:
                costs = count
            else:
                count = min(count, 64)
                costs = sum([min(self.size, self.cost(lane.buffer[at][0])) for at in range(count)])
            first = 1 if self._cost is None else min(self.size, self.cost(lane.buffer[0][0]))
            least = first if not least else min(least, first)
            units += costs
        return units, least


def share(purses: list[Purse], lanes: Iterable[LaneState]) -> None:
    """Give each lane the purses of its budgets."""
    for lane in lanes:
        mine = tuple([purse for purse in purses if purse.name in lane.spec.budgets])
        if mine:
            lane.share(mine)
            for purse in mine:
                purse.lanes.append(lane)


def pace(purse: Purse, rate: Number | None, size: int, worth: int, lease: int) -> None:
    """Set the numbers of a budget: they limit the windows, even if no other process uses it."""
    purse.size, purse.rate, purse.lease = size, rate, lease
    purse.set_period(OFTEN if rate is None else int(worth * SECOND / Fraction(rate)))
    for lane in purse.lanes:
        if lane.window is not None and lane.bucket is None:
            lane.window.set_rate(rate, worth)


def permitted(flow: Flow, name: str) -> bool:
    """True if a lane's budgets let it have a turn."""
    lane = flow.lanes[name]
    for purse in lane.purses:
        if len(lane.buffer) <= lane.promised:
            if not purse.permits.available(flow.now):
                return False
        elif not purse.fits(flow.now, lane, 1):
            purse.missed = True
            return False
    return True


def admit(now: int, lane: LaneState, count: int) -> int:
    """How many of `count` messages have permits of all budgets of their lane; uses these permits."""
    for purse in lane.purses:
        count = min(count, purse.fits(now, lane, count))
    if count:
        if not lane.promised:
            lane.until = None
        for purse in lane.purses:
            until = purse.pay(now, lane, count)
            lane.until = until if lane.until is None else min(lane.until, until)
        lane.promised += count
    return count


def worker_waits(flow: Flow, now: int) -> bool:
    """True if the only free worker is to wait for a permit: the handlers are too slow to ask for it ahead."""
    if flow.workers - flow.in_work > 1:
        return False
    front = flow.rounds.front
    if front is not None:
        permitted(flow, front)
    waits = False
    for purse in flow.purses:
        waited = purse.waits_until
        if waited is None and (not purse.lease or not purse.missed or _soon(flow, purse)):
            continue
        if purse.worker_waits(now, max(PATIENCE, TRIPS * flow.sidelines.slowest)):
            waits = True
            if waited is None and purse.waits_until is not None:
                flow.sidelines.until(purse.waits_until, purse.lanes[0])
    return waits


def _soon(flow: Flow, purse: Purse) -> bool:
    """True if a permit that is asked for now finds a free worker before it expires."""
    busy = [
        lane.service or flow.service
        for lane in flow.lanes.values()
        if lane.in_work or lane.buffer or lane.evidence
    ]
    return max(busy, default=0) * SOON <= purse.lease


def ask(flow: Flow, now: int, idle: int | None = None) -> None:
    """Ask for the permits that `idle` workers miss. None: a worker was served, and others may be free.

    Fast messages go to workers in batches, so more workers may be free than this counts, but not fewer. Those
    that other lanes have messages for are not free for long.
    """
    for purse in flow.purses:
        permits = purse.permits
        asked = permits.short
        others = flow.buffered - sum([len(lane.buffer) for lane in purse.lanes])
        free = idle
        if free is None:
            free = max(0, flow.workers - flow.in_work - others)
            free = free or int(purse.missed and _soon(flow, purse))
        units, least = purse.wanted(free, alone=not others and not _expected(flow, purse))
        short = permits.wants(now, units, least)
        if short > asked or permits.spent:
            flow.decisions.append(Ask(purse.name, short))
        for lane in purse.lanes:
            _sit_out(now, lane)


def _expected(flow: Flow, purse: Purse) -> bool:
    """True if messages of lanes without this budget are known to arrive."""
    return any(lane.evidence and purse not in lane.purses for lane in flow.lanes.values())


def _sit_out(now: int, lane: LaneState) -> None:
    without = bool(lane.buffer) and not all(purse.permits.available(now) for purse in lane.purses)
    if without and not lane.permitless:
        lane.dries += 1  # nobody owes it anything for that
    lane.permitless = without
