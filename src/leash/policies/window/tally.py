"""Measurements of one window while it was in force: only sums, so a message costs a few additions."""

from __future__ import annotations

from fractions import Fraction

from leash.policies.window.credit import MOST

STARVED = 20
IDLE = 100
"""Workers starve if one dequeue in 20 found no message, or if they lost 1/100 of their time.

Time is needed too: with equal service times all the idling of a round trip falls on a single dequeue.
"""


class Tally:
    """The measurements of one epoch, from its first dequeue on.

    `grace` dequeues may find a worker waiting, as the first ones after a change do.
    """

    __slots__ = (
        "backlogs",
        "dequeues",
        "due",
        "enough",
        "grace",
        "idle",
        "least",
        "squares",
        "start",
        "starved",
        "work",
        "works",
    )

    def __init__(self, grace: int) -> None:
        self.grace = grace
        self.start = self.due = self.enough = 0
        self.dequeues = self.starved = self.idle = self.backlogs = 0
        self.least = MOST
        self.works = self.work = self.squares = 0

    def span(self, now: int) -> int:
        return max(1, now - self.start)

    def starving(self, now: int, workers: int) -> bool:
        return self.starved * STARVED >= self.dequeues or self.idle * IDLE >= self.span(now) * workers

    def service(self) -> int | None:
        """The mean service time."""
        return self.work // self.works if self.works else None

    def cv2(self) -> Fraction:
        """The square of the service time's variation, at most 1.

        Above 1 the mean is dominated by rare spikes, and a spike fills the buffer instead of emptying it.
        """
        if not self.work:
            return Fraction(0)
        square = self.work * self.work
        return min(Fraction(1), Fraction(self.works * self.squares - square, square))

    def round_trip(self, window: int, service: int, workers: int, now: int) -> int:
        """The round trip by Little's law: credit that was neither waiting here nor in work was in flight.

        Valid only while the broker had messages to send, so only if workers starved.
        """
        if self.dequeues < 2:
            return 0
        waiting = self.backlogs * service // workers
        return max(0, (window * self.span(now) - waiting) // (self.dequeues - 1) - service)
