"""The upkeep thread: ticks, probes, flushes, looks into limbo and after slow handlers, and writes the log."""

from __future__ import annotations

import threading
import time

from leash.amqp import Connection, topology
from leash.amqp.delivery_limit import limbo_queue
from leash.consumer.durations import Durations
from leash.consumer.engine import Engine
from leash.consumer.outbox import Outbox
from leash.consumer.overdue import Overdue
from leash.consumer.reconnect import Connector
from leash.consumer.settings import Queue
from leash.consumer.workers import Worker
from leash.errors import AmqpError
from leash.logfmt import logger

log = logger("leash.consumer")

TICK = 0.05
_PART, _RAREST = 30, 1_000_000_000  # ticks take this part of the time at most, unless they come this rarely
_SOON = 4  # the first ones with work: this part, then twice, then three times as many
_LIMBO_EVERY, _NO_LIMBO_EVERY = 5.0, 60.0  # seconds
_LIMBO_EACH, _NO_LIMBO_EACH = 0.02, 0.2  # or this for each of them, if that is longer


class Upkeep:
    """The thread that does what is due over time."""

    def __init__(
        self,
        engine: Engine,
        connector: Connector,
        queues: list[Queue],
        workers: list[Worker],
        consumer_timeout: float,
    ) -> None:
        self._engine = engine
        self._connector = connector
        self._queues = queues
        self._workers = workers
        self._limbo_at = 0.0
        self._tick_at = 0
        self._ticks = 0  # since there was nothing to do
        self._no_limbo: dict[str, float] = {}  # queue -> when to look again
        self.overdue = Overdue(engine, workers, consumer_timeout)
        self.thread = threading.Thread(target=self._run, name="leash-upkeep", daemon=True)
        connector.on_connected = self._connected
        connector.before_consuming = self.look_into_limbo

    def durations(self, queue: str) -> list[Durations]:
        """How long messages of a queue waited and took, by worker."""
        found = [worker.durations.get(queue) for worker in self._workers]
        return [each for each in found if each is not None]

    def leave(self) -> None:
        """End the thread; the caller closes the connection."""
        self._connector.left.set()
        self._engine.nudge.set()

    def _connected(self, connection: Connection, outbox: Outbox) -> None:
        if self._engine.limbo is not None:
            self._engine.limbo.connected(connection, outbox)
            self._no_limbo.clear()
            self._limbo_at = 0.0

    def _run(self) -> None:
        engine = self._engine
        while not self._connector.left.is_set():
            try:
                self.turn()
            except AmqpError as error:
                log.debug("event=interrupted reason=%r", str(error))
            except Exception:
                log.exception("event=upkeep_failed")
                self._connector.left.wait(1.0)
            engine.emit()
            engine.nudge.wait(TICK)
            engine.nudge.clear()
        self._engine.emit()

    def turn(self) -> None:
        """Do what is due."""
        engine, connector = self._engine, self._connector
        if not connector.whole and not engine.stopping:
            connector.reconnect()
        if connector.left.is_set():
            return
        if not engine.stopping:
            connector.tend()
        with engine.lock:
            if not engine.stopping:
                self._tick()
                engine.carry_out()
                engine.check()
            engine.flush()
            probes, engine.probes = list(dict.fromkeys(engine.probes)), []
        engine.drain()
        if probes and not engine.stopping:
            connector.look_at(probes)
        if time.monotonic() >= self._limbo_at and not engine.stopping:
            self.look_into_limbo()
        self.overdue.look()

    def _tick(self) -> None:
        """With thousands of queues a tick takes a while, so they come less often; but not when work has just
        begun, and windows are to be found for it.
        """
        engine = self._engine
        now = engine.clock.now()
        if now >= self._tick_at:
            self._ticks = self._ticks + 1 if engine.flow.buffered else 0
            engine.flow.tick(now)
            rests = min(_PART, _SOON * self._ticks) if self._ticks else _PART
            self._tick_at = now + min(_RAREST, rests * (engine.clock.now() - now))

    def look_into_limbo(self) -> None:
        """Look for messages that other processes, or earlier runs, put into limbo."""
        limbo, connection = self._engine.limbo, self._connector.connection
        assert connection is not None
        names = [spec.name for spec in self._queues if self._may_have_limbo(spec)]
        self._limbo_at = time.monotonic() + max(_LIMBO_EVERY, len(names) * _LIMBO_EACH)
        if limbo is None or not names:
            return
        found = topology.ready_of(connection, [limbo_queue(name) for name in names])
        for name, ready in zip(names, found, strict=True):
            if ready is not None:
                limbo.seen(name, ready)
            else:  # if we declare it ourselves, we know what is in it
                wait = max(_NO_LIMBO_EVERY, len(names) * _NO_LIMBO_EACH)
                self._no_limbo[name] = time.monotonic() + wait

    def _may_have_limbo(self, spec: Queue) -> bool:
        told = self._engine.traits.get(spec.name)
        if spec.ordered or time.monotonic() < self._no_limbo.get(spec.name, 0.0):
            return False
        return told is None or told.kind == "quorum"
