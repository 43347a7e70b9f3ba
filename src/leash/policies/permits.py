"""Permits of a budget that many processes share: how many are in hand, until when, and how many are missing.

Two kinds. Permits of a rate come with an instant after which they are void: what is not used by then is lost.
Permits to be at work have none: they are used by whoever is at work, and given back at its end. The order in
which they are used is the order in which they expire.
"""

from __future__ import annotations

from collections import deque

from leash.units import MS

NEVER = 1 << 62

AHEAD = 10 * MS
"""Whoever used many in so many ns gets as many at a time: one by one, each would cost a round trip."""


class Permits:
    """In the hands of one process. `held`: permits to be at work, which come back from work as `spent`."""

    __slots__ = (
        "_before",
        "_hand",
        "_lately",
        "_since",
        "at_work",
        "debt",
        "held",
        "least",
        "short",
        "spent",
        "taken",
        "void",
        "waited",
        "waits_since",
    )

    def __init__(self, held: bool = False) -> None:
        self.held = held
        self._hand: deque[list[int]] = deque()  # [until, how many], the first to expire in front
        self.short = 0
        """How many more could be used at once: what to ask for."""
        self.least = 1
        """How many of these are of no use but together."""
        self.debt = 0
        """What a message cost beyond the burst: paid before anything else is used."""
        self.at_work = 0
        """Permits to be at work that are used."""
        self.spent = 0
        """Those whose work ended, for whoever gives them back."""
        self.taken = self.void = 0
        """So many were used, and so many expired."""
        self.waited = 0
        """Ns during which work was there, and no permit."""
        self.waits_since: int | None = None
        self._since = self._lately = self._before = 0

    def grant(self, now: int, count: int, until: int = NEVER) -> None:
        """So many came, and can be used until then."""
        paid = min(self.debt, count)
        self.debt -= paid
        self._put(now, count - paid, until)

    def _put(self, now: int, count: int, until: int) -> None:
        if until <= now:
            self._expire(count)
        elif count:
            self._hand.append([until, count])

    def _expire(self, count: int) -> None:
        self.void += count
        if self.held:
            self.spent += count

    def available(self, now: int) -> int:
        """How many can be used now."""
        hand = self._hand
        while hand and hand[0][0] <= now:
            self._expire(hand.popleft()[1])
        return sum([count for _, count in hand])

    def expires(self, now: int) -> int | None:
        """When the next ones become void; None if none in hand do."""
        return self._hand[0][0] if self.available(now) and self._hand[0][0] < NEVER else None

    def take(self, now: int, count: int) -> int:
        """Use so many, which are there; returns until when all of them are good."""
        self._pace(now)
        self._lately += count
        left, until = count, NEVER
        hand = self._hand
        while left and hand:
            first = hand[0]
            until = min(until, first[0])
            used = min(left, first[1])
            first[1] -= used
            left -= used
            if not first[1]:
                hand.popleft()
        self.taken += count
        if self.held:
            self.at_work += count
        return until

    def _pace(self, now: int) -> int:
        """How many were used in the last `AHEAD` ns, or in those before, if that is more."""
        if now - self._since >= AHEAD:
            self._before = self._lately if now - self._since < 2 * AHEAD else 0
            self._since, self._lately = now, 0
        return max(self._before, self._lately)

    def untake(self, now: int, count: int, until: int) -> None:
        """They were not used after all."""
        self.taken -= count
        if self.held:
            self.at_work -= count
        if until <= now:
            self._expire(count)
        else:
            self._hand.appendleft([until, count])

    def release(self, count: int) -> None:
        """Work ended that held so many."""
        if self.held:
            self.at_work -= count
            self.spent += count

    def withdraw(self, now: int) -> int:
        """Give up all that is in hand and not used; returns how many that were."""
        count = self.available(now)
        self._hand.clear()
        return count

    def wants(self, now: int, count: int, least: int = 1) -> int:
        """Work is there for so many, the first of it for `least`; returns how many permits are missing."""
        here = self.available(now)
        self.short = max(0, count + self.debt - here)
        self.least = 1 if self.debt else max(1, least - here)
        if self.short and not self.held:
            self.short = max(self.short, self._pace(now))
        if not self.short:
            if self.waits_since is not None:
                self.waited += max(0, now - self.waits_since)
                self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = now
        return self.short
