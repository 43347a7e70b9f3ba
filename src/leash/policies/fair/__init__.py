"""Which lane is next: deficit round robin with exact shares.

drr.py           the scheduler
rounds.py        whose turn it is within a tier; held rounds
bulk.py          the same for a whole batch
tiers.py         strict tiers with guarantees
state.py         continuing in another process
certificate.py   is it fair, and if not, why
"""

from leash.policies.fair.drr import DeficitRoundRobin
from leash.policies.fair.rounds import Ticket

__all__ = ["DeficitRoundRobin", "Ticket"]
