"""A consumer and the unsettled messages that it holds, in order."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue

from leash.amqp import Connection, Deliveries
from leash.amqp.last_acks import AT_ONCE
from leash.errors import AmqpError, ChannelError, Interrupted, ReplyTimeout
from leash.spark.task.rescuing import restore

LOOK = 0.05  # seconds between two looks at what may have changed
_CLOSED = 200  # the reply code of a channel that we closed


class Hold:
    """A consumer with a channel of its own."""

    def __init__(self, link: Connection, queue: str, window: int, exclusive: bool = False) -> None:
        self.queue = queue
        self.came_back = False
        """True if the newest message is a redelivery: then more of those may follow."""
        self.last = self._before = self._newest = 0
        self.window = window
        self._received = 0
        self._came: SimpleQueue[Deliveries | None] = SimpleQueue()
        self._cancelled = self._enough = False
        self._consumers = self._settlements = 0
        self.channel = link.channel()
        self.channel.on_lost = lambda _: self._came.put(None)
        self._tag = self._consume(window, exclusive)

    @property
    def full(self) -> bool:
        """True if no more can arrive until some are acked."""
        return self._received >= self.window

    def next(self, timeout: float) -> Deliveries | None:
        """The next messages; None if none arrived in time."""
        lot = None
        with suppress(Empty):
            lot = self._came.get(timeout > 0, timeout)
        if lot is None:
            self.channel.deliveries(0)  # raises what ended the channel
            if self._cancelled:
                raise Interrupted(f"the broker ended the consumer of queue {self.queue!r}")
            return None
        self.came_back = lot.redelivered[-1]
        self._newest = lot.tags[-1]
        self._received += len(lot)
        return restore(lot)

    def sync(self) -> Deliveries | None:
        """The next messages; None if the broker has sent none before it answered a round trip."""
        here = self.channel.mark()
        while not here():
            if (lot := self.next(LOOK)) is not None:
                return lot
        return self.next(0)

    def take(self, lot: Deliveries, count: int) -> None:
        """Take the first `count` of these, to be acked."""
        self._before, self.last = self.last, lot.tags[count - 1]

    def tag_before(self, lot: Deliveries, at: int) -> int:
        """The tag before index `at` of the lot that was taken last."""
        return lot.tags[at - 1] if at else self._before

    def extend(self, more: int) -> None:
        """Let this many more messages follow those that are held.

        A consumer's prefetch count is fixed, so this needs another consumer, and the first one ends before: a
        dead channel's messages would go to its other consumer, and be redelivered out of order.
        """
        self.channel.cancel(self._tag)
        self._tag = self._consume(more)
        self.window += more

    def move_on(self, lot: Deliveries, count: int) -> None:
        """Ack the first `count` of the newest lot, and all before: they are safe elsewhere."""
        self._ack(lot.tags[count - 1])
        self._received -= count

    def stop(self) -> None:
        """Ignore messages that still arrive."""
        self._enough = True

    def confirm(self) -> None:
        """A round trip."""
        self.channel.qos(1)

    @property
    def exact(self) -> bool:
        """True if `last` is the last message held, and no more can arrive."""
        return self.full and self.last == self._newest

    def ack(self, last: int) -> None:
        """Ack up to `last`, and close.

        If nothing else is held, cancel first, so that the acks let no more in. Otherwise others would
        overtake the messages that are returned.
        """
        self.stop()
        if self.exact and last == self.last:
            self.channel.cancel(self._tag)
        if last:
            self._ack(last)
        self._settle()
        self.channel.close()
        error = self.channel.error
        if not isinstance(error, ChannelError) or error.code != _CLOSED:
            raise error or ReplyTimeout(f"no answer to the end of queue {self.queue!r}")

    def close(self) -> None:
        """Close the channel; unacked messages return to their places."""
        self.stop()
        with suppress(AmqpError):
            self._settle()
            self.channel.close()

    def _ack(self, last: int) -> None:
        self.channel.ack(last, multiple=True)
        self._settlements += self._consumers

    def _settle(self) -> None:
        """Like `last_acks.settled`, but there is always a consumer, so that others see that we are here."""
        if self._settlements > AT_ONCE:
            self.extend(1)
            self.extend(1)

    def _consume(self, window: int, exclusive: bool = False) -> str:
        # If the messages of a channel's consumers are returned,
        # RabbitMQ orders the consumers by their tags.
        self._consumers += 1
        self.channel.qos(window)
        return self.channel.consume(
            self.queue,
            tag=f"leash-{self._consumers:06}",
            exclusive=exclusive,
            deliver=self._deliver,
            on_cancel=self._on_cancel,
        )

    # --- the reader's thread ---

    def _deliver(self, lot: Deliveries) -> None:
        if not self._enough:
            self._came.put(lot)

    def _on_cancel(self, _: str) -> None:
        self._cancelled = True
        self._came.put(None)
