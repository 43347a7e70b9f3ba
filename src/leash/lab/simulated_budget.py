"""A budget in virtual time: its tokens at the broker, and the processes that take them.

The same tokens, permits and lease as live, and the same steps: a token is delivered, taken, and set aside for
its period; the permits count when the broker has answered, and expire half a lease after the take was sent.
Unlike live, a message costs one permit, and tokens are never lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from leash.fleet.budgets.settings import Terms
from leash.flow import Purse
from leash.flow.budgets import pace
from leash.lab.clock import AT_BROKER, Clock, Wire
from leash.policies.permits import Permits
from leash.units import MS, nanoseconds


class Wheel:
    """The broker's side of one budget, for all pools that name it."""

    def __init__(self, clock: Clock, budget: Terms) -> None:
        self.budget = budget
        self._clock = clock
        self._period = budget.shape.period * MS
        self._ready = deque(budget.shape.worths)
        self._waiting: deque[Till] = deque()

    def purse(self) -> Purse:
        """The permits of one pool, for its Flow."""
        return Purse(self.budget.name, Permits(held=self.budget.at_once is not None), self.budget.size)

    def ask(self, till: Till) -> None:
        """Deliver one token, now or when there is one."""
        self._waiting.append(till)
        self._deliver()

    def take(self, till: Till, worth: int, sent: int) -> None:
        """A token was taken: it comes back after the period, or is held until it is returned."""
        if self._period:
            self._clock.at(self._clock.now + self._period, AT_BROKER, self.back, worth)
        till.down.send(till.granted, worth, sent)

    def back(self, worth: int) -> None:
        """A token can be used again."""
        self._ready.append(worth)
        self._deliver()

    def _deliver(self) -> None:
        while self._ready and self._waiting:
            till = self._waiting.popleft()
            till.down.send(till.delivered, self._ready.popleft())


class Till:
    """One pool's side: asks for the tokens that its workers can use, and returns the others."""

    def __init__(
        self, clock: Clock, wheel: Wheel, purse: Purse, up: Wire, down: Wire, changed: Callable[[], None]
    ) -> None:
        budget = wheel.budget
        self.down = down
        self._clock = clock
        self._wheel = wheel
        self._permits = purse.permits
        self._up = up
        self._changed = changed
        self._half = nanoseconds("lease", budget.lease) // 2
        self._worth = min(budget.shape.worths)
        self._asked = 0  # tokens that are to come
        self._taking = 0  # permits that are to come
        pace(purse, budget.per_second, budget.size, budget.shape.worth, 2 * self._half)

    def look(self) -> None:
        """Return what was spent, and ask for what is missing."""
        permits = self._permits
        for _ in range(permits.spent):
            self._up.send(self._wheel.back, 1)
        permits.spent = 0
        missing = -(-(permits.short - self._taking) // self._worth)
        while self._asked < missing:
            self._asked += 1
            self._up.send(self._wheel.ask, self)

    def delivered(self, worth: int) -> None:
        self._asked -= 1
        if self._permits.short <= self._taking:
            self._up.send(self._wheel.back, worth)
            return
        self._taking += worth
        self._up.send(self._wheel.take, self, worth, self._clock.now)

    def granted(self, worth: int, sent: int) -> None:
        self._taking -= worth
        self._permits.grant(self._clock.now, worth, sent + self._half)
        self._changed()
