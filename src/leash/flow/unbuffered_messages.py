"""Messages that begin without having been in a lane's buffer: charged and limited like any other."""

from __future__ import annotations

from typing import Any

from leash.flow.flow import Flow
from leash.policies.fair.rounds import Ticket


def may_begin(flow: Flow, now: int, lane: str) -> bool:
    """True if a message of this lane may begin now: it has a token, and no other lane is ahead."""
    state = flow.lanes[lane]
    buckets = [bucket for bucket in (state.bucket, flow.total) if bucket is not None]
    if any(not purse.permits.available(now) or purse.permits.debt for purse in state.purses):
        return False
    if state.blocks or any(bucket.wait(now) for bucket in buckets):
        return False
    higher = (other for other in flow.lanes.values() if other.tier < state.tier)
    return state.tier in flow.guaranteed or not any(other.waiting for other in higher)


def begin(flow: Flow, now: int, lane: str) -> int | None:
    """Charge for a message that begins: `Flow.done` takes it as a dispatch of one; `begin_not` undoes it.

    Returns when its permits expire. What it costs budgets beyond 1 is not known yet: `owe` adds it.
    """
    state = flow.lanes[lane]
    until = min([purse.permits.take(now, 1) for purse in state.purses], default=None)
    state.in_work += 1
    flow.in_work += 1
    state.charged += 1
    flow.rounds.settle(Ticket(lane, 0), 1)
    for bucket in (state.bucket, flow.total):
        if bucket is not None:
            bucket.take(now)
    flow.sidelines.throttle(now, state)
    return until


def owe(flow: Flow, lane: str, message: Any) -> None:
    """Charge its budgets for what a message that begins costs beyond 1."""
    for purse in flow.lanes[lane].purses:
        purse.permits.debt += purse.cost(message) - 1


def begin_not(flow: Flow, now: int, lane: str, until: int | None = None) -> None:
    """Undo `begin`: there was no message."""
    state = flow.lanes[lane]
    for purse in state.purses:
        purse.permits.untake(now, 1, now if until is None else until)
    state.in_work -= 1
    flow.in_work -= 1
    state.charged -= 1
    flow.rounds.settle(Ticket(lane, 1), 0, dry=False)
    for bucket in (state.bucket, flow.total):
        if bucket is not None:
            bucket.refund(now, 1)
    flow.sidelines.throttle(now, state)
