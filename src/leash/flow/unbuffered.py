"""Messages that begin without having been in a lane's buffer: charged and limited like any other."""

from __future__ import annotations

from leash.flow.flow import Flow
from leash.policies.fair.rounds import Ticket


def may_begin(flow: Flow, now: int, lane: str) -> bool:
    """True if a message of this lane may begin now: it has a token, and no other lane is ahead."""
    state = flow.lanes[lane]
    buckets = [bucket for bucket in (state.bucket, flow.total) if bucket is not None]
    if state.blocks or any(bucket.wait(now) for bucket in buckets):
        return False
    higher = (other for other in flow.lanes.values() if other.tier < state.tier)
    return state.tier in flow.guaranteed or not any(other.waiting for other in higher)


def begin(flow: Flow, now: int, lane: str) -> None:
    """Charge for a message that begins: `Flow.done` takes it as a dispatch of one; `begin_not` undoes it."""
    state = flow.lanes[lane]
    state.in_work += 1
    state.charged += 1
    flow.rounds.settle(Ticket(lane, 0), 1)
    for bucket in (state.bucket, flow.total):
        if bucket is not None:
            bucket.take(now)
    flow.sidelines.throttle(now, state)


def begin_not(flow: Flow, now: int, lane: str) -> None:
    """Undo `begin`: there was no message."""
    state = flow.lanes[lane]
    state.in_work -= 1
    state.charged -= 1
    flow.rounds.settle(Ticket(lane, 1), 0, dry=False)
    for bucket in (state.bucket, flow.total):
        if bucket is not None:
            bucket.refund(now, 1)
    flow.sidelines.throttle(now, state)
