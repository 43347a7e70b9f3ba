"""For your own tests: a consumer in virtual time, with queues in memory and no broker."""

from leash.testing.broker import Stored
from leash.testing.rehearsal import Handled, Rehearsal, Settled, Unfinished

__all__ = ["Handled", "Rehearsal", "Settled", "Stored", "Unfinished"]
