"""CoDel's verdicts on messages that leave a buffer, and their consequences.

Messages that leave together do so at one instant, and a later one has waited less. So after a verdict of
"not now", only the verdict on the last of them can change anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.flow.lane import Entry, LaneState

if TYPE_CHECKING:
    from leash.flow.flow import Flow


def judge(now: int, lane: LaneState, entries: list[Entry], left: int) -> None:
    """For lanes that never drop: a verdict is a signal to the window."""
    codel = lane.codel
    behind = left + len(entries) - 1
    waited = now - entries[0][1]
    verdict = codel.judge(now, waited, behind)
    if not verdict and (waited < codel.target or len(entries) == 1):
        return
    at = 0
    while verdict and at + 1 < len(entries):
        _signal(now, lane)
        at += 1
        behind -= 1
        verdict = codel.judge(now, now - entries[at][1], behind)
    if verdict:
        _signal(now, lane)
    elif at + 1 < len(entries):
        codel.judge(now, now - entries[-1][1], left)


def judge_dropping(flow: Flow, now: int, lane: LaneState, entries: list[Entry]) -> list[Entry]:
    """For lanes that may drop: the entries that are left to serve."""
    kept = []
    behind = len(lane.buffer) + len(entries)
    deadline = lane.shedder.deadline or 0
    for entry in entries:
        behind -= 1
        if lane.codel.judge(now, now - entry[1], behind):
            age = now - entry[4]
            if age >= deadline:
                action = lane.shedder.decide(True, age=age)
                flow.shed(lane, entry[0], "drop", action.reason)
                continue
            _signal(now, lane)
        kept.append(entry)
    return kept


def _signal(now: int, lane: LaneState) -> None:
    if lane.shedder.mode != "return":
        lane.shedder.decide(True)
    # After a change, old and new messages add up for a while: that delay passes by itself.
    if lane.shedder.mode != "observe" and lane.window is not None and lane.settling <= 0:
        lane.window.signal(now)
