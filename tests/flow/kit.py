"""What tests of a flow share."""

from __future__ import annotations

from typing import Any

from leash.flow import Dispatch, Flow

MS = 1_000_000
S = 1_000 * MS


def served(dispatches: list[Dispatch]) -> list[tuple[str, Any]]:
    return [(lane, message) for lane, messages, *_ in dispatches for message in messages]


def finish(flow: Flow, now: int, dispatches: list[Dispatch], each: int = 1000) -> None:
    flow.done(now, dispatches, [each * len(dispatch.messages) for dispatch in dispatches])


def warm(flow: Flow, service: int = 1000) -> None:
    """Let every lane know how fast its handler is, so that dispatches may be larger than one."""
    for name in flow.lanes:
        flow.arrive(0, name, ["warm"])
    while work := flow.take(0, 64):
        finish(flow, 0, work, service)
    flow.decisions.clear()
