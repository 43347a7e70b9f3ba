"""The fairness certificate of a running flow: one measurement per tier, restarted when lanes come or go.

Fairness holds only between lanes that had work all the time. A lane that ran dry or sat out in between ends
the measurement; the verdict that came nearest to its bound, or exceeded it most, is kept.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from leash.flow.lane import LaneState
from leash.policies.fair.certificate import Certificate, Verdict
from leash.policies.fair.rounds import Ticket
from leash.policies.window.credit import lane_window

if TYPE_CHECKING:
    from leash.flow.flow import Flow


class _Start(NamedTuple):
    position: int
    charged: int
    dries: int


class Watch:
    """Looks at a flow from time to time."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._starts: dict[str, _Start] = {}
        self._costliest: dict[str, int] = {}
        self.worst = Verdict(Fraction(0), Fraction(1), 0, {})

    def restart(self) -> None:
        self._starts = {}
        self._costliest = {}

    def cost(self, lane: str, cost: int) -> None:
        if cost > self._costliest.get(lane, 1):
            self._costliest[lane] = cost

    def look(self) -> None:
        """Keep the worst verdict, and restart if other lanes have work than at the beginning."""
        if self._whole():
            self.worst = self.worst_now()
        else:
            self._begin()

    def worst_now(self) -> Verdict:
        """The worst verdict, with its own bound: the bound depends on the lanes, quanta and costs."""
        return max([self.worst, *self.verdicts()], key=lambda verdict: verdict.spread / verdict.bound)

    def verdicts(self) -> list[Verdict]:
        """One verdict for each tier in which two or more lanes have had work since the measurement began."""
        tiers: dict[int, list[LaneState]] = {}
        for name in self._starts:
            lane = self._flow.lanes.get(name)
            if lane is not None and self._stays(lane):
                tiers.setdefault(lane.tier, []).append(lane)
        return [self._verdict(lanes) for lanes in tiers.values() if len(lanes) > 1]

    def _verdict(self, lanes: list[LaneState]) -> Verdict:
        flow = self._flow
        sent = {}
        for lane in lanes:
            start = self._starts[lane.name]
            sent[lane.name] = start.position + lane.charged - start.charged
        costs = {lane.name: self._costliest.get(lane.name, 1) for lane in lanes}
        costliest = max(costs, key=costs.__getitem__)
        sent[costliest] -= costs[costliest]
        workers = flow.workers if flow.cost == "time" else 1
        certificate = Certificate({lane.name: lane.quantum for lane in lanes}, sent, workers)
        certificate.picked(Ticket(costliest, costs[costliest]))
        quanta = sum(lane.quantum for lane in lanes)
        for lane in lanes:
            certificate.explain(lane.name, self._reason(lane, quanta))
        return certificate.verdict()

    def _reason(self, lane: LaneState, quanta: int) -> str:
        flow = self._flow
        service = max(1, lane.service)
        need = lane_window(lane.quantum, quanta, flow.sidelines.round_trip or 0, service, flow.workers)
        if lane.credit < need:
            return f"window-limited: {lane.name} needs {need} credits, has {lane.credit}"
        if lane.expired:
            return f"its messages arrived late: {lane.expired} rounds went on without it"
        return ""

    def _stays(self, lane: LaneState) -> bool:
        return lane.waiting and self._starts[lane.name].dries == lane.dries

    def _whole(self) -> bool:
        starts = self._starts
        waiting = [lane for lane in self._flow.lanes.values() if lane.waiting]
        return len(waiting) == len(starts) and all(
            lane.name in starts and starts[lane.name].dries == lane.dries for lane in waiting
        )

    def _begin(self) -> None:
        flow = self._flow
        self.restart()
        for tier in sorted({lane.tier for lane in flow.lanes.values()}):
            for name, position in flow.rounds.standing(tier).items():
                lane = flow.lanes[name]
                if lane.waiting:
                    self._starts[name] = _Start(position, lane.charged, lane.dries)
                    self.cost(name, 1 - flow.rounds.balance(name))  # its debt is the cost of a message
