"""Is service fair and, if not, why: the measured spread between lanes, against what theory allows.

A lane's position is the cost that it was served, divided by its quantum. Among lanes that have had work since
the measurement began, the spread of positions is at most 1 with unit costs, and at most 1 + workers * (Max -
1) / least quantum if no cost is below its estimate; Max is the largest cost, and a cost known at pick or
charged before the next pick counts as one worker. Costs below their estimates widen the bound by at most the
excess of the estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from leash.errors import ConfigError
from leash.policies.exact_numbers import whole
from leash.policies.fair.rounds import Ticket


class Verdict(NamedTuple):
    """The state of a measurement; `behind` has the lanes that exceed the bound, and why."""

    spread: Fraction
    bound: Fraction
    lanes: int
    behind: dict[str, str]

    @property
    def fair(self) -> bool:
        return not self.behind

    def __str__(self) -> str:
        text = (
            f"spread {float(self.spread):.2f} rounds over {self.lanes} lanes, bound {float(self.bound):.2f}"
        )
        if self.fair:
            return f"fair: {text}"
        return f"unfair: {text}; " + "; ".join(f"{lane}: {why}" for lane, why in self.behind.items())


class Certificate:
    """One measurement of the lanes of one tier, all of which have work when it begins.

    `standing` is what they got of the round in which it begins (DeficitRoundRobin.standing), unless it
    begins with the first round. After a quantum changes, begin another one.
    """

    __slots__ = ("_largest", "_quanta", "_reasons", "_sent", "_workers")

    def __init__(
        self, quanta: Mapping[str, int], standing: Mapping[str, int] | None = None, workers: int = 1
    ) -> None:
        measured = quanta if standing is None else standing
        for lane in measured:
            if lane not in quanta:
                raise ConfigError("standing", lane, "only lanes that have a quantum")
        self._sent = {lane: standing[lane] if standing else 0 for lane in measured}
        self._quanta = {lane: whole("quantum", quanta[lane], 1) for lane in measured}
        self._workers = whole("workers", workers, 1)
        self._largest = 1
        self._reasons: dict[str, str] = {}

    def picked(self, ticket: Ticket) -> None:
        lane, estimate = ticket
        if lane in self._sent:
            self._sent[lane] += estimate
            if estimate > self._largest:
                self._largest = estimate

    def settled(self, ticket: Ticket, cost: int) -> None:
        lane, estimate = ticket
        if lane in self._sent:
            self._sent[lane] += cost - estimate
            if cost > self._largest:
                self._largest = cost

    def idle(self, lane: str) -> None:
        """The lane ran out of work, or sat out: nothing is owed to it, so it is no longer measured."""
        self._sent.pop(lane, None)

    def explain(self, lane: str, reason: str) -> None:
        """Set why this lane might fall behind, such as its window; an empty reason clears it."""
        self._reasons[lane] = reason

    def verdict(self) -> Verdict:
        if not self._sent:
            return Verdict(Fraction(0), Fraction(1), 0, {})
        positions = {lane: Fraction(sent, self._quanta[lane]) for lane, sent in self._sent.items()}
        least = min(self._quanta[lane] for lane in positions)
        bound = 1 + Fraction(self._workers * (self._largest - 1), least)
        front = max(positions.values())
        behind = {
            lane: self._reasons.get(lane) or "no reason known"
            for lane, position in positions.items()
            if front - position > bound
        }
        return Verdict(front - min(positions.values()), bound, len(positions), behind)
