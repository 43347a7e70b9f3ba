"""Consuming partitions: an ordered lane for each queue, gates and markers obeyed, queues shared by processes.

A gate holds its lane until the queues that it names have passed their markers; a marker is passed when
everything before it is settled, and the broker knows. Queues that a resize brings are consumed as they come.
Single-active consumers share out the queues: who has more than its part hands one over, and if a process
dies, the broker makes the next one in line active.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from leash.amqp import connect, topology
from leash.amqp.uri import Uri, parse
from leash.consumer.consumer import Consumer
from leash.consumer.engine import Engine
from leash.consumer.message import Message
from leash.consumer.settings import Queue
from leash.consumer.stats import Stats
from leash.errors import AmqpError, ConfigError
from leash.partitions import control
from leash.partitions.watch import Watch

log = logging.getLogger("leash.partitions")

Handler = TypeVar("Handler", bound=Callable[..., Any])

LOOK_EVERY = 0.25
BALANCE_EVERY = 2.0
_GATE_WAIT, _MARKER_WAIT, _TROUBLE_WAIT = 50, 10, 500
"""Milliseconds until a lane looks again."""


class Wait(Exception):
    """Not a failure: the lane's first message must wait."""

    def __init__(self, milliseconds: int) -> None:
        super().__init__(milliseconds)
        self.milliseconds = milliseconds


class Lanes(Consumer):
    """A consumer of some of the queues, whose handler gets no control messages."""

    def __init__(self, uri: Uri, queues: list[Queue], watch: Watch, **settings: Any) -> None:
        super().__init__(uri, queues, **settings)
        self._watch = watch

    def wrap(self, function: Callable[..., Any]) -> None:
        """Obey control messages, and leave the others to the user's handler."""
        if inspect.iscoroutinefunction(inspect.unwrap(function)):

            async def asynchronous(message: Message) -> None:
                found = control.read(message._raw_properties)
                if found is None:
                    await function(message)
                else:
                    await asyncio.to_thread(self._obey, message, found)

            self.handler(asynchronous)
            return

        def synchronous(message: Message) -> None:
            found = control.read(message._raw_properties)
            if found is None:
                function(message)
            else:
                self._obey(message, found)

        self.handler(synchronous)

    def _obey(self, message: Message, found: control.Gate | control.Marker | control.Probe) -> None:
        if isinstance(found, control.Probe) or found.partitions != self._watch.name:
            return
        if isinstance(found, control.Gate):
            if not self._watch.is_open(found):
                raise Wait(_GATE_WAIT)
            log.info("event=gate_open queue=%r move=%d", message.queue, found.move)
            return
        link = message._link
        engine = self._running()
        with engine.lock:
            if not link.ledger.settled_before(message._tag):
                raise Wait(_MARKER_WAIT)
            link.flush()
        try:
            engine.drain()
            topology.state(link.channel, link.queue)  # answered: the broker has the acks that went before
            self._watch.passed(found.move, message.queue)
        except AmqpError as error:
            log.warning("event=pass_failed queue=%r reason=%r", message.queue, str(error))
            raise Wait(_TROUBLE_WAIT) from error
        log.info("event=marker_passed queue=%r move=%d", message.queue, found.move)

    def _fail(self, engine: Engine, message: Message, error: BaseException) -> None:
        if isinstance(error, Wait):
            self._again_in_place(engine, message, error.milliseconds)
        else:
            super()._fail(engine, message, error)

    # --- sharing with other processes ---

    def active(self) -> list[str]:
        """The queues that messages came from since we consume them: those that we are active on."""
        engine = self._running()
        with engine.lock:
            return [name for name, link in engine.links.items() if link.ledger.delivered]

    def hand_over(self, queue: str, patience: float = 10.0) -> bool:
        """Stand in line again. Finish and settle what is in work first, so that nobody overtakes it."""
        engine = self._running()
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


class PartitionedConsumer:
    """Consumes all queues of some partitions, each in order; `Consumer(partitions=...)` makes one."""

    def __init__(
        self, uri: str | Uri, partitions: str, *, workers: int | None = None, **settings: Any
    ) -> None:
        self.name = partitions
        self._uri = parse(uri)
        self._workers = workers
        self._settings = settings
        self._watch = Watch(self._uri, partitions)
        self._handler: Callable[..., Any] | None = None
        self._lanes: list[Lanes] = []
        self._begun: list[Lanes] = []  # and those that are just starting: their handlers may run already
        self._served: dict[str, Lanes] = {}
        self._left = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"leash-keeper {partitions}", daemon=True)

    def handler(self, function: Handler) -> Handler:
        """Decorates the function that gets each message, `def` or `async def`."""
        if self._handler is not None:
            raise ConfigError("handler", function, "one handler for a consumer, and it has one")
        self._handler = function
        return function

    def start(self) -> None:
        """Begin to consume, in threads of its own."""
        if self._handler is None:
            raise ConfigError("handler", None, "a function: decorate it with @consumer.handler")
        self._watch.start()
        try:
            self._add(list(self._watch.layout.all_queues))
        except BaseException:
            self._watch.stop()
            raise
        self._keeper.start()

    @property
    def left(self) -> bool:
        """Whether somebody called `stop` or `abandon`."""
        return self._left.is_set()

    def leave_later(self, leave: Callable[[], object]) -> bool:
        """Within a handler: leave in another thread."""
        started = [lanes for lanes in self._begun if lanes._engine is not None]
        return any(lanes._pool.leave_later(leave) for lanes in started)

    def stop(self) -> bool:
        """Finish what runs and leave."""
        running = self._running()
        self._left.set()
        self._keeper.join(15.0)
        ended = [lanes.stop() for lanes in running]
        self._watch.stop()
        return all(ended)

    def abandon(self) -> None:
        """Leave at once, as a crash would."""
        self._left.set()
        for lanes in self._lanes:
            lanes.abandon()

    def stats(self) -> Stats:
        """Of all queues; what is not about one queue is that of the first lanes."""
        found = [lanes.stats() for lanes in self._running()]
        queues = {name: stats for each in found for name, stats in each.queues.items()}
        return replace(found[0], queues=queues)

    def _running(self) -> list[Lanes]:
        if not self._lanes:
            raise ConfigError("consumer", self.name, "one that was started")
        return self._lanes

    def _active(self) -> list[str]:
        """Those that this process is the active consumer of, as far as messages have shown."""
        return [queue for lanes in self._lanes for queue in lanes.active()]

    def _add(self, queues: list[str]) -> None:
        layout = self._watch.layout
        specs = [
            Queue(queue, ordered=layout.ordered, kind="quorum" if layout.kind == "quorum" else "classic")
            for queue in queues
        ]
        lanes = Lanes(
            self._uri, specs, self._watch, workers=self._workers or max(1, len(queues)), **self._settings
        )
        assert self._handler is not None
        lanes.wrap(self._handler)
        self._begun = [*self._lanes, lanes]
        lanes.start()
        self._lanes.append(lanes)
        self._served |= dict.fromkeys(queues, lanes)

    # --- its thread ---

    def _keep(self) -> None:
        balanced = time.monotonic()
        while not self._left.wait(LOOK_EVERY):
            try:
                self._follow()
                if self._watch.layout.ordered and time.monotonic() - balanced > BALANCE_EVERY:
                    balanced = time.monotonic()
                    self._balance()
            except AmqpError as error:
                log.debug("event=interrupted reason=%r", str(error))
            except Exception:
                log.exception("event=keeper_failed")

    def _follow(self) -> None:
        """Consume what is new; leave queues alone that are no more."""
        wanted = self._watch.layout.all_queues
        fresh = [queue for queue in wanted if queue not in self._served]
        if fresh:
            log.info("event=new_queues partitions=%r queues=%r", self._watch.name, fresh)
            self._add(fresh)
        for queue in [queue for queue in self._served if queue not in wanted]:
            self._served.pop(queue).pause(queue)

    def _balance(self) -> None:
        """With more queues than our part, hand one over; the next look comes soon enough for others."""
        active = self._active()
        if len(active) < 2:
            return
        with connect(self._uri, name="leash balance") as connection, connection.channel() as channel:
            counts = {queue: topology.state(channel, queue).consumers for queue in self._served}
        processes = max(counts.values(), default=1)
        part = -(-len(self._served) // max(1, processes))
        spare = [queue for queue in active if counts.get(queue, 1) > 1]
        if len(active) > part and spare:
            queue = spare[-1]
            log.info("event=hand_over queue=%r active=%d part=%d", queue, len(active), part)
            self._served[queue].hand_over(queue)
