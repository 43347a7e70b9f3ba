"""Lanes that share a budget with other processes: they sit out while no permit is in hand.

A lane without one keeps its place in the round and saves up no turns. It does not compete, so no lane waits
for it and lower tiers are served. Missing permits are asked for only when a free worker could use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from leash.flow.decisions import Ask
from leash.flow.lane import LaneState
from leash.policies.exact import Number
from leash.policies.permits import NEVER, Permits

if TYPE_CHECKING:
    from leash.flow.flow import Flow


class Purse:
    """The permits of one budget, for some lanes. `cost` is the cost of a message; None: 1 each.

    A message that costs more than `size`, the most permits that there can be at once, starts with `size`
    permits; the rest is a debt that is paid first.
    """

    __slots__ = ("_cost", "lanes", "name", "permits", "rate", "size", "told")

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
        self.told = 0
        """What was asked for last."""

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

    def wanted(self, idle: int) -> tuple[int, int]:
        """How many permits `idle` workers could use at once, and the fewest that are of any use."""
        units, least = 0, 0
        for lane in self.lanes:
            if idle <= 0:
                break
            if not lane.buffer or lane.blocks:
                continue
            count = min(len(lane.buffer), idle * lane.most)
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


def pace(purse: Purse, rate: Number | None, size: int, worth: int) -> None:
    """Set the numbers of a budget: they limit the windows, even if no other process uses it."""
    purse.size, purse.rate = size, rate
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


def ask(flow: Flow, now: int, served: bool) -> None:
    """Ask for the permits that free workers miss, after a worker was served or not.

    Fast messages go to workers in batches, so more workers may be free than this counts, but not fewer.
    """
    idle = max(0 if served else 1, flow.workers - flow.in_work)
    for purse in flow.purses:
        permits = purse.permits
        units, least = purse.wanted(idle)
        short = permits.wants(now, units, least)
        nothing = not permits.available(now)
        for lane in purse.lanes:
            lane.permitless = nothing and bool(lane.buffer)
        if short > purse.told or permits.spent:
            flow.decisions.append(Ask(purse.name, short))
        purse.told = short
