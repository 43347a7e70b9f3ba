"""One queue's channel: its consumer, its window, its ledger. A new channel is a new link.

All of it is under the engine's lock. Frames go to the outbox in the order of the decisions, and no thread
waits for an answer: cancel, qos and consume are sent together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from pamqp import commands
from pamqp.base import Frame as Method
from pamqp.common import FieldTable

from leash.amqp import wire
from leash.amqp.channel import Channel, Reply
from leash.amqp.delivery_limit import LIMIT
from leash.amqp.wire import Deliveries
from leash.consumer.ack_ledger import Ledger
from leash.consumer.clock import SYSTEM, Clock
from leash.consumer.outbox import Outbox
from leash.consumer.settings import Queue
from leash.consumer.settle import ACKED, Outcome

_Consume = wire.unchecked(commands.Basic.Consume)
_serial = itertools.count(1)
_PROOF = "leash-proof"
_LAST: FieldTable = {"x-priority": -1000}
"""The priority of a consumer that gets nothing while another one has room."""
_EPOCHS = 8
"""Consumers whose epochs are remembered: messages of older ones have long arrived."""


class Link:
    """A channel that consumes one queue. When it is not `alive`, its messages cannot be settled."""

    stream = False
    """True if it stands for a stream, which takes no message back."""
    gathers = False
    """True if workers are woken for all messages of a read together, see `Engine.arrived`."""
    due: set[Link] | None = None
    """It adds itself here if it has acks to send, or waits for them."""

    def __init__(
        self,
        spec: Queue,
        channel: Channel,
        outbox: Outbox,
        clock: Clock = SYSTEM,
        *,
        limit: int | None = LIMIT,
        counted: bool = False,
        fleeting: bool = False,
        delays: bool = False,
        limbo: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        self.clock = clock
        self.limit = limit
        """How often the broker delivers a message before it drops it, as far as is known; None: no limit."""
        self.counted = counted
        """True if the broker counts redeliveries; otherwise such a header is the publisher's."""
        self.fleeting = fleeting
        """True if the broker deletes the queue with its last consumer, or may: so one always stays."""
        self.delays = delays
        """True if the queue delays what is rejected to it, and so does the waiting between two tries."""
        self.limbo = limbo
        """True if it takes messages out of limbo one by one and has no consumer."""
        self.queue = spec.name
        self.spec = spec
        self.channel = channel
        self.outbox = outbox
        self.ledger = Ledger(channel.number) if ledger is None else ledger
        self.alive = True
        self.ending = False
        """True if it takes no more messages: those that still arrive are returned."""
        self.failures: dict[int, int] = {}
        """How often the message at the head of an ordered lane failed in place."""
        self.head: object = None
        """That message's identity, to recognise it on another channel."""
        self._deliver: Callable[[Link, Deliveries], None] | None = None
        self._on_cancel: Callable[[Link], None] | None = None
        self._tag: str | None = None
        self._starting = True  # the broker may not know the first consumer yet: nothing to cancel
        self._resized: tuple[int, int, int | None] | None = None  # asked for while starting
        self._epochs: dict[str, int] = {}
        self._next: tuple[int, int, int] | None = None  # window, epoch, old messages left
        self._window = 0
        self._last = 0  # the count of settled messages when the last old one is settled

    def start(
        self,
        window: int,
        epoch: int,
        deliver: Callable[[Link, Deliveries], None],
        on_cancel: Callable[[Link], None],
    ) -> Reply:
        """Consume; call the result to wait for the broker's answer. Not under the lock."""
        self._deliver, self._on_cancel = deliver, on_cancel
        self._window = window
        self._tag = self._new_tag(epoch)
        self.channel.expect_consumer(self._tag, self._on_deliver, self._cancelled)
        self.channel.ask(commands.Basic.Qos(0, window, False), commands.Basic.QosOk)
        return self.channel.ask(self._consume(self._tag, nowait=False), commands.Basic.ConsumeOk)

    def started(self) -> None:
        """The consumer has been asked for: carry out what was requested meanwhile."""
        self._starting = False
        if not self.alive:
            return
        if self.ending:
            self.stop()
        elif self._resized is not None:
            self.resize(*self._resized)
        self._resized = None

    @property
    def connected(self) -> bool:
        """True if messages can come."""
        return self.alive

    @property
    def frame_max(self) -> int:
        """The bytes of a frame, for copies of its messages."""
        return self.channel.connection.frame_max

    def probe(self) -> bool:
        """Count the messages that are ready. False: the broker is to be asked by another channel."""
        return False

    def failed(self, tag: int, failures: int, head: object) -> None:
        """Note that the message at the head of an ordered lane failed."""
        self.failures = {tag: failures}
        self.head = head

    def epoch_of(self, tag: str) -> int:
        """The epoch of a consumer."""
        return self._epochs.get(tag, 0)

    @property
    def idle_for_proof(self) -> bool:
        """True if it has room for messages: then silence is news, and a second consumer is sent none."""
        busy = self.ending or self.spec.exclusive or self._tag is None or self._next is not None
        return self.alive and not busy and self.ledger.unsettled < self._window

    def ask_proof(self, by: Channel | None) -> Reply:
        """Ask for one more consumer, to see whether the queue can be reached. Not under the lock.

        It goes by another channel, a new one or one that was used for this before. A node that is cut off
        leaves the question open for ten seconds, even if it is back before, and does nothing else for that
        channel meanwhile: it would not notice that the channel ended, and keep its consumer active.
        """
        if by is None or by.closed:
            by = self.channel.connection.channel(wait=False)
            by.ask(commands.Basic.Qos(0, 1, False), commands.Basic.QosOk)
        by.expect_consumer(_PROOF, None)
        return by.ask(_Consume(0, self.queue, _PROOF, arguments=_LAST), commands.Basic.ConsumeOk)

    def end_proof(self, by: Channel) -> None:
        """End that consumer. Not under the lock."""
        by.write(wire.method(by.number, commands.Basic.Cancel(_PROOF, True)))

    def resize(self, window: int, epoch: int, resume: int | None) -> None:
        """Change the window; a smaller one takes effect when `resume` old messages are left."""
        if self._starting:
            self._resized = (window, epoch, resume)
            return
        old = self._tag
        if old is not None and not self.fleeting:
            self._cancel(old)
        self._next = (window, epoch, 1 << 62 if resume is None or self.fleeting else resume)
        if self.due is not None:
            self.due.add(self)
        self.resume()
        if old is not None and self.fleeting:
            self._cancel(old)

    def resume(self) -> None:
        """Consume with the new window if it is time."""
        if self._next is None or self.ending or not self.alive:
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
        if self._tag is not None and self.alive and not self._starting:
            self._cancel(self._tag)

    def end(self) -> None:
        """Its channel is gone, or about to be closed."""
        self.alive = False
        if self.channel.closed:
            self.outbox.forget(self.channel.number)

    def restart(self, window: int, epoch: int) -> None:
        """The inverse of `stop`."""
        self.ending = False
        self.resize(window, epoch, None)

    def acks(self) -> Callable[[int], bool]:
        """A function that acks a tag with the next flush and returns what `settle` does. Under the lock."""
        if self.due is not None:
            self.due.add(self)
        return self.ledger.ack if self.alive else _gone

    @property
    def waits(self) -> bool:
        """True if it is to consume again when more messages are settled."""
        return self.alive and not self.stream and self._next is not None

    def settle(self, tag: int, outcome: Outcome) -> bool:
        """Settle a delivery. False: already settled, or the channel is gone and the broker redelivers it."""
        if outcome in ACKED:
            return self.acks()(tag)
        if not self.alive:
            return False
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

    def _cancel(self, tag: str) -> None:
        self._send(commands.Basic.Cancel(tag, False))
        if tag == self._tag:
            self._tag = None
        # Messages in flight are not in the ledger yet: all credit is assumed to be used.
        self._last = self.ledger.settled + max(self._window, self.ledger.unsettled)

    def _consume(self, tag: str, nowait: bool) -> Method:
        return _Consume(0, self.queue, tag, False, False, self.spec.exclusive, nowait, {})

    def _send(self, method: Method) -> None:
        self.outbox.add(wire.method(self.channel.number, method))

    def _new_tag(self, epoch: int) -> str:
        tag = f"leash-{self.queue[:40]}-{next(_serial)}"
        self._epochs[tag] = epoch
        if len(self._epochs) > _EPOCHS:
            del self._epochs[next(iter(self._epochs))]
        return tag

    def _on_deliver(self, batch: Deliveries) -> None:
        assert self._deliver is not None
        self._deliver(self, batch)

    def _cancelled(self, tag: str) -> None:
        if tag == self._tag and self._on_cancel is not None:
            self._on_cancel(self)


def _gone(_: int) -> bool:
    return False
