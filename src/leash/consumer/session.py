"""A running consumer: assembled, started, drained, stopped.

Plain and partitioned consumers both use it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from leash.amqp import Channel
from leash.amqp.delivery_limit import NACK_IS_FREE
from leash.amqp.last_acks import AT_ONCE, settled
from leash.amqp.wire import FRAME_MAX
from leash.consumer.breaker_gate import gate_of
from leash.consumer.clock import SYSTEM, Clock
from leash.consumer.copy_courier import Republisher
from leash.consumer.engine import Engine
from leash.consumer.failures import Failures
from leash.consumer.reconnect import Connector
from leash.consumer.rescuing import Limbo
from leash.consumer.settings import Settings
from leash.consumer.stats import Stats, collect
from leash.consumer.stream_settings import StreamQueue
from leash.consumer.tasks import TaskPool
from leash.consumer.threads import ThreadPool
from leash.consumer.upkeep import Upkeep
from leash.consumer.workers import Batch, Failed, Pool, is_async
from leash.errors import AmqpError, LeashError
from leash.fleet.budgets.permit_thread import Account, Desk
from leash.fleet.budgets.settings import Terms
from leash.flow.budgets import pace
from leash.logfmt import logger
from leash.policies.exact_numbers import Number
from leash.units import SECOND, nanoseconds

if TYPE_CHECKING:
    from leash.consumer.streams import Streams

log = logger("leash.consumer")

_LAST_ACKS = 10.0  # seconds for the broker to apply them
_SLICE = 100_000_000  # ns between two checks whether it was abandoned


def pool(
    engine: Engine, handler: Callable[..., Any], count: int, batch: Batch | None, failed: Failed
) -> Pool:
    """Threads for `def`, one event loop for `async def`."""
    return (TaskPool if is_async(handler) else ThreadPool)(engine, handler, count, batch, failed)


class Parts(NamedTuple):
    """What a session is made of; `leash.testing` puts in parts that need no broker."""

    clock: Clock = SYSTEM
    republisher: Callable[..., Republisher] = Republisher
    pool: Callable[..., Pool] = pool
    connector: Callable[..., Connector] = Connector
    upkeep: Callable[..., Upkeep] = Upkeep
    desk: Callable[..., Desk] = Desk


LIVE = Parts()


class Session:
    """One run from start to end. `failures` decides what becomes of messages that were not simply done."""

    def __init__(
        self,
        settings: Settings,
        handler: Callable[..., Any],
        batch: Batch | None = None,
        parts: Parts = LIVE,
        failures: type[Failures] = Failures,
    ) -> None:
        self._settings = settings
        self._abandoned = False
        self.undone = (0, 0)
        """Once it has stopped: messages still in work then, and failed ones with an unconfirmed copy."""
        uri, name, queues = settings.uri, settings.name, settings.queues
        flow = settings.flow(batch.size * settings.workers if batch else 1)
        self.engine = engine = Engine(flow, settings.costs, parts.clock)
        decides = failures(engine, queues, settings.retry_of, settings.on_exhausted)
        self._republisher = parts.republisher(uri, name, decides.confirmed, decides.prepare)
        decides.republisher = self._republisher
        self._republisher.barred = decides.barred
        self._republisher.late = decides.late
        engine.streams = [each.name for each in queues if isinstance(each, StreamQueue)]
        queues = [each for each in queues if not isinstance(each, StreamQueue)]
        engine.limbo = Limbo(engine, queues, decides)
        engine.settler.out_of_limbo = decides.out_of_limbo
        engine.gate = gate_of(settings, engine, decides)
        self.pool = parts.pool(engine, handler, settings.workers, batch, decides.failed)
        self._connector = parts.connector(engine, uri, name, queues, decides.prepare)
        self._connector.on_moved = self._republisher.leave
        self.upkeep = parts.upkeep(
            engine, self._connector, queues, self.pool.workers, settings.consumer_timeout
        )
        self._streams: Streams | None = None
        if len(queues) < len(settings.queues):
            from leash.consumer import streams  # needs pyarrow

            self._streams = streams.Streams(
                engine, settings, self._frame_max, lambda: self._republisher.pending
            )
        self.desk: Desk | None = None
        if budgets := settings.budgets:
            purses = {purse.name: purse for purse in flow.purses}
            accounts = [Account(budget, purses[budget.name].permits) for budget in budgets]
            self.desk = parts.desk(uri, accounts, engine.lock, parts.clock.now, engine.granted, name)
            self.desk.on_numbers = self._numbers
            engine.on_ask = self.desk.nudge.set
        self._began = parts.clock.now()

    def _frame_max(self) -> int:
        connection = self._connector.connection
        return FRAME_MAX if connection is None else connection.frame_max

    def _numbers(self, budget: Terms) -> None:
        """A budget has these numbers now."""
        with self.engine.lock:
            for purse in self.engine.flow.purses:
                if purse.name == budget.name:
                    lease = nanoseconds("lease", budget.lease)
                    pace(purse, budget.per_second, budget.size, budget.shape.worth, lease)

    def start(self) -> None:
        """Begin to consume, in background threads. Raises if a queue is missing or the broker unreachable."""
        self._began = self.engine.clock.now()
        if self.desk is not None:
            self.desk.open()
        try:
            self._connector.open()
            if self._streams is not None:
                self._open_streams(self._streams)
        except BaseException:
            if self.desk is not None:
                self.desk.close()
            self._republisher.stop()  # messages that arrived may be on their way into limbo
            raise
        self.pool.start()
        self.upkeep.thread.start()
        settings = self._settings
        log.info(
            "event=started broker=%r queues=%d workers=%d",
            str(settings.uri),
            len(settings.queues),
            settings.workers,
        )

    def _open_streams(self, streams: Streams) -> None:
        try:
            streams.open()
        except BaseException:
            streams.abandon()
            for connection in self._connector.connections:
                connection.close()
            raise

    @property
    def left(self) -> bool:
        """True after `stop` or `abandon`, and if it cannot go on."""
        return self.engine.stopping or self.failed is not None

    @property
    def failed(self) -> LeashError | None:
        """Why it cannot go on."""
        return None if self._streams is None else self._streams.failed

    def outcome(self, in_time: bool) -> bool:
        """What `stop` returned, unless it failed."""
        if self.failed is not None:
            raise self.failed
        return in_time

    def leave_later(self, leave: Callable[[], object]) -> bool:
        """In a handler: begin nothing more, and leave in another thread. False: not called by a handler."""
        return self.pool.leave_later(leave)

    def stop(self) -> bool:
        """Finish running handlers and leave; False: one was still running, or a copy unconfirmed, at the
        deadline.
        """
        engine = self.engine
        clock = engine.clock.now
        deadline = clock() + self._settings.drain
        engine.stop()
        while not (ended := self.pool.join(min(deadline, clock() + _SLICE))) and clock() < deadline:
            if self._abandoned:
                return False
        while self._republisher.pending and clock() < deadline and not self._connector.gone:
            time.sleep(0.01)
        if self._streams is not None:
            self._streams.stop(max(_LAST_ACKS, (deadline - clock()) / SECOND))
        self.upkeep.leave()
        self.upkeep.thread.join(max(0.1, (deadline - clock()) / SECOND))
        with engine.lock:
            in_work = 0 if ended else sum(lane.in_work for lane in engine.flow.lanes.values())
        left = self._republisher.pending
        self.undone = (in_work, left)
        self._republisher.stop()
        self._say_goodbye()
        if self.desk is not None:
            self.desk.close()
        log.info("event=stopped in_time=%r in_work=%d unconfirmed=%d", ended and not left, in_work, left)
        return ended and not left

    def _say_goodbye(self) -> None:
        """Send the last acks, then close the channels, which returns the other messages to their places."""
        with self.engine.lock:
            self.engine.flush()
        for line in self._connector.lines:
            self.engine.drain(line.outbox)
        connections = self._connector.connections
        if connections:
            taken = settled(self._unsure(), _LAST_ACKS)
            if connections[0].version >= NACK_IS_FREE:
                for each in taken:
                    with contextlib.suppress(AmqpError):
                        each.channel.nack(each.tag)
        for connection in connections:
            connection.close()

    def _unsure(self) -> list[tuple[Channel, str]]:
        """Where the broker may have kept acks back, see `settling`. Ordered lanes consume until the end."""
        engine = self.engine
        with engine.lock:
            return [
                (link.channel, link.queue)
                for link in engine.links.values()
                if link.alive and not link.spec.in_place and link.ledger.settled > AT_ONCE
                if (told := engine.traits.get(link.queue)) is None or told.kind == "quorum"
            ]

    def abandon(self) -> None:
        """Leave at once, as a crash would: the broker redelivers what was not settled."""
        self._abandoned = True
        self.engine.stopping = True
        for connection in self._connector.connections:
            connection.abort()
        if self._streams is not None:
            self._streams.abandon()
        if self.desk is not None:
            self.desk.abandon()
        self.upkeep.leave()

    # --- at run time ---

    def stats(self) -> Stats:
        """Plain numbers about every queue."""
        return collect(self.engine, self._connector, self.upkeep, self._republisher, self._began)

    def set_quantum(self, queue: str, quantum: int) -> None:
        """Change a queue's quantum from its next turn on; the rest of this turn is cut to it."""
        with self.engine.lock:
            self.engine.flow.set_quantum(queue, quantum)

    def set_rate(self, queue: str | None, rate: Number | None, burst: int | None) -> None:
        """Change the rate of a queue, or of all together if `queue` is None; a rate of None is no limit."""
        engine = self.engine
        with engine.lock:
            engine.flow.set_rate(engine.clock.now(), queue, rate, burst)
            engine.ready.notify_all()
