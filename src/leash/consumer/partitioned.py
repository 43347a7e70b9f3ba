"""Consuming partitions: an ordered lane for each queue, gates and markers obeyed, queues shared by processes.

A gate holds its lane until the queues that it names have passed their markers; a marker is passed when
everything before it is settled at the broker. Queues that a resize adds are consumed as soon as they appear.
Single active consumers share the queues: a process with more than its share hands one over, and if a process
dies, the broker activates the next consumer in line.
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
from leash.consumer.handlers import Next, around
from leash.consumer.message import Message
from leash.consumer.session import Session
from leash.consumer.settings import Queue, Settings, text
from leash.consumer.stats import Stats
from leash.consumer.stream_settings import Stream, StreamQueue
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


def check(partitions: str, settings: Settings, super_stream: Stream | None) -> None:
    """ConfigError for arguments of a consumer that do not fit partitions."""
    text("partitions", partitions, "the partitions' name")
    if super_stream is not None:
        raise ConfigError("super_stream", super_stream.stream, "a super stream or partitions, not both")
    if settings.queues:
        given = "streams" if isinstance(settings.queues[0], StreamQueue) else "queues"
        raise ConfigError("partitions", partitions, f"{given} or partitions, not both")
    if settings.rate is not None or settings.guaranteed is not None or settings.cost != "count":
        raise ConfigError("rate", settings.rate, "no rate, guaranteed or cost with partitions")
    if settings.budget is not None:
        raise ConfigError("budget", settings.budget.name, "not with partitions: take from it in the handler")


class Wait(Exception):
    """Not a failure: the lane's first message must wait."""

    def __init__(self, milliseconds: int) -> None:
        super().__init__(milliseconds)
        self.milliseconds = milliseconds


class _Failures(Failures):
    """Waiting is not a failure, and control messages keep their places."""

    def fail(self, message: Message, error: BaseException) -> None:
        if isinstance(error, Wait):
            self.again_in_place(message, error.milliseconds)
        else:
            super().fail(message, error)

    def tells(self, queue: str, error: BaseException) -> bool:
        return not isinstance(error, Wait) and super().tells(queue, error)

    def exempt(self, properties: bytes) -> bool:
        return gates.is_control(properties)


class Lanes:
    """A session for some of the queues, whose handler gets no control messages."""

    def __init__(self, settings: Settings, handler: Callable[..., Any], follow: Follow) -> None:
        self._follow = follow
        obeying = self._obeying_async if is_async(handler) else self._obeying
        self.session = Session(settings, around(handler, [obeying]), failures=_Failures)

    def _obeying(self, message: Message, call_next: Next) -> object:
        """Middleware: obey control messages, and leave the others to the user's handler."""
        control = gates.read(message.raw_properties)
        if control is None:
            return call_next(message)  # which may be awaitable all the same
        self._obey(message, control)
        return None

    async def _obeying_async(self, message: Message, call_next: Next) -> None:
        control = gates.read(message.raw_properties)
        await (call_next(message) if control is None else asyncio.to_thread(self._obey, message, control))

    def _obey(self, message: Message, control: gates.Gate | gates.Marker | gates.Probe) -> None:
        if isinstance(control, gates.Probe) or control.partitions != self._follow.name:
            return
        if isinstance(control, gates.Gate):
            if not self._follow.is_open(control):
                raise Wait(_GATE_WAIT)
            log.info("event=gate_open queue=%r move=%d", message.queue, control.move)
            return
        link = message.link
        engine = self.session.engine
        with engine.lock:
            if not link.ledger.settled_before(message.tag):
                raise Wait(_MARKER_WAIT)
            link.flush()
        try:
            if not engine.drain(link.outbox):
                raise Wait(_TROUBLE_WAIT)
            topology.state(link.channel, link.queue)  # an answer means that the broker has the earlier acks
            self._follow.passed(control.move, message.queue)
        except AmqpError as error:
            log.warning("event=pass_failed queue=%r reason=%r", message.queue, str(error))
            raise Wait(_TROUBLE_WAIT) from error
        log.info("event=marker_passed queue=%r move=%d", message.queue, control.move)

    # --- sharing with other processes ---

    def active(self) -> list[str]:
        """The queues that have delivered messages: those on which we are the active consumer."""
        engine = self.session.engine
        with engine.lock:
            return [name for name, link in engine.links.items() if link.ledger.delivered]

    def hand_over(self, queue: str, patience: float = 10.0) -> bool:
        """Go to the end of the line, after settling what is in work, so that nothing overtakes it."""
        engine = self.session.engine
        engine.pause(queue)
        try:
            deadline = time.monotonic() + patience
            while not self._idle(engine, queue):
                if time.monotonic() > deadline:
                    return False  # a long handler: try another time
                time.sleep(0.01)
            with engine.lock:
                link = engine.links.get(queue)
                if link is None:
                    return False
                link.flush()
            if not engine.drain(link.outbox):
                return False
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
    """Consumes all queues of some partitions, each in order: one session for those that exist at the start,
    and another whenever a resize adds queues.
    """

    def __init__(
        self, settings: Settings, handler: Callable[..., Any], partitions: str, workers: int | None
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._workers = workers
        self._follow = Follow(settings.uri, partitions)
        self._lanes: list[Lanes] = []
        self._begun: list[Lanes] = []  # including those still starting, whose handlers may already run
        self._served: dict[str, Lanes] = {}
        self._left = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"leash-keeper {partitions}", daemon=True)

    def start(self) -> None:
        """Begin to consume, in background threads."""
        self._follow.start()
        try:
            self._add(list(self._follow.layout.all_queues))
        except BaseException:
            self._follow.stop()
            raise
        self._keeper.start()

    @property
    def left(self) -> bool:
        """True after `stop` or `abandon`."""
        return self._left.is_set()

    def outcome(self, in_time: bool) -> bool:
        """What `stop` returned."""
        return in_time

    def leave_later(self, leave: Callable[[], object]) -> bool:
        """In a handler: leave in another thread."""
        return any(lanes.session.leave_later(leave) for lanes in self._begun)

    def stop(self) -> bool:
        """Finish running handlers and leave."""
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
        """The statistics of all queues; those of the process are taken from the first session."""
        if not self._lanes:
            raise ConfigError("consumer", self._settings.name, "one that was started")
        sessions = [lanes.session.stats() for lanes in self._lanes]
        queues = {name: stats for each in sessions for name, stats in each.queues.items()}
        return replace(sessions[0], queues=queues)

    def _active(self) -> list[str]:
        """The queues of which this process is the active consumer, as far as messages have shown."""
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
        """Consume new queues, and leave those that no longer exist."""
        wanted = self._follow.layout.all_queues
        fresh = [queue for queue in wanted if queue not in self._served]
        if fresh:
            log.info("event=new_queues partitions=%r queues=%r", self._follow.name, fresh)
            self._add(fresh)
        for queue in [queue for queue in self._served if queue not in wanted]:
            self._served.pop(queue).session.engine.pause(queue)

    def _balance(self) -> None:
        """With more queues than our share, hand over one; more may follow at the next look."""
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
