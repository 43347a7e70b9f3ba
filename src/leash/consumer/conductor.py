"""Keeps the time and the connection: opens links and mends them, probes, ticks, flushes, warns.

A lost connection is opened again with a growing wait; a queue that is missing is looked for again, while the
others go on. Each new channel starts with an empty ledger: nothing of the old one is ever settled on it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from pamqp import commands

from leash.amqp import Channel, Connection, connect, wire
from leash.amqp.channel import REPLY_TIMEOUT
from leash.amqp.uri import Uri
from leash.consumer.engine import Engine
from leash.consumer.link import Link
from leash.consumer.outbox import Outbox
from leash.consumer.settings import SECOND, Queue
from leash.consumer.workers import Worker
from leash.errors import AmqpError
from leash.flow.lane import PAUSED

log = logging.getLogger("leash.consumer")

TICK = 0.05
BACKOFF = (0.1, 30.0)
_ROUND_TRIPS = 5  # the least of so many: one slow answer is not a longer way
_FIRST = 0.5  # seconds
_SLOW = 50_000_000  # ns: a batch is meant for a hundredth of that
_WARN_AT = 0.8  # of the broker's consumer timeout

_Declare = wire.unchecked(commands.Queue.Declare)


class Conductor:
    """One thread."""

    def __init__(
        self,
        engine: Engine,
        uri: Uri,
        name: str,
        queues: list[Queue],
        workers: list[Worker],
        consumer_timeout: float,
        prepare: Callable[[Connection], None],
    ) -> None:
        self._engine = engine
        self._uri = uri
        self._name = name
        self._queues = queues
        self._workers = workers
        self._limit = int(consumer_timeout * _WARN_AT * SECOND)
        self._prepare = prepare
        self._connection: Connection | None = None
        self._probing: Channel | None = None
        self._trips: deque[int] = deque(maxlen=_ROUND_TRIPS)
        self._missing: dict[str, tuple[float, float, str]] = {}  # queue -> when to look, wait, why
        self._left = threading.Event()
        self.reconnects = 0
        self.overdue = 0
        self.thread = threading.Thread(target=self._run, name="leash-conductor", daemon=True)

    @property
    def connection(self) -> Connection | None:
        return self._connection

    def open(self) -> None:
        """The first time: whatever is wrong is the caller's to know."""
        self._connect()
        assert self._connection is not None
        try:
            self._prepare(self._connection)
            self._probe([spec.name for spec in self._queues])
            self._open_links(self._queues)
            self._await_first()
        except BaseException:
            self._connection.close()
            raise

    def _await_first(self) -> None:
        """The first round begins when every queue that has messages has some here, or soon after."""
        lanes = self._engine.flow.lanes.values()
        deadline = time.monotonic() + _FIRST
        while time.monotonic() < deadline:
            with self._engine.lock:
                if all(lane.buffer or not lane.evidence or lane.sole for lane in lanes):
                    return
            time.sleep(0.001)

    def leave(self) -> None:
        """End it: the connection is closed by whoever called."""
        self._left.set()
        self._engine.nudge.set()

    # --- the connection and its links ---

    def _connect(self) -> None:
        connection = connect(self._uri, name=self._name)
        with self._engine.lock:
            self._engine.outbox = Outbox(connection, self._engine.lock)
        self._connection, self._probing = connection, None
        self._trips.clear()

    def _reconnect(self) -> None:
        wait = BACKOFF[0]
        while not self._left.is_set():
            try:
                self._connect()
                self.reconnects += 1
                self._missing.clear()
                log.info("event=reconnected broker=%r", str(self._uri))
                return
            except AmqpError as error:
                pause = wait * random.uniform(0.5, 1.0)
                log.warning("event=connect_failed reason=%r wait=%.1f", str(error), pause)
                self._left.wait(pause)
                wait = min(BACKOFF[1], 2 * wait)

    def _open_links(self, queues: list[Queue]) -> None:
        """Channels first, then all consumers at once: messages of the first would hold up the others."""
        links = [self._new_link(spec) for spec in queues]
        answers = []
        try:
            for link in links:
                with self._engine.lock:
                    lane = self._engine.flow.lanes[link.queue]
                    window, epoch = lane.credit, lane.window.epoch if lane.window else 0
                answers.append(link.start(window, epoch, self._engine.deliver, self._engine.cancelled))
            for answer in answers:
                answer(REPLY_TIMEOUT)
        except AmqpError:
            for link in links:
                self._engine.lost(link)
            raise

    def _new_link(self, spec: Queue) -> Link:
        assert self._connection is not None
        engine = self._engine
        channel = self._connection.channel()
        with engine.lock:
            outbox = engine.outbox
            assert outbox is not None
            link = engine.links[spec.name] = Link(spec, channel, outbox, engine.clock)
        channel.on_lost = lambda error: engine.lost(link, error)
        return link

    def _mend(self) -> None:
        """Open what is missing; close the channels of consumers that the broker ended."""
        engine = self._engine
        while engine.severed:
            engine.severed.pop().channel.close()
        if len(engine.links) == len(self._queues):
            return
        for spec in self._queues:
            due, wait, why = self._missing.get(spec.name, (0.0, BACKOFF[0], ""))
            paused = engine.flow.lanes[spec.name].blocks & PAUSED
            if spec.name in engine.links or paused or time.monotonic() < due or engine.stopping:
                continue
            try:
                self._open_links([spec])
                self._missing.pop(spec.name, None)
                log.info("event=consuming queue=%r", spec.name)
            except AmqpError as error:
                if self._connection is None or self._connection.closed:
                    return
                if str(error) != why:
                    log.warning("event=cannot_consume queue=%r reason=%r", spec.name, str(error))
                self._missing[spec.name] = (time.monotonic() + wait, min(2.0, 2 * wait), str(error))

    # --- the loop ---

    def _run(self) -> None:
        engine = self._engine
        while not self._left.is_set():
            try:
                self._turn()
            except AmqpError as error:
                log.debug("event=interrupted reason=%r", str(error))
            except Exception:
                log.exception("event=conductor_failed")
                self._left.wait(1.0)
            self._emit()
            engine.nudge.wait(TICK)
            engine.nudge.clear()
        self._emit()

    def _turn(self) -> None:
        engine = self._engine
        assert self._connection is not None
        if self._connection.closed and not engine.stopping:
            self._reconnect()
        if self._left.is_set():
            return
        if not engine.stopping:
            self._mend()
        with engine.lock:
            if not engine.stopping:
                engine.flow.tick(engine.clock.now())
                engine.carry_out()
                engine.check()
            engine.flush()
            probes, engine.probes = list(dict.fromkeys(engine.probes)), []
        engine.drain()
        if probes and not engine.stopping:
            self._look(probes)
        self._watch()

    def _look(self, names: list[str]) -> None:
        try:
            self._probe([name for name in names if name in self._engine.links])
        finally:
            with self._engine.lock:
                for name in names:
                    self._engine.flow.not_probed(name)

    def _probe(self, names: list[str]) -> None:
        """Look at queues, all in one go."""
        assert self._connection is not None
        if self._probing is None or self._probing.closed:
            self._probing = self._connection.channel()
        begin = self._engine.clock.now()
        replies = [
            (name, self._probing.ask(_Declare(0, name, True), commands.Queue.DeclareOk)) for name in names
        ]
        for index, (name, reply) in enumerate(replies):
            answer = reply(10.0)
            now = self._engine.clock.now()
            if index == 0:
                self._trips.append(now - begin)
            ready, consumers = answer.message_count, answer.consumer_count
            with self._engine.lock:
                least, most = min(self._trips), max(self._trips)
                self._engine.flow.probed(now, name, ready, consumers, least, most)
                self._engine.check()

    def _watch(self) -> None:
        """Free what waits behind a slow handler; warn of one that the broker is about to give up: it would
        close the channel.
        """
        now = self._engine.clock.now()
        for worker in self._workers:
            begin = worker.begin
            if begin is not None and now - begin > _SLOW:
                self._engine.recall(worker)
            if begin is not None and not worker.warned and now - begin > self._limit:
                worker.warned = True
                self.overdue += 1
                log.warning(
                    "event=handler_overdue queue=%r running=%.0f reason=%r",
                    worker.queue,
                    (now - begin) / SECOND,
                    "near the broker's consumer timeout: it will close the channel and deliver again",
                )

    def _emit(self) -> None:
        notes = self._engine.notes
        while notes:
            level, event, fields = notes.popleft()
            log.log(level, "event=%s %s", event, " ".join(f"{k}={v!r}" for k, v in fields.items()))
