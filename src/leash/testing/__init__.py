"""For your own tests: a consumer in virtual time, with queues in memory and no broker."""

from leash.errors import Unfinished
from leash.testing.broker import Stored
from leash.testing.rehearsal import Handled, Rehearsal, Settled

__all__ = ["Handled", "Rehearsal", "Settled", "Stored", "Unfinished"]
