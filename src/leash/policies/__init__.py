"""The policies: pure objects that decide, and leave the doing to whoever drives them.

fair.py     who is next         rounds.py (turns, holds), bulk.py (a whole batch), tiers.py, fair_state.py
                                certificate.py (is it fair, and if not, why)
window.py   how much credit     credit.py (the formulas), tally.py (an epoch), payoff.py (did it help)
codel.py    is delay standing   shed.py (what follows from it)
tokens.py   may it go now
ring.py     where a key goes    phash.py, jump.py (Erlang's functions), terms.py, fields.py (the terms),
                                keys.py (whole columns)
exact.py    numbers as they were meant
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.policies.codel import CoDel
from leash.policies.credit import prefetch_window
from leash.policies.fair import DeficitRoundRobin
from leash.policies.phash import phash2
from leash.policies.rounds import Ticket
from leash.policies.tokens import TokenBucket
from leash.policies.window import Window

if TYPE_CHECKING:
    from leash.policies.ring import HashRing
else:

    def __getattr__(name: str) -> object:
        # Only those who route keys pay for importing numpy.
        if name == "HashRing":
            from leash.policies.ring import HashRing

            return HashRing
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
