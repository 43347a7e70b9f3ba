"""One queue's channel: its consumer, its window, its ledger. A new channel is a new link.

All of it is under the engine's lock. Frames go to the outbox in the order of the decisions, and nobody waits
for an answer: cancel, qos and consume leave in one go.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from pamqp import commands
from pamqp.base import Frame as Method

from leash.amqp import wire
from leash.amqp.channel import Channel
from leash.amqp.wire import Deliveries
from leash.consumer.clock import SYSTEM, Clock
from leash.consumer.outbox import Outbox
from leash.consumer.settings import Queue
from leash.consumer.settle import ACKED, Ledger, Outcome

_Consume = wire.unchecked(commands.Basic.Consume)
_serial = itertools.count(1)


class Link:
    """A channel that consumes one queue. When it is not `alive`, what came by it cannot be settled."""

    def __init__(self, spec: Queue, channel: Channel, outbox: Outbox, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.queue = spec.name
        self.spec = spec
        self.channel = channel
        self.outbox = outbox
        self.ledger = Ledger(channel.number)
        self.alive = True
        self.ending = False
        """It is to take no more: what still comes is given back."""
        self.failures: dict[int, int] = {}
        """How often the message at the head of an ordered lane failed in place."""
        self._deliver: Callable[[Link, Deliveries], None] | None = None
        self._on_cancel: Callable[[Link], None] | None = None
        self._tag: str | None = None
        self._epochs: dict[str, int] = {}
        self._next: tuple[int, int, int] | None = None  # window, epoch, old messages at which to consume anew
        self._window = 0
        self._last = 0  # how many will have been settled when the last of the old messages is

    def start(
        self,
        window: int,
        epoch: int,
        deliver: Callable[[Link, Deliveries], None],
        on_cancel: Callable[[Link], None],
    ) -> Callable[[float], object]:
        """Consume; call what this returns to wait until the broker said yes. Not under the lock."""
        self._deliver, self._on_cancel = deliver, on_cancel
        self._window = window
        self._tag = self._new_tag(epoch)
        self.channel.expect_consumer(self._tag, self._on_deliver, self._cancelled)
        self.channel.ask(commands.Basic.Qos(0, window, False), commands.Basic.QosOk)
        return self.channel.ask(self._consume(self._tag, nowait=False), commands.Basic.ConsumeOk)

    def epoch_of(self, tag: str) -> int:
        """The epoch of a consumer; the first message of a newer one says that all of the older have come."""
        epochs = self._epochs
        if len(epochs) > 1 and tag in epochs:
            for older in list(itertools.takewhile(lambda name: name != tag, epochs)):
                del epochs[older]
                self.channel.forget_consumer(older)
        return epochs.get(tag, 0)

    def resize(self, window: int, epoch: int, resume: int | None) -> None:
        """Another window from now on; a smaller one when `resume` messages are left of the old."""
        if self._tag is not None:
            self._cancel()
        self._next = (window, epoch, 1 << 62 if resume is None else resume)
        self.resume()

    def resume(self) -> None:
        """Consume with the new window, if it is time."""
        if self._next is None or self.ending:
            return
        window, epoch, left = self._next
        if self._last - self.ledger.settled > left and self.ledger.unsettled:
            return
        self._next = None
        self.flush()
        self._window = window
        self._tag = self._new_tag(epoch)
        self.channel.expect_consumer(self._tag, self._on_deliver, self._cancelled)
        self._send(commands.Basic.Qos(0, window, False))
        self._send(self._consume(self._tag, nowait=True))

    def stop(self) -> None:
        """Take no more messages."""
        self.ending = True
        self._next = None
        if self._tag is not None and self.alive:
            self._cancel()

    def restart(self, window: int, epoch: int) -> None:
        """The end of `stop`."""
        self.ending = False
        self.resize(window, epoch, None)

    def settle(self, tag: int, outcome: Outcome) -> bool:
        """False: it was settled before, or the channel is gone and the broker delivers it again."""
        if not self.alive:
            return False
        if outcome in ACKED:
            return self.ledger.ack(tag)
        data = self.ledger.settle(tag, outcome)
        if data is None:
            return False
        self.outbox.add(data)
        return True

    def flush(self, singles: bool = True) -> None:
        """Send the acks that are due."""
        if self.alive and self.ledger.unsent:
            data = self.ledger.flush(singles)
            if data:
                self.outbox.add(data)

    def _cancel(self) -> None:
        self._send(commands.Basic.Cancel(self._tag, True))
        self._tag = None
        # Those on their way to us are not in the ledger yet: all credit is taken to be out.
        self._last = self.ledger.settled + max(self._window, self.ledger.unsettled)

    def _consume(self, tag: str, nowait: bool) -> Method:
        return _Consume(0, self.queue, tag, False, False, self.spec.exclusive, nowait, {})

    def _send(self, method: Method) -> None:
        self.outbox.add(wire.method(self.channel.number, method))

    def _new_tag(self, epoch: int) -> str:
        tag = f"leash-{self.queue[:40]}-{next(_serial)}"
        self._epochs[tag] = epoch
        return tag

    def _on_deliver(self, batch: Deliveries) -> None:
        assert self._deliver is not None
        self._deliver(self, batch)

    def _cancelled(self, tag: str) -> None:
        if tag == self._tag and self._on_cancel is not None:
            self._on_cancel(self)
