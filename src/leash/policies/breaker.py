"""Is what the handler calls down, or is it one bad message?

    closed     calls go on. `failures` messages in a row failed for the first time, and none succeeded: open
    open       one call at a time, a probe, `first` ns after it opened and then at most `longest` ns apart. A
               failed probe doubles the wait. A success, of whatever call: half-open
    half-open  calls go on. A first failure: open again. `failures` successes: closed

Bad messages among good ones do not open it: a success in between ends the row, and a message that fails again
says nothing new. Failures are excused while it is open, because the message is not to blame: they do not use
up its tries. That ends after `patience` ns, or a queue of nothing but bad messages would never end.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from leash.policies.exact_numbers import whole
from leash.units import MS, SECOND

State = Literal["closed", "open", "half-open"]


class Turn(Enum):
    """What a call is."""

    NO = "not now"
    CALL = "like any other"
    PROBE = "the one that is tried while the circuit is open"


class Circuit:
    """The circuit of one lane."""

    __slots__ = (
        "_failures",
        "_first",
        "_gap",
        "_good",
        "_longest",
        "_patience",
        "_probing",
        "_row",
        "next",
        "opened",
        "since",
        "state",
    )

    def __init__(
        self,
        failures: int = 5,
        *,
        first: int = 100 * MS,
        longest: int = SECOND,
        patience: int = 3600 * SECOND,
    ) -> None:
        self._failures = whole("failures", failures, 1)
        self._first = min(whole("first", first, 1), whole("longest", longest, 1))
        self._longest = longest
        self._patience = whole("patience", patience, 0)
        self.state: State = "closed"
        self.opened = 0
        """How often it opened, not counting openings of a half-open one."""
        self.since = 0
        """When it opened, if it is not closed."""
        self.next = 0
        """When the next probe may begin, if it is open."""
        self._gap = self._first
        self._row = 0  # messages that failed, with no success in between
        self._good = 0  # successes since it is half-open
        self._probing = False

    @property
    def quiet(self) -> bool:
        """True if a success would change nothing."""
        return self.state == "closed" and not self._row

    @property
    def probing(self) -> bool:
        """True if a probe is under way."""
        return self._probing

    def begin(self, now: int) -> Turn:
        """May a call begin? A probe must be reported to `succeeded`, `failed` or `unknown`."""
        if self.state != "open":
            return Turn.CALL
        if self._probing or now < self.next:
            return Turn.NO
        self._probing = True
        return Turn.PROBE

    def succeeded(self, turn: Turn) -> None:
        self.unknown(turn)
        self._row = 0
        if self.state == "open":
            self.state, self._good, self._gap = "half-open", 0, self._first
        if self.state == "half-open":
            self._good += 1
            if self._good >= self._failures:
                self.state = "closed"

    def failed(self, now: int, turn: Turn, first: bool = True) -> None:
        """A call failed; `first` if its message never had before."""
        self.unknown(turn)
        if self.state == "closed":
            self._row += first
            if self._row >= self._failures:
                self.opened += 1
                self.since = now
                self._open(now, self._first)
        elif self.state == "half-open":
            if first:
                self._open(now, self._first)
        elif turn is Turn.PROBE:
            self._open(now, min(self._longest, 2 * self._gap))

    def _open(self, now: int, gap: int) -> None:
        self.state, self._gap, self.next = "open", gap, now + gap
        self._row = 0

    def unknown(self, turn: Turn) -> None:
        """A call ended in a way that says nothing about what it calls: another one may be the probe."""
        if turn is Turn.PROBE:
            self._probing = False

    def excuses(self, now: int) -> bool:
        """True if a failure is not the message's own."""
        return self.state == "open" and now - self.since < self._patience
