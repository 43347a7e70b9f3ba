"""Where the threads meet: one lock around Flow and the links.

The connection's reader puts messages in, workers take batches of them and bring back what became of them,
the conductor keeps time. Under the lock nobody waits, writes or logs; what is decided there is put into the
outbox and into `notes`, and done by whoever leaves.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from leash.amqp.properties import decode_properties
from leash.amqp.wire import Deliveries
from leash.consumer.clock import SYSTEM, Clock
from leash.consumer.costs import Costs
from leash.consumer.link import Link
from leash.consumer.message import Message, Raw
from leash.consumer.outbox import Outbox
from leash.consumer.settle import Outcome
from leash.errors import AmqpError, LeashError
from leash.flow import Dispatch, Flow, Probe, SetWindow, Shed

if TYPE_CHECKING:
    from leash.consumer.workers import Worker

log = logging.getLogger("leash.consumer")

NAP = 1_000_000_000
"""A waiting worker looks again after this many ns, whatever happens."""


NEVER = 1 << 62

LINGER = 1_000_000
"""Acks wait this many ns for more once a worker finds nothing: a frame costs the broker as much as many
messages."""

FAST = 8
"""From this batch size on, work that is left for the next turn of a busy worker waits for 500 us at most."""


class Finished(NamedTuple):
    """What a worker brings back: dispatches, ns for each, and the messages to ack."""

    dispatches: list[Dispatch]
    services: list[int]
    done: list[Raw]


class Engine:
    """Shared by all threads of one consumer."""

    def __init__(
        self,
        flow: Flow,
        costs: Costs | None,
        deadlines: frozenset[str] = frozenset(),
        clock: Clock = SYSTEM,
    ) -> None:
        self.flow = flow
        self.clock = clock
        self.lock = threading.Lock()
        self.ready = threading.Condition(self.lock)
        self.links: dict[str, Link] = {}
        self.outbox: Outbox | None = None
        self.stopping = False
        self.probes: list[str] = []
        self.severed: list[Link] = []
        """Links that the broker cancelled, whose channels are still to be closed."""
        self.notes: deque[tuple[int, str, dict[str, object]]] = deque(maxlen=1000)
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in flow.lanes}
        self.nudge = threading.Event()
        """Set when the conductor has something to do before its next tick."""
        self.on_ready: Callable[[], None] | None = None
        """For workers that wait in an event loop."""
        self._costs = costs
        self._deadlines = deadlines
        self._idle = 0
        self._next_look = NEVER  # when the first of those who wait looks again

    # --- the reader's thread ---

    def deliver(self, link: Link, batch: Deliveries) -> None:
        now = self.clock.now()
        raws: list[Raw] = list(
            zip(
                batch.tags,
                batch.redelivered,
                batch.exchanges,
                batch.routing_keys,
                batch.properties,
                batch.bodies,
                repeat(link),
                repeat(now),
                strict=False,
            )
        )
        costs = None if self._costs is None else self._cost(batch, raws)
        ages = None
        if link.queue in self._deadlines:
            wall = self.clock.wall()
            ages = [_age(raw, wall) for raw in batch.properties]
        with self.lock:
            link.ledger.delivered += len(raws)
            if not link.alive:
                return
            if link.ending:
                self._give_back(link, raws)
                self.nudge.set()
                return
            self.flow.arrive(now, link.queue, raws, costs, ages, link.epoch_of(batch.consumer_tag))
            self.wake()

    def _cost(self, batch: Deliveries, raws: list[Raw]) -> list[int] | None:
        assert self._costs is not None
        try:
            return self._costs(batch, raws)
        except Exception as error:  # the user's own function, in the thread that must go on reading
            self.note(logging.ERROR, "cost_failed", error=repr(error), messages=len(raws))
            return None

    def lost(self, link: Link, error: AmqpError | None = None) -> None:
        """Its channel is gone: what came by it cannot be settled any more."""
        with self.lock:
            if not link.alive:
                return
            link.alive = False
            if self.links.get(link.queue) is link:
                del self.links[link.queue]
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
        """Bring back what is finished and wait for work; None: stop. Empty only `until` has come."""
        since: int | None = None
        while True:
            with self.lock:
                work, data = self._exchange(finished, most, since)
                finished = None
                if not work and data is None and not self.stopping:
                    now = self.clock.now()
                    since = since or now
                    self._sleep(now, self.patience(now, since, until))
                    work, data = self._exchange(None, most, since)
            if data is not None and self.outbox is not None:
                self.outbox.write(data)
            if work:
                return work
            if self.stopping:
                return None
            if until is not None and self.clock.now() >= until:
                return []

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
        """How long a worker may sleep that found nothing `since` then."""
        linger = since + LINGER - now
        nap = linger if linger > 0 else NAP
        return nap if until is None else max(0, min(nap, until - now))

    def try_pull(
        self, finished: Finished | None, most: int | None, since: int | None
    ) -> tuple[list[Dispatch], int | None]:
        """The same for an event loop: never waits nor writes. Also says for how long to wait."""
        with self.lock:
            work, _ = self._exchange(finished, most, since, claim=False)
            return work, self.flow.wait(self.clock.now())

    def _exchange(
        self, finished: Finished | None, most: int | None, since: int | None, claim: bool = True
    ) -> tuple[list[Dispatch], bytes | None]:
        now = self.clock.now()
        flow = self.flow
        if finished is not None:
            self._finish(now, finished)
        work: list[Dispatch] = []
        if not self.stopping:
            work = flow.take(now, most, since)
        if flow.decisions:
            self.carry_out()
        if not work:
            if self.stopping or (since is not None and now - since >= LINGER):
                self.flush()
        elif self._idle and (flow.buffered >= flow.batch or (flow.sidelines.next or NEVER) < self._next_look):
            self.ready.notify()  # there is enough for one more, or somebody to be woken by time
        return work, self.outbox.claim() if claim and self.outbox is not None else None

    def _finish(self, now: int, finished: Finished) -> None:
        dispatches, services, done = finished
        if dispatches:
            self.flow.done(now, dispatches, services)
        self._ack(done)
        for link in dict.fromkeys([dispatch.messages[0][6] for dispatch in dispatches if dispatch.messages]):
            if link.alive:
                self._ack_due(link, link.queue)

    def _ack(self, done: list[Raw]) -> None:
        for raw in done:
            link = raw[6]
            if link.alive:
                link.ledger.ack(raw[0])

    def _ack_due(self, link: Link, lane: str) -> None:
        """Acks wait for each other for as long as the lane's window allows for it."""
        state = self.flow.lanes[lane]
        due = min(state.most, max(1, state.credit // 2))
        if link.ledger.unsent >= due:
            link.flush(singles=False)
            if link.ledger.unsent >= due:
                link.flush()
        link.resume()

    def claim(self, message: Message) -> bool:
        """It failed, and is not the handler's any more. False: it was settled, or its channel is gone."""
        with self.lock:
            if message._outcome is not None or not message._link.alive:
                return False
            message._outcome = Outcome.REPUBLISHED
        return True

    def settle(self, message: Message, outcome: Outcome, claimed: bool = False) -> bool:
        """One message, by hand or, once it is claimed, after it was republished."""
        link = message._link
        with self.lock:
            if (message._outcome is not None and not claimed) or not link.settle(message._tag, outcome):
                return False
            message._outcome = outcome
            self.counts[link.queue][outcome.value] += 1
            self._ack_due(link, link.queue)
        return True

    def recall(self, worker: Worker) -> None:
        """It is busy for longer than its batch should have taken: ack what is done, and let others have what
        it did not begin.
        """
        if not worker.done and not any(worker.todo):
            return
        with self.lock:
            if worker.begin is None or self.stopping:
                return
            now = self.clock.now()
            for index, todo in enumerate(worker.todo):
                back = [raw for raw in _drained(todo) if not self._useless(raw)]
                if back:
                    arrived = [raw[7] for raw in back]
                    worker.work[index] = self.flow.recall(now, worker.work[index], back, arrived)
            done = worker.done[:]
            del worker.done[: len(done)]
            self._ack(done)
            self.wake()

    def _useless(self, raw: Raw) -> bool:
        """Nobody is to begin with it: its queue is paused, or its channel gone."""
        if raw[6].alive and not raw[6].ending:
            return False
        self._give_back(raw[6], [raw])
        return True

    def give_back(self, raws: list[Raw]) -> None:
        """Messages that no worker started."""
        with self.lock:
            for raw in raws:
                self._give_back(raw[6], [raw])
        self.nudge.set()

    def _give_back(self, link: Link, raws: list[Raw]) -> None:
        if link.spec.ordered or not link.alive:
            return  # to keep the order, only the channel's end gives them back
        for raw in raws:
            link.settle(raw[0], Outcome.GIVEN_BACK)
        self.counts[link.queue][Outcome.GIVEN_BACK.value] += len(raws)

    # --- under the lock ---

    def carry_out(self) -> None:
        """What Flow decided besides dispatching."""
        for decision in self.flow.decisions:
            if isinstance(decision, Probe):
                self.probes.append(decision.lane)
                self.nudge.set()
                continue
            link = self.links.get(decision.lane)
            if isinstance(decision, SetWindow):
                self.note(
                    logging.INFO,
                    "window",
                    queue=decision.lane,
                    window=decision.window,
                    reason=decision.reason,
                )
                if link is not None:
                    link.resize(decision.window, decision.epoch, decision.resume)
            else:
                self._shed(decision)
        self.flow.decisions.clear()

    def _shed(self, shed: Shed) -> None:
        outcome = Outcome.GIVEN_BACK if shed.kind == "return" else Outcome.DROPPED
        raw = shed.message
        if raw[6].settle(raw[0], outcome):
            self.counts[shed.lane]["returned" if shed.kind == "return" else "dropped"] += 1
        self.note(logging.INFO, "shed", queue=shed.lane, kind=shed.kind, reason=shed.reason)

    def flush(self) -> None:
        for link in self.links.values():
            if link.ledger.unsent:
                link.flush()
            link.resume()

    def note(self, level: int, event: str, **fields: object) -> None:
        """A line for the log, written by the conductor."""
        self.notes.append((level, event, fields))

    def wake(self) -> None:
        """Wake as many workers as there are batches; where they are fast, whoever runs is back soon."""
        if self._idle:
            batch = self.flow.batch
            count = self.flow.buffered // batch
            if not count and (batch < FAST or self._idle == self.flow.workers):
                count = 1
            if count:
                self.ready.notify(min(count, self._idle))
        if self.on_ready is not None:
            self.on_ready()

    def check(self) -> None:
        """Should a busy worker have been slow after all, another one takes over."""
        if self._idle and self.flow.buffered:
            self.ready.notify()

    def drain(self) -> None:
        """Write what is due. Not under the lock."""
        if self.outbox is not None:
            self.outbox.drain()

    # --- at run time ---

    def pause(self, queue: str) -> None:
        with self.lock:
            self.flow.pause(queue)
            link = self.links.get(queue)
            if link is not None and not link.spec.sole:
                link.stop()
                self._give_back(link, self.flow.forget(self.clock.now(), queue))
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
        """No more work: cancel and give back what was not started; ordered lanes keep theirs till the end."""
        with self.lock:
            self.stopping = True
            for link in list(self.links.values()):
                if link.spec.ordered:
                    link.ending = True
                    self.flow.forget(self.clock.now(), link.queue)
                else:
                    link.stop()
                    self._give_back(link, self.flow.forget(self.clock.now(), link.queue))
            self.ready.notify_all()
            if self.on_ready is not None:
                self.on_ready()
        self.nudge.set()


def _drained(todo: deque[Raw]) -> list[Raw]:
    """All that is left, taken one by one from the end while a worker takes from the front."""
    taken = []
    with contextlib.suppress(IndexError):
        while True:
            taken.append(todo.pop())
    return taken[::-1]


def _age(raw: bytes, wall: float) -> int:
    """Ns since a message's timestamp; 0 without one."""
    try:
        stamp = decode_properties(raw).timestamp
    except LeashError:
        return 0
    return 0 if stamp is None else max(0, int((wall - stamp.timestamp()) * 1e9))
