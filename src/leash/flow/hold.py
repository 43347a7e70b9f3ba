"""A round waits for a lane whose messages are known to be on their way: the states of that waiting.

    NONE ──hold──> HELD ──ask──> ASKED ──found──> CONFIRMED
                    │ found        │                 │
                    └──> SEEN ─ask─┼─────────────────┘
                                   └──give up──> DOUBTED

A message, or an answer that says that there are none, ends the waiting from any state. `Sidelines` has the
timers: when to ask, and when to give up. A lane that is doubted is not waited for again before something
comes.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leash.flow.lane import LaneState


class Hold(Enum):
    NONE = "no round waits for it"
    HELD = "a round waits for it"
    SEEN = "and a look that came meanwhile found messages"
    ASKED = "and its queue is being looked at for that"
    CONFIRMED = "and that look found messages"
    DOUBTED = "a round waited in vain"


def begin(lane: LaneState, now: int) -> None:
    """A round waits for it from now on."""
    lane.hold, lane.held_since = Hold.HELD, now


def ask(lane: LaneState) -> bool:
    """It is time to look at its queue. False: that has been done."""
    if lane.hold not in (Hold.HELD, Hold.SEEN):
        return False
    lane.hold = Hold.ASKED if lane.hold is Hold.HELD else Hold.CONFIRMED
    return True


def found(lane: LaneState) -> None:
    """The broker says that there are messages."""
    lane.hold = Hold.SEEN if lane.hold in (Hold.HELD, Hold.SEEN) else Hold.CONFIRMED


def end(lane: LaneState) -> None:
    """Nobody waits for it any more."""
    lane.hold, lane.held_since = Hold.NONE, None


def give_up(lane: LaneState) -> None:
    """Nothing came."""
    lane.hold, lane.held_since = Hold.DOUBTED, None
