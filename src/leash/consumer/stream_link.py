"""One turn of a stream's lane, which stands for a stream where the engine expects a link to a queue.

A stream takes no acks. What is settled is written in a ledger by offset (`stream_ledger.py`), and the lane
stores the last offset below which all is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from leash.consumer.clock import Clock
from leash.consumer.link import Link
from leash.consumer.settle import ACKED, Outcome
from leash.consumer.stream_ledger import StreamLedger
from leash.consumer.stream_settings import StreamQueue

SPAN = 10_000
"""Messages that may be settled above one that is not: a crash repeats at most these, and those in work."""


class StreamLink(Link):
    """Stands for a stream where the engine expects a link to a queue. Also under the engine's lock.

    It is `fleeting`: a pause leaves it as it is, because the broker is not asked for more anyway.
    """

    stream = True
    spec: StreamQueue
    ledger: StreamLedger

    def __init__(
        self,
        spec: StreamQueue,
        clock: Clock,
        window: int,
        epoch: int,
        more: threading.Event,
        connected: Callable[[], bool],
        frame_max: Callable[[], int],
    ) -> None:
        nothing: Any = None  # no channel, and all that would use one is overridden
        super().__init__(spec, nothing, nothing, clock, limit=None, fleeting=True, ledger=StreamLedger())
        self.window = window
        self.epoch = epoch
        self.asked = False
        """True if Flow wants to know how many messages there are."""
        self._more = more
        self._connected = connected
        self._frame_max = frame_max

    @property
    def connected(self) -> bool:
        return self._connected()

    @property
    def frame_max(self) -> int:
        return self._frame_max()

    @property
    def room(self) -> int:
        """How many messages may be delivered now."""
        if self.ending or not self.alive or self.ledger.spread >= SPAN:
            return 0
        return self.window - self.ledger.unsettled

    def probe(self) -> bool:
        self.asked = True
        self._more.set()
        return True

    def epoch_of(self, tag: str) -> int:  # noqa: ARG002
        return self.epoch

    @property
    def idle_for_proof(self) -> bool:
        return False

    def failed(self, tag: int, failures: int, head: object) -> None:  # noqa: ARG002
        """Several messages may be about to be tried again."""
        done = self.ledger.is_settled
        self.failures = {each: count for each, count in self.failures.items() if not done(each)}
        self.failures[tag] = failures

    def resize(self, window: int, epoch: int, resume: int | None) -> None:  # noqa: ARG002
        self.window, self.epoch = window, epoch
        self._more.set()

    def resume(self) -> None:
        """Deliver more when half of the window is settled."""
        if 2 * self.ledger.unsettled <= self.window and self.alive:
            self._more.set()

    def stop(self) -> None:
        self.ending = True

    def end(self) -> None:
        self.alive = False

    def restart(self, window: int, epoch: int) -> None:
        self.ending = False
        self.resize(window, epoch, None)

    def settle(self, tag: int, outcome: Outcome) -> bool:
        """Write it off. What is given back stays where it is: in the stream, above the stored offset."""
        if not self.alive or (outcome not in ACKED and outcome is not Outcome.DROPPED):
            return False
        return self.ledger.ack(tag)

    def flush(self, singles: bool = True) -> None:
        """Nothing goes to the broker: the lane stores offsets from time to time."""
