"""A round waits for a lane whose messages are known to be in flight: the states of that waiting.

    NONE ──hold──> HELD ──ask──> ASKED ──found──> CONFIRMED
                    │ found        │                 │
                    └──> SEEN ─ask─┼─────────────────┘
                                   └──give up──> DOUBTED

A message, or an answer that there are none, ends the waiting from any state. `Sidelines` has the timers: when
to ask, and when to give up. A doubted lane is not waited for again until a message arrives.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leash.flow.lane import LaneState


class Hold(Enum):
    NONE = "no round waits for it"
    HELD = "a round waits for it"
    SEEN = "a round waits for it, and an earlier probe has since found messages"
    ASKED = "a round waits for it, and its queue is being probed for that"
    CONFIRMED = "a round waits for it, and that probe found messages"
    DOUBTED = "a round waited in vain"


def begin(lane: LaneState, now: int) -> None:
    """Begin to hold a round for it."""
    lane.hold, lane.held_since = Hold.HELD, now


def ask(lane: LaneState) -> bool:
    """Note that its queue is being probed. False: it was already."""
    if lane.hold not in (Hold.HELD, Hold.SEEN):
        return False
    lane.hold = Hold.ASKED if lane.hold is Hold.HELD else Hold.CONFIRMED
    return True


def found(lane: LaneState) -> None:
    """Note that the broker has messages for it."""
    lane.hold = Hold.SEEN if lane.hold in (Hold.HELD, Hold.SEEN) else Hold.CONFIRMED


def end(lane: LaneState) -> None:
    """End the waiting."""
    lane.hold, lane.held_since = Hold.NONE, None


def give_up(lane: LaneState) -> None:
    """End the waiting in vain: no message arrived."""
    lane.hold, lane.held_since = Hold.DOUBTED, None
