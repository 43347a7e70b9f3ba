"""Where the threads meet: one lock around Flow and the links.

The connection's reader puts messages in, workers take batches of them and report the results, the upkeep
thread keeps time. No thread waits, writes or logs under the lock: frames go to the outbox and log lines to
`notes`, and the thread that leaves the lock writes them.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from leash.amqp.queue_traits import Traits
from leash.consumer.arrivals import Arrivals
from leash.consumer.clock import SYSTEM, Clock
from leash.consumer.costs import Costs
from leash.consumer.deferred_log import Notes
from leash.consumer.link import Link
from leash.consumer.outbox import Claim, Outbox, claim_one, write_all
from leash.consumer.raw_delivery import LINK, Raw
from leash.consumer.settle import Settler
from leash.errors import AmqpError
from leash.flow import Ask, Dispatch, Flow, Probe, SetWindow

if TYPE_CHECKING:
    from leash.consumer.breaker_gate import Gate
    from leash.consumer.message import Message
    from leash.consumer.rescuing import Limbo

NAP = 1_000_000_000
"""A waiting worker looks again after this many ns in any case."""


NEVER = 1 << 62

LINGER = 1_000_000
"""Once a worker finds no work, acks wait this many ns for more: a frame costs the broker as much as many
messages."""

FAST = 8
"""From this batch size on, work may be left to a busy worker's next turn, for at most 500 us."""


class Finished(NamedTuple):
    """What a worker reports: dispatches, ns for each, and the messages to ack."""

    dispatches: list[Dispatch]
    services: list[int]
    done: list[Raw]


class Engine:
    """Shared by all threads of one consumer."""

    def __init__(self, flow: Flow, costs: Costs | None, clock: Clock = SYSTEM) -> None:
        self.flow = flow
        self.clock = clock
        self.lock = threading.Lock()
        self.ready = threading.Condition(self.lock)
        self.links: dict[str, Link] = {}
        self.absent: set[str] = set()
        """Queues whose link was lost, or refused."""
        self.due: set[Link] = set()
        """Links that may have acks to send, or wait for them to consume again."""
        self.unwritten: list[Outbox] = []
        """Outboxes with frames."""
        self.stopping = False
        self.probes: list[str] = []
        self.severed: list[Link] = []
        """Links that the broker cancelled, whose channels are still to be closed."""
        notes = Notes()
        self.note, self.emit = notes.add, notes.emit
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in flow.lanes}
        self.errors: dict[tuple[str, str], tuple[str, int, str | None, int, float]] = {}
        """By queue and type: the last text, how many, its message id and tries, and when; the latest last."""
        self.nudge = threading.Event()
        """Set when the upkeep has something to do before its next tick."""
        self.on_ready: Callable[[], None] | None = None
        """Wakes workers that wait in an event loop."""
        self.on_ask: Callable[[], object] = lambda: None
        """Called when permits of a budget are wanted, or should be returned."""
        self.streams: list[str] = []
        self.standby: set[str] = set()
        """Streams that another process consumes for now."""
        self.traits: dict[str, Traits | None] = {}
        """What the broker said about each queue; None if it did not."""
        self.arrivals = Arrivals(self, costs)
        self.settler = Settler(self)
        self.limbo: Limbo | None = None
        self.gate: Gate | None = None
        self._idle = 0
        self._next_look = NEVER  # when the first waiting worker looks again

    # --- links ---

    def lost(self, link: Link, error: AmqpError | None = None) -> None:
        """The link's channel is gone: its messages can no longer be settled."""
        with self.lock:
            if not link.alive:
                return
            link.end()
            self.arrivals.remember(link)
            if self.links.get(link.queue) is link:
                del self.links[link.queue]
                self.absent.add(link.queue)
                self.flow.forget(self.clock.now(), link.queue)
            self.counts[link.queue]["lost"] += link.ledger.unsettled
            if error is not None and not self.stopping:
                self.note(logging.WARNING, "channel_lost", queue=link.queue, reason=str(error))
        self.nudge.set()

    def cancelled(self, link: Link) -> None:
        """The broker ended the consumer: its queue was deleted, or moved."""
        self.note(logging.WARNING, "cancelled_by_broker", queue=link.queue)
        self.severed.append(link)
        self.lost(link)

    # --- workers ---

    def pull(
        self, finished: Finished | None, most: int | None = None, until: int | None = None
    ) -> list[Dispatch] | None:
        """Report what is finished and wait for work; None: stop.

        Returns an empty list once `until` has passed, once no message can arrive before `until` because the
        buffer's limit is in work, or when the next message is to be taken from limbo.
        """
        since: int | None = None
        while True:
            with self.lock:
                limbo = self._limbo_due()
                work, data = self._exchange(finished, 0 if limbo else most, since)
                finished = None
                if not (work or limbo or self.stopping) and data is None:
                    now = self.clock.now()
                    since = since or now
                    self._sleep(now, self.patience(now, since, until))
                    work, data = self._exchange(None, most, since)
            if data is not None:
                write_all(data, self.unwritten, self.lock)
            if work:
                return work
            if self.stopping:
                return None
            if limbo or (until is not None and (self.clock.now() >= until or self.flow.spent)):
                return []

    def _limbo_due(self) -> bool:
        if self.limbo is None or self.stopping:
            return False
        now = self.clock.now()
        return self.limbo.due(now) and not self.limbo.rescuing(now)

    def _sleep(self, now: int, most: int) -> None:
        wait = self.flow.wait(now)
        nap = min(NAP, most, NAP if wait is None else wait)
        wakes = now + nap
        self._next_look = min(self._next_look, wakes)
        self._idle += 1
        self.ready.wait(nap / 1e9)
        self._idle -= 1
        if self._next_look >= wakes:
            self._next_look = NEVER

    def patience(self, now: int, since: int, until: int | None) -> int:
        """How long a worker may sleep that has found no work since `since`."""
        linger = since + LINGER - now
        nap = linger if linger > 0 else NAP
        return nap if until is None else max(0, min(nap, until - now))

    def try_pull(
        self, finished: Finished | None, most: int | None, since: int | None
    ) -> tuple[list[Dispatch], int | None, bool]:
        """The same for an event loop: neither waits nor writes. Also returns how long to wait, and whether
        the next message is to be taken from limbo.
        """
        with self.lock:
            limbo = self._limbo_due()
            work, _ = self._exchange(finished, 0 if limbo else most, since, claim=False)
            return work, self.flow.wait(self.clock.now()), limbo

    def _exchange(
        self, finished: Finished | None, most: int | None, since: int | None, claim: bool = True
    ) -> tuple[list[Dispatch], Claim | None]:
        now = self.clock.now()
        flow = self.flow
        if finished is not None:
            self._finish(now, finished)
        work: list[Dispatch] = []
        if not self.stopping and (self.limbo is None or not self.limbo.rescuing(now)):
            work = flow.take(now, most, since)
        if flow.decisions:
            self.carry_out()
        if not work:
            if self.stopping or (since is not None and now - since >= LINGER):
                self.flush()
        elif self._idle and (flow.buffered >= flow.batch or (flow.sidelines.next or NEVER) < self._next_look):
            self.ready.notify()  # enough work for another worker, or a worker to be woken later
        return work, claim_one(self.unwritten) if claim else None

    def _finish(self, now: int, finished: Finished) -> None:
        dispatches, services, done = finished
        if dispatches:
            self.flow.done(now, dispatches, services)
        self.settler.done(done)
        for link in dict.fromkeys(
            [dispatch.messages[0][LINK] for dispatch in dispatches if dispatch.messages]
        ):
            if link.alive:
                self.settler.ack_due(link)

    def give_back(self, raws: list[Raw]) -> None:
        """Return messages that no worker started."""
        with self.lock:
            for raw in raws:
                self.settler.give_back(raw[LINK], [raw])
        self.nudge.set()

    # --- under the lock ---

    def keep(self, message: Message) -> None:
        """Buffer a message that could not be rescued."""
        link = message.link
        if link.ending:
            self.settler.give_back(link, [message.raw])
        elif link.alive:
            self.flow.arrive(self.clock.now(), link.queue, [message.raw])
            self.wake()

    def carry_out(self) -> None:
        """Carry out what Flow decided besides dispatching."""
        for decision in self.flow.decisions:
            if isinstance(decision, Ask):
                self.on_ask()
                continue
            link = self.links.get(decision.lane)
            if isinstance(decision, Probe):
                if link is None or not link.probe():
                    self.probes.append(decision.lane)
                    self.nudge.set()
                continue
            if isinstance(decision, SetWindow):
                window, reason = decision.window, decision.reason
                self.note(logging.DEBUG, "window", queue=decision.lane, window=window, reason=reason)
                if link is not None:
                    link.resize(window, decision.epoch, decision.resume)
            else:
                self.settler.shed(decision)
                self.note(
                    logging.INFO, "shed", queue=decision.lane, kind=decision.kind, reason=decision.reason
                )
        self.flow.decisions.clear()

    def flush(self) -> None:
        due = list(self.due)
        self.due.clear()
        for link in due + [self.links[name] for name in self.streams if name in self.links]:
            link.flush()
            link.resume()
            if link.waits:
                self.due.add(link)
        if self.limbo is not None:
            for link in self.limbo.links():
                link.flush()

    def wake(self) -> None:
        """Wake one worker per batch of work; if handlers are fast, a running worker will be back soon."""
        if self._idle:
            batch = self.flow.batch
            count = self.flow.buffered // batch
            if not count and (batch < FAST or self._idle == self.flow.workers):
                count = 1
            if count:
                self.ready.notify(min(count, self._idle))
        if self.on_ready is not None:
            self.on_ready()

    def arrived(self) -> None:
        """Wake workers for all messages of one read. Not under the lock."""
        if self._idle or self.on_ready is not None:  # a worker that is not idle yet finds the messages
            with self.lock:
                self.wake()

    def granted(self) -> None:
        """Wake the workers: permits of a budget came."""
        self.flow.told(self.clock.now())
        self.ready.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    def check(self) -> None:
        """Wake another worker if the busy one turned out to be slow."""
        limbo = self._limbo_due()
        if self._idle and (self.flow.buffered or limbo):
            self.ready.notify()
        if limbo and self.on_ready is not None:
            self.on_ready()

    def drain(self, outbox: Outbox | None = None) -> bool:
        """Write the frames that are due, and wait for those of `outbox` that another thread writes. False:
        they are not out. Not under the lock.
        """
        with self.lock:
            claim = claim_one(self.unwritten)
            added = 0 if outbox is None else outbox.added
        write_all(claim, self.unwritten, self.lock)
        return outbox is None or outbox.wait(added)

    # --- at run time ---

    def pause(self, queue: str) -> None:
        with self.lock:
            self.flow.pause(queue)
            link = self.links.get(queue)
            if link is not None and not link.spec.sole and not link.fleeting:
                link.stop()
                self.settler.give_back(link, self.flow.forget(self.clock.now(), queue))
        self.nudge.set()

    def resume(self, queue: str) -> None:
        with self.lock:
            self.flow.resume(queue)
            link = self.links.get(queue)
            if link is not None and link.ending:
                state = self.flow.lanes[queue]
                link.restart(state.credit, state.window.epoch if state.window else 0)
            self.ready.notify_all()
        self.nudge.set()

    def stop(self) -> None:
        """End the work: cancel, and return what was not started; ordered lanes keep theirs until the end."""
        with self.lock:
            self.stopping = True
            for link in list(self.links.values()):
                if link.spec.ordered:
                    link.ending = True
                    self.flow.forget(self.clock.now(), link.queue)
                else:
                    link.stop()
                    self.settler.give_back(link, self.flow.forget(self.clock.now(), link.queue))
            self.ready.notify_all()
            if self.on_ready is not None:
                self.on_ready()
        self.nudge.set()
