"""Permits of a budget that many processes share: how many are here, their expiry, and how many are missing.

There are two kinds. Permits of a rate expire: those that are not used by then are lost. Permits of an
`at_once` do not: they are used during the work, and returned at its end. Permits are used in the order in
which they expire.
"""

from __future__ import annotations

from collections import deque

from leash.units import MS

NEVER = 1 << 62

AHEAD = 10 * MS
"""A process asks for as many as it used in this many ns: one by one, each would cost a round trip."""


class Permits:
    """The permits of one process. `held`: permits of an `at_once`, which are `spent` when the work ends."""

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
        """How many more could be used at once: the number to ask for."""
        self.least = 1
        """The fewest of these that are of any use."""
        self.debt = 0
        """What a message cost beyond the burst: it is paid before others are used."""
        self.at_work = 0
        """Permits of an `at_once` that are in use."""
        self.spent = 0
        """Permits whose work ended, to be returned."""
        self.taken = self.void = 0
        """How many were used, and how many expired."""
        self.waited = 0
        """Ns during which there was work, but no permit."""
        self.waits_since: int | None = None
        self._since = self._lately = self._before = 0

    def grant(self, now: int, count: int, until: int = NEVER) -> None:
        """`count` permits came, and can be used until `until`."""
        self.short = max(0, self.short - count)
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
        """When the next ones expire; None if none in hand do."""
        return self._hand[0][0] if self.available(now) and self._hand[0][0] < NEVER else None

    def take(self, now: int, count: int) -> int:
        """Use `count` permits, which are there; returns when the first of them expires."""
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
        """How many were used in the last `AHEAD` ns, or in the `AHEAD` ns before, if that is more."""
        if now - self._since >= AHEAD:
            self._before = self._lately if now - self._since < 2 * AHEAD else 0
            self._since, self._lately = now, 0
        return max(self._before, self._lately)

    def untake(self, now: int, count: int, until: int) -> None:
        """Undo `take`: they were not used."""
        self.taken -= count
        if self.held:
            self.at_work -= count
        if until <= now:
            self._expire(count)
        else:
            self._hand.appendleft([until, count])

    def release(self, count: int) -> None:
        """Work that used `count` of an `at_once` ended."""
        if self.held:
            self.at_work -= count
            self.spent += count

    def withdraw(self, now: int) -> int:
        """Give up all unused permits; returns how many."""
        count = self.available(now)
        self._hand.clear()
        return count

    def wants(self, now: int, count: int, least: int = 1) -> int:
        """There is work for `count`, the first of it for `least`; returns how many permits are missing."""
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
