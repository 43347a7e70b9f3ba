"""A lane that comes while a flow runs: it has turns like the others, and its part of windows and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.flow import budgets
from leash.flow.lane import Lane, LaneState
from leash.flow.windows import share_credit

if TYPE_CHECKING:
    from leash.flow.flow import Flow


def add_lane(flow: Flow, spec: Lane) -> None:
    """From now on, messages of this lane may arrive."""
    flow.rounds.add_lane(spec.name, spec.quantum, spec.tier)
    flow.budget.add(spec)
    lane = flow.lanes[spec.name] = LaneState(spec, flow.workers, flow.budget)
    budgets.share(flow.purses, [lane])
    share_credit(flow)
