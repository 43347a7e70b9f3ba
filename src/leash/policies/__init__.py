"""The policies: pure objects that decide, and leave the doing to their driver.

fair/               who is next
window/             how much credit
codel.py            is delay standing    shed.py (what follows from it)
tokens.py           may it go now        permits.py (and within a budget that is shared)
breaker.py          is it an outage      retry_budget.py (and how much may be tried again)
heavy_hitters.py    who has most of it
ring/               where a key goes
exact_numbers.py    numbers as they were meant
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.policies.codel import CoDel
from leash.policies.fair import DeficitRoundRobin, Ticket
from leash.policies.tokens import TokenBucket
from leash.policies.window import Window, prefetch_window

if TYPE_CHECKING:
    from leash.policies.ring import HashRing, phash2
else:

    def __getattr__(name: str) -> object:
        # Only users of the ring pay for importing numpy.
        if name in ("HashRing", "phash2"):
            from leash.policies import ring

            return getattr(ring, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CoDel",
    "DeficitRoundRobin",
    "HashRing",
    "Ticket",
    "TokenBucket",
    "Window",
    "phash2",
    "prefetch_window",
]
