"""A lane whose handler fails: it sits out, but for one message at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leash.flow.lane import OPEN, LaneState
from leash.units import SECOND

if TYPE_CHECKING:
    from leash.flow.flow import Flow

AGAIN = SECOND
"""Ns after which another message is offered if nobody said what became of the last one."""


def hold_back(flow: Flow, now: int, lane: str, at: int) -> None:
    """The lane sits out until `at`; from then on it may have one message in work."""
    flow.told(now)
    state = flow.lanes[lane]
    state.single = True
    state.limit(state.bucket)
    _sit_out(flow, state, at)


def let_go(flow: Flow, now: int, lane: str) -> None:
    """The lane goes on at full speed."""
    flow.told(now)
    state = flow.lanes[lane]
    state.single, state.probe_at = False, None
    state.limit(state.bucket)
    flow.sidelines.unblock(state, OPEN)


def sent(flow: Flow, now: int, lane: LaneState) -> None:
    """Its one message leaves."""
    _sit_out(flow, lane, now + AGAIN)


def _sit_out(flow: Flow, lane: LaneState, at: int) -> None:
    flow.sidelines.block(lane, OPEN)
    lane.probe_at = at
    flow.sidelines.until(at, lane)


def put_back(flow: Flow, now: int, lane: str, message: Any, arrived: int) -> None:
    """A worker has this message, and must not begin with it: it goes back in front. Its dispatch is still
    reported to `Flow.done`.
    """
    flow.told(now)
    state = flow.lanes[lane]
    state.buffer.appendleft((message, arrived, -1, 1, arrived))
    flow.buffered += 1
    flow.rounds.offer(lane, 1)
    state.served -= 1  # it will be counted when it is handled
