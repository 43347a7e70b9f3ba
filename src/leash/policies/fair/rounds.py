"""Which of the lanes of one tier has its turn: served while its balance is above 0, charged afterwards.

A round gives every waiting lane one turn, and a turn adds one quantum to the balance. Rounds are numbered,
and a lane remembers the last round in which it had a turn. From that alone follow the rules that are easy to
get wrong: a round ends when the lane in front already had its turn in it; a lane that was away owes one
quantum less for every round that it missed, and never gains by it. Lanes without work are in no list, so they
cost nothing.

With `quiet_first`, a lane that wakes up goes ahead of those that wait, unless it had its turn in this round.
It still gets one turn in a round, so this changes the order within rounds, and nothing about the bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class Ticket(NamedTuple):
    """Permission to serve a lane, and what it was charged for it."""

    lane: str
    estimate: int = 1


class Lane:
    """One lane's account. It is listed while it waits for turns, held while its round waits, or idle."""

    __slots__ = (
        "balance",
        "blocked",
        "expected",
        "fresh",
        "granted",
        "listed",
        "name",
        "quantum",
        "round",
        "rounds",
        "ticket",
        "visible",
    )

    def __init__(self, name: str, quantum: int, rounds: Rounds) -> None:
        self.name = name
        self.quantum = quantum
        self.rounds = rounds
        self.ticket = Ticket(name)
        self.blocked = False
        self.reset()

    def reset(self) -> None:
        self.balance = 0
        self.round = 0  # the last round in which it had a turn
        self.granted = False  # this turn's quantum is in the balance
        self.visible = 0  # messages here
        self.expected = 0  # messages known to be in flight
        self.listed = False
        self.fresh = False  # it woke up, and stands ahead of those that waited before

    @property
    def idle(self) -> bool:
        return not self.listed and self.name not in self.rounds.held


class Rounds:
    """The waiting lanes of one tier in the order of their turns; the front one's turn may have begun."""

    __slots__ = ("claim", "fresh", "held", "quiet_first", "round", "share", "tier", "turns")

    def __init__(self, tier: int, quiet_first: bool = False) -> None:
        self.tier = tier
        self.quiet_first = quiet_first
        self.share = 0  # percentage of all services that is guaranteed to this tier
        self.reset()

    def reset(self) -> None:
        self.claim = 0  # in hundredths of a service
        self.round = 1
        self.turns: deque[Lane] = deque()
        self.held: dict[str, Lane] = {}
        self.fresh = 0  # how many lanes are

    def next(self, eligible: Callable[[str], bool] | None = None) -> Lane | None:
        """The lane to serve now: it stays in front, with a balance above 0."""
        turns = self.turns
        skipped: list[Lane] = []
        dry = 0
        try:
            while turns:
                lane = turns[0]
                if lane.blocked or not (lane.visible or lane.expected):
                    self.park(turns.popleft())
                    continue
                if eligible is not None and not eligible(lane.name):
                    if lane.granted and lane.balance <= 0:  # its turn is over: it does not keep this place
                        lane.granted = False
                        turns.rotate(-1)
                    else:
                        skipped.append(turns.popleft())
                    continue
                if lane.granted:
                    dry = -1  # a turn that began earlier says nothing about this lap
                elif not self.grant(lane):
                    return None
                if lane.balance > 0:
                    if lane.visible:
                        return lane
                    self._hold(turns.popleft())
                    continue
                lane.granted = False
                turns.rotate(-1)
                dry += 1
                if dry >= len(turns) and not self.held:
                    self._jump()
                    dry = 0
            return None
        finally:
            if skipped:
                turns.extendleft(reversed(skipped))

    def front(self) -> Lane | None:
        """The lane whose turn it is, as far as that is known without beginning it."""
        for lane in self.turns:
            if lane.visible and not lane.blocked:
                balance = lane.balance if lane.granted else self.balance(lane) + lane.quantum
                if balance > 0:
                    return lane
        return None

    def grant(self, lane: Lane) -> bool:
        """Begin its turn; False if that would begin a round while the last one still waits for a lane."""
        if lane.round == self.round:
            if self.held:
                return False
            self.round += 1
        self._seen(lane)
        if lane.balance < 0:
            lane.balance = self.balance(lane)
        lane.balance += lane.quantum
        lane.round = self.round
        lane.granted = True
        return True

    def balance(self, lane: Lane, at: int = 0) -> int:
        """Its balance in a round (default: this one): a debt shrinks by a quantum for every round without a
        turn.
        """
        if lane.balance >= 0:
            return lane.balance
        missed = (at or self.round) - lane.round - 1
        return min(0, lane.balance + missed * lane.quantum) if missed > 0 else lane.balance

    def _jump(self) -> None:
        """All are in debt: skip the rounds in which they would stay so; their order stays the same."""
        rounds = min(-lane.balance // lane.quantum for lane in self.turns)
        if rounds:
            self.round += rounds
            for lane in self.turns:
                lane.round += rounds
                lane.balance += rounds * lane.quantum

    def rewind(self) -> None:
        """Messages came back that were charged for, so lanes have something left of past turns. Take back
        turns of which nothing was used, and the rounds that all have left; then the lanes that had their
        turns last finish them. For the last messages of all, that is where things were before.
        """
        waiting = [lane for lane in [*self.turns, *self.held.values()] if lane.visible or lane.expected]
        waiting = [lane for lane in waiting if not lane.blocked]
        for lane in waiting:
            if lane.granted and lane.balance >= lane.quantum:
                lane.granted = False
                lane.balance -= lane.quantum
                lane.round -= 1
        rounds = max(0, min((lane.balance // lane.quantum for lane in waiting), default=0))
        for lane in waiting:
            lane.balance -= rounds * lane.quantum
        for _ in range(len(self.turns)):
            lane = self.turns[-1]
            if lane.granted or lane.balance <= 0:
                break
            self._seen(lane)
            lane.granted = True
            self.turns.rotate(1)

    def _hold(self, lane: Lane) -> None:
        lane.listed = False
        self.held[lane.name] = lane

    def join(self, lane: Lane) -> None:
        """It has work: a held lane goes on with its turn, any other one queues up."""
        lane.listed = True
        if self.held.pop(lane.name, None) is not None:
            self.turns.appendleft(lane)
        elif self.quiet_first and lane.round < self.round:
            self._go_ahead(lane)
        else:
            self.turns.append(lane)

    def _go_ahead(self, lane: Lane) -> None:
        """Behind the lanes whose turn has begun, and behind those that woke up before."""
        under_way = 0
        for other in self.turns:
            if not other.granted:
                break
            under_way += 1
        self.turns.insert(under_way + self.fresh, lane)
        lane.fresh = True
        self.fresh += 1

    def _seen(self, lane: Lane) -> None:
        if lane.fresh:
            lane.fresh = False
            self.fresh -= 1

    def park(self, lane: Lane) -> None:
        """It is idle: a surplus is forfeited, a debt stays."""
        self.held.pop(lane.name, None)
        self._seen(lane)
        lane.listed = lane.granted = False
        if lane.balance > 0:
            lane.balance = 0

    def leave(self, lane: Lane) -> None:
        """Park it now, wherever it is."""
        if lane.listed:
            self.turns.remove(lane)
        self.park(lane)

    def ready(self) -> bool:
        """True if a lane waits; parks those in front that do not."""
        turns = self.turns
        while turns and (turns[0].blocked or not (turns[0].visible or turns[0].expected)):
            self.park(turns.popleft())
        return bool(turns or self.held)

    def standing(self) -> dict[str, int]:
        """What each waiting lane got since the last round ended, its debt included."""
        standing = {}
        upcoming = self.round
        for lane in [*self.held.values(), *self.turns]:
            if lane.round == self.round and not lane.granted:
                upcoming = self.round + 1  # it had its turn, so those behind it belong to the next round too
            had = (lane.round + 1 if lane.granted else upcoming) - self.round
            standing[lane.name] = had * lane.quantum - self.balance(lane, upcoming)
        return standing
