"""Consuming partitions: an ordered lane for each queue, gates and markers obeyed, queues shared by processes.

A gate holds its lane until the queues that it names have passed their markers; a marker is passed when
everything before it is settled, and the broker knows. Queues that a resize brings are consumed as they come.
Single-active consumers share out the queues: who has more than its part hands one over, and if a process
dies, the broker makes the next one in line active.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leash.amqp import connect, topology
from leash.consumer.engine import Engine
from leash.consumer.failures import Failures
from leash.consumer.message import Message
from leash.consumer.session import Session
from leash.consumer.settings import Queue, Settings
from leash.consumer.stats import Stats
from leash.consumer.workers import is_async
from leash.errors import AmqpError, ConfigError
from leash.logfmt import logger
from leash.partitions import gates
from leash.partitions.follow import Follow

log = logger("leash.partitions")

LOOK_EVERY = 0.25
BALANCE_EVERY = 2.0
_GATE_WAIT, _MARKER_WAIT, _TROUBLE_WAIT = 50, 10, 500
"""Milliseconds until a lane looks again."""


class Wait(Exception):
    """Not a failure: the lane's first message must wait."""

    def __init__(self, milliseconds: int) -> None:
        super().__init__(milliseconds)
        self.milliseconds = milliseconds


class _Failures(Failures):
    """Where waiting is no failure, and control messages keep their places."""

    def fail(self, message: Message, error: BaseException) -> None:
        if isinstance(error, Wait):
            self.again_in_place(message, error.milliseconds)
        else:
            super().fail(message, error)

    def exempt(self, properties: bytes) -> bool:
        return gates.is_control(properties)


class Lanes:
    """A session for some of the queues, whose handler gets no control messages."""

    def __init__(self, settings: Settings, handler: Callable[..., Any], follow: Follow) -> None:
        self._follow = follow
        self.session = Session(settings, self._wrapped(handler), failures=_Failures)

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Obey control messages, and leave the others to the user's handler."""
        if is_async(function):

            async def asynchronous(message: Message) -> None:
                found = gates.read(message.raw_properties)
                if found is None:
                    await function(message)
                else:
                    await asyncio.to_thread(self._obey, message, found)

            return asynchronous

        def synchronous(message: Message) -> object:
            found = gates.read(message.raw_properties)
            if found is None:
                return function(message)  # which may be awaitable all the same
            self._obey(message, found)
            return None

        return synchronous

    def _obey(self, message: Message, found: gates.Gate | gates.Marker | gates.Probe) -> None:
        if isinstance(found, gates.Probe) or found.partitions != self._follow.name:
            return
        if isinstance(found, gates.Gate):
            if not self._follow.is_open(found):
                raise Wait(_GATE_WAIT)
            log.info("event=gate_open queue=%r move=%d", message.queue, found.move)
            return
        link = message.link
        engine = self.session.engine
        with engine.lock:
            if not link.ledger.settled_before(message.tag):
                raise Wait(_MARKER_WAIT)
            link.flush()
        try:
            engine.drain()
            topology.state(link.channel, link.queue)  # answered: the broker has the acks that went before
            self._follow.passed(found.move, message.queue)
        except AmqpError as error:
            log.warning("event=pass_failed queue=%r reason=%r", message.queue, str(error))
            raise Wait(_TROUBLE_WAIT) from error
        log.info("event=marker_passed queue=%r move=%d", message.queue, found.move)

    # --- sharing with other processes ---

    def active(self) -> list[str]:
        """The queues that messages came from since we consume them: those that we are active on."""
        engine = self.session.engine
        with engine.lock:
            return [name for name, link in engine.links.items() if link.ledger.delivered]

    def hand_over(self, queue: str, patience: float = 10.0) -> bool:
        """Stand in line again. Finish and settle what is in work first, so that nobody overtakes it."""
        engine = self.session.engine
        engine.pause(queue)
        try:
            deadline = time.monotonic() + patience
            while not self._idle(engine, queue):
                if time.monotonic() > deadline:
                    return False  # a long handler: another time
                time.sleep(0.01)
            with engine.lock:
                link = engine.links.get(queue)
                if link is None:
                    return False
                link.flush()
            engine.drain()
            topology.state(link.channel, queue)
            engine.severed.append(link)
            engine.lost(link)
        except AmqpError:
            return False
        finally:
            engine.resume(queue)
        return True

    def _idle(self, engine: Engine, queue: str) -> bool:
        with engine.lock:
            link = engine.links.get(queue)
            lane = engine.flow.lanes[queue]
            return link is None or not lane.in_work


class PartitionedSession:
    """Consumes all queues of some partitions, each in order: one session for those that are there at the
    start, and one more whenever a resize brings new ones.
    """

    def __init__(
        self, settings: Settings, handler: Callable[..., Any], partitions: str, workers: int | None
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._workers = workers
        self._follow = Follow(settings.uri, partitions)
        self._lanes: list[Lanes] = []
        self._begun: list[Lanes] = []  # and those that are just starting: their handlers may run already
        self._served: dict[str, Lanes] = {}
        self._left = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"leash-keeper {partitions}", daemon=True)

    def start(self) -> None:
        """Begin to consume, in threads of its own."""
        self._follow.start()
        try:
            self._add(list(self._follow.layout.all_queues))
        except BaseException:
            self._follow.stop()
            raise
        self._keeper.start()

    @property
    def left(self) -> bool:
        """Whether somebody called `stop` or `abandon`."""
        return self._left.is_set()

    def leave_later(self, leave: Callable[[], object]) -> bool:
        """Within a handler: leave in another thread."""
        return any(lanes.session.leave_later(leave) for lanes in self._begun)

    def stop(self) -> bool:
        """Finish what runs and leave."""
        self._left.set()
        self._keeper.join(15.0)
        ended = [lanes.session.stop() for lanes in self._lanes]
        self._follow.stop()
        return all(ended)

    @property
    def undone(self) -> tuple[int, int]:
        """As a session's, of all lanes."""
        counts = [lanes.session.undone for lanes in self._lanes]
        return sum(in_work for in_work, _ in counts), sum(unconfirmed for _, unconfirmed in counts)

    def abandon(self) -> None:
        """Leave at once, as a crash would."""
        self._left.set()
        for lanes in self._lanes:
            lanes.session.abandon()

    def stats(self) -> Stats:
        """Of all queues; what is not about one queue is that of the first lanes."""
        if not self._lanes:
            raise ConfigError("consumer", self._settings.name, "one that was started")
        found = [lanes.session.stats() for lanes in self._lanes]
        queues = {name: stats for each in found for name, stats in each.queues.items()}
        return replace(found[0], queues=queues)

    def _active(self) -> list[str]:
        """Those that this process is the active consumer of, as far as messages have shown."""
        return [queue for lanes in self._lanes for queue in lanes.active()]

    def _add(self, queues: list[str]) -> None:
        layout = self._follow.layout
        specs = [
            Queue(queue, ordered=layout.ordered, kind="quorum" if layout.kind == "quorum" else "classic")
            for queue in queues
        ]
        workers = self._workers or max(1, len(queues))
        lanes = Lanes(replace(self._settings, queues=specs, workers=workers), self._handler, self._follow)
        self._begun = [*self._lanes, lanes]
        lanes.session.start()
        self._lanes.append(lanes)
        self._served |= dict.fromkeys(queues, lanes)

    # --- its thread ---

    def _keep(self) -> None:
        balanced = time.monotonic()
        while not self._left.wait(LOOK_EVERY):
            try:
                self._take_new()
                if self._follow.layout.ordered and time.monotonic() - balanced > BALANCE_EVERY:
                    balanced = time.monotonic()
                    self._balance()
            except AmqpError as error:
                log.debug("event=interrupted reason=%r", str(error))
            except Exception:
                log.exception("event=keeper_failed")

    def _take_new(self) -> None:
        """Consume what is new; leave queues alone that are no more."""
        wanted = self._follow.layout.all_queues
        fresh = [queue for queue in wanted if queue not in self._served]
        if fresh:
            log.info("event=new_queues partitions=%r queues=%r", self._follow.name, fresh)
            self._add(fresh)
        for queue in [queue for queue in self._served if queue not in wanted]:
            self._served.pop(queue).session.engine.pause(queue)

    def _balance(self) -> None:
        """With more queues than our part, hand one over; the next look comes soon enough for others."""
        active = self._active()
        if len(active) < 2:
            return
        with connect(self._settings.uri, name="leash balance") as connection, connection.channel() as channel:
            counts = {queue: topology.state(channel, queue).consumers for queue in self._served}
        processes = max(counts.values(), default=1)
        part = -(-len(self._served) // max(1, processes))
        spare = [queue for queue in active if counts.get(queue, 1) > 1]
        if len(active) > part and spare:
            queue = spare[-1]
            log.info("event=hand_over queue=%r active=%d part=%d", queue, len(active), part)
            self._served[queue].hand_over(queue)
