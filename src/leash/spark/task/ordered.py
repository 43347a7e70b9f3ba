"""Taking a queue's messages in order, even if several attempts run and some die.

1. One attempt at a time: it holds the queue's lock, which ends with its connection, and waits until nobody
   else consumes. A classic queue's exclusive consumer does the same.
2. An attempt that holds unsealed messages has a consumer on their queue, so that the next one sees it
   until they are back. So unsealed messages are returned by closing the channel, never by a cancel or a nack.
3. A quorum queue delivers returned messages before all others, in the order in which they were returned. So
   an attempt that returns any must hold all of them: half would end up behind the rest. The driver plans
   with a window that is large enough for what may have been returned; if that is unknown, as at the start, an
   attempt extends its own until a message arrives that was never delivered before, and tells those after it.
4. A message redelivered too often must be rescued, and a copy at the end would lose its place. So the head
   of a quorum queue, as far as it is in danger, moves to its limbo, which has no limit. An attempt takes
   limbo first, and the queue once limbo is empty. The plan may be wrong about the queue, which may have been
   declared anew: so the first attempt that gets a redelivery inspects it, and tells those after it.

A crash between a copy and its ack repeats messages, flagged. It neither loses any nor changes their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from leash.amqp import Connection, Deliveries, QueueState, delivery_limit, topology
from leash.amqp.queue_traits import traits
from leash.errors import AmqpError, Interrupted, NotFound, QueueHeld, ResourceLocked
from leash.spark.task.held_messages import LOOK, Hold
from leash.spark.task.records import Records
from leash.spark.task.rescuing import Rescuer, endangered, only
from leash.spark.task.taking import DEADLINE, PREFETCH_MAX

_GONE = 5.0  # seconds for the broker to notice that a channel was closed


def lock_queue(name: str) -> str:
    """The holder of this lock may read that queue."""
    return f"leash.lock.{name}"


def lock(link: Connection, queue: str) -> bool:
    """Take a queue's lock; False if another connection has it."""
    try:
        with link.channel() as channel:
            topology.declare_queue(channel, lock_queue(queue), durable=False, exclusive=True)
    except ResourceLocked:
        return False
    return True


def unlock(link: Connection, queue: str) -> None:
    with link.channel() as channel:
        topology.delete_queue(channel, lock_queue(queue))


class OrderedTaker:
    """See `attempt.Taker`. `exclusive`: the queue's consumer excludes others. `with_limbo`: quorum queues."""

    def __init__(
        self,
        link: Connection,
        queue: str,
        poll_timeout: float,
        *,
        exclusive: bool,
        with_limbo: bool,
        rescuer: Rescuer,
        records: Records,
    ) -> None:
        self.ended = ""
        self.left_behind: int | None = None
        self.link = link
        self._queue = queue
        self._poll_timeout = poll_timeout
        self._exclusive, self._with_limbo = exclusive, with_limbo
        self._rescuer = rescuer
        self._records = records
        self._locked = False
        self._limbo: Hold | None = None
        self._limbo_empty = False
        self._head: Hold | None = None
        self._from: Hold | None = None
        self._sure: dict[Hold, int] = {}
        self._left = self._grant = 0
        self._deadline = time.monotonic() + DEADLINE

    # --- taking ---

    def lots(self, grant: int) -> Iterator[Deliveries]:
        self._left = self._grant = min(grant, PREFETCH_MAX)
        try:
            self._lock()
            while self._left > 0 and not self.ended:
                if self._with_limbo:
                    yield from self._from_limbo()
                if self._left > 0 and not self.ended:
                    yield from self._from_queue()
        except NotFound:
            self.ended = "gone"
        self.ended = self.ended or "filled"

    def _lock(self) -> None:
        """Become the only attempt; `ended` says if nothing is left to do."""
        while not self._exclusive:
            self._locked = lock(self.link, self._queue)
            # Checked with the lock: what another attempt has sealed must not be taken and returned again.
            if self._records.over():
                self.ended = "drained"
            if self._locked or self.ended:
                return
            self._be_patient(lock_queue(self._queue))

    def _alone(self, queue: str) -> None:
        """Wait until nobody consumes: the last holder of the lock may have just died."""
        while not self._exclusive and self._state(queue).consumers:
            self._be_patient(queue)

    def _be_patient(self, queue: str) -> None:
        if time.monotonic() > self._deadline:
            raise QueueHeld(
                f"queue {queue!r} was in use for {DEADLINE:g} s, and `ordered` cannot share it: another "
                "attempt hangs, or another client consumes it. Nothing was consumed"
            )
        time.sleep(LOOK)

    def _from_limbo(self) -> Iterator[Deliveries]:
        here: list[Deliveries] = []
        if self._limbo is None:
            delivery_limit.declare_limbo(self.link, self._queue)
            self._limbo, here = self._enter_limbo(delivery_limit.limbo_queue(self._queue))
        self._from, self._limbo_empty = self._limbo, False
        patience = 0.0
        while self._left > 0 and not self.ended:
            lot = here.pop(0) if here else self._next(self._limbo, patience)
            if lot is None:
                self._limbo_empty = not self.ended
                return
            patience = self._poll_timeout
            yield self._taken(self._limbo, lot)

    def _enter_limbo(self, name: str) -> tuple[Hold, list[Deliveries]]:
        """A hold on limbo, and the first messages.

        It holds all of limbo, since any of it may have been returned. A policy may give limbo a limit:
        so messages redelivered too often are copied to its end, with all behind them, to keep the order.
        """
        self._alone(name)
        one_window = self._state(name).ready <= PREFETCH_MAX
        hold = self._limbo = Hold(self.link, name, PREFETCH_MAX)
        lots: list[Deliveries] = []
        safe = False
        while (lot := self._next(hold, 0)) is not None:
            lots.append(lot)
            safe = not endangered(lots[0], delivery_limit.danger())
            if safe and one_window:
                break
            if hold.full:
                hold.extend(PREFETCH_MAX)
        if safe or not lots or self.ended:
            return hold, lots
        for lot in lots:
            if len(self._rescuer.send(name, lot, range(len(lot)), in_order=True)) < len(lot):
                return hold, lots
        hold.move_on(lots[-1], len(lots[-1]))
        hold.close()
        return self._enter_limbo(name)

    def _from_queue(self) -> Iterator[Deliveries]:
        known = self._records.window() if self._with_limbo else 0
        if known is not None and known > PREFETCH_MAX:
            known = None  # more than one window: this attempt has to find out for itself
        window = max(self._grant, known or 0)
        self._alone(self._queue)
        hold = self._head = self._from = Hold(self.link, self._queue, window, self._exclusive)
        first = True
        while self._left > 0 and not self.ended:
            lot = self._next(hold, self._poll_timeout)
            if lot is None:
                if known is None and not self.ended:
                    self._records.note_window(hold.window)
                self.ended = self.ended or "drained"
                return
            # Every attempt takes the queue from its start: if any was redelivered too often, the first was.
            danger = None
            if first and endangered(lot, 1):
                found = traits(self.link, self._queue)
                danger = delivery_limit.danger(delivery_limit.limit_of(found, self.link.version))
                if not self._with_limbo and found is not None and found.kind == "quorum":
                    self._begin_limbo()
                    known = None
            if danger is not None and self._with_limbo and self._moved(hold, lot, danger):
                if known is None:
                    self._hold_all(hold)
                hold.close()
                self._head = None
                return
            if known is None and (hold.full or not hold.came_back):
                known = self._hold_all(hold)
            first = False
            yield self._taken(hold, lot)

    def _begin_limbo(self) -> None:
        """Begin to use limbo: this is a quorum queue, unlike when the split was planned.

        Messages that we hold stay held: returning them might be once too often.
        """
        self._with_limbo, self._exclusive = True, False
        self._records.note_limbo()
        delivery_limit.declare_limbo(self.link, self._queue)
        self._locked = lock(self.link, self._queue)
        if not self._locked:
            raise Interrupted(f"another attempt has queue {self._queue!r}")

    def _taken(self, hold: Hold, lot: Deliveries) -> Deliveries:
        count = min(len(lot), self._left)
        hold.take(lot, count)
        self._left -= count
        if time.monotonic() > self._deadline:
            self.ended = "deadline"
        return lot if count == len(lot) else only(lot, range(count))

    def _next(self, hold: Hold, patience: float) -> Deliveries | None:
        """The next messages; None once there are surely none, or the deadline has passed."""
        while True:
            if (lot := hold.next(patience)) is not None:
                return lot
            ready = self._state(hold.queue).ready
            if (lot := hold.sync()) is not None:
                return lot
            if ready == 0:
                return None
            if time.monotonic() > self._deadline:
                self.ended = "deadline"
                return None
            patience = self._poll_timeout

    def _hold_all(self, hold: Hold) -> int | None:
        """Hold all returned messages: those beyond this split must be returned together with it.

        Returns the window that this takes.
        """
        more = 1
        while hold.came_back and not self.ended:
            if hold.full:
                hold.extend(more)
                more = min(8 * more, PREFETCH_MAX)
            elif self._next(hold, 0) is None:
                break
        if self.ended:
            return None
        self._records.note_window(hold.window)
        return hold.window

    def _moved(self, hold: Hold, lot: Deliveries | None, danger: int) -> bool:
        """Move the endangered head of the queue to limbo; True if there was any."""
        moved = False
        while lot is not None and (places := endangered(lot, danger)):
            count = places[-1] + 1
            sent = self._rescuer.send(
                delivery_limit.limbo_queue(self._queue), lot, range(count), in_order=True
            )
            if sent:
                hold.move_on(lot, len(sent))
                moved = True
            if len(sent) < len(lot):
                break
            lot = self._next(hold, 0)
        return moved

    def _state(self, queue: str) -> QueueState:
        """Asked on a separate channel: asking about a missing queue closes the channel."""
        try:
            with self.link.channel() as channel:
                return topology.state(channel, queue)
        except NotFound as error:
            if queue == self._queue:
                raise
            raise Interrupted(f"{queue!r} was deleted: {error}") from error

    # --- settling ---

    @property
    def holds(self) -> list[Hold]:
        """The queue first: limbo is released last."""
        return [hold for hold in (self._head, self._limbo) if hold is not None]

    def end_before(self, lot: Deliveries, at: int, why: str) -> None:
        """End the split before index `at` of the last lot."""
        assert self._from is not None
        self._from.last = self._from.tag_before(lot, at)
        self.ended = why

    def sure_before(self, lot: Deliveries, at: int) -> None:
        """Remember index `at` of the last lot, for `ack`."""
        assert self._from is not None
        self._sure = {hold: hold.last for hold in self.holds}
        self._sure[self._from] = self._from.tag_before(lot, at)

    def confirm(self) -> None:
        if self.ended == "gone":
            return
        if self._head is not None:
            self._head.stop()
        for hold in self.holds:
            hold.confirm()
        if self._limbo is not None and self._limbo_empty and self._limbo.next(0) is not None:
            raise Interrupted(f"messages in {self._limbo.queue!r} arrived too late to be taken first")

    def ack(self, sure_only: bool = False) -> None:
        """Ack all that was taken; `sure_only`: only what is before the position given to `sure_before`."""
        try:
            if self.ended != "gone":
                for hold in self.holds:
                    hold.ack(self._sure.get(hold, 0) if sure_only else hold.last)
                    if hold is self._head and self._with_limbo:
                        self.left_behind = self._went_back(hold)
        finally:
            self.give_back()

    def _went_back(self, hold: Hold) -> int | None:
        """How many messages, at most, were returned to the queue by closing the channel."""
        if hold.exact:
            return 0
        deadline = time.monotonic() + _GONE
        while (state := self._state(hold.queue)).consumers:
            if time.monotonic() > deadline:
                return hold.window
            time.sleep(LOOK / 10)
        return min(hold.window, state.ready)

    def give_back(self) -> None:
        for hold in self.holds:
            hold.close()
        if self._locked:
            self._locked = False
            with suppress(AmqpError):
                unlock(self.link, self._queue)
