"""The connection and its links: opened, reopened, and moved when the host no longer serves us.

A lost connection is opened again with a growing wait; a missing queue is looked for again, while the
others go on. Each new channel starts with an empty ledger: old deliveries are never settled on it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from leash.amqp import Connection, connect
from leash.amqp.channel import REPLY_TIMEOUT
from leash.amqp.rescue import LIMIT, limit_of
from leash.amqp.traits import Traits, traits
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.consumer.depths import Looks
from leash.consumer.engine import Engine
from leash.consumer.failover import Host, Lookout, Question
from leash.consumer.inspection import look, refused
from leash.consumer.link import Link
from leash.consumer.outbox import Outbox
from leash.consumer.settings import Queue
from leash.errors import AmqpError, ConfigError, ConnectionLost, LeashError, ReplyTimeout
from leash.flow.lane import PAUSED
from leash.logfmt import logger

log = logger("leash.consumer")

RECONNECT = (0.1, 3.0)
"""Seconds from one try to the next, at first and at most."""
_AGAIN = (0.05, 1.0)
"""Seconds before a connection that lasted less than `_SHORT` seconds is opened again."""
_SHORT = 1.0
_MISSING = (0.1, 2.0)
_FIRST = 0.5  # seconds


class _Missing(NamedTuple):
    """A queue that cannot be consumed: when to look again, how long to wait after that, and why."""

    due: float
    backoff: Backoff
    why: str


class Connector:
    """The connection of one consumer. `prepare` declares the queues that copies go to."""

    def __init__(
        self,
        engine: Engine,
        uri: Uri,
        name: str,
        queues: list[Queue],
        prepare: Callable[[Connection], None],
    ) -> None:
        self._engine = engine
        self._uri = uri
        self._name = name
        self._queues = queues
        self._prepare = prepare
        self._connection: Connection | None = None
        self._missing: dict[str, _Missing] = {}
        self._opening: dict[str, Question] = {}
        self._lookout = Lookout(uri)
        self._better: Host | None = None
        self._stale: set[str] = set()
        self._unsure: list[str] = []
        self.looks = Looks(engine)
        self.on_moved: Callable[[str], object] = lambda _: None
        """Called with the host that we leave because another one serves us better."""
        self.on_connected: Callable[[Connection], object] = lambda _: None
        self.before_consuming: Callable[[], object] = lambda: None
        self.left = threading.Event()
        """Set when there is nothing more to connect for."""
        self.reconnects = 0
        self._since = 0.0
        self._again = Backoff(*_AGAIN)

    @property
    def connection(self) -> Connection | None:
        return self._connection

    @property
    def gone(self) -> bool:
        """True if there is no connection at the moment."""
        return self._connection is None or self._connection.closed

    def open(self) -> None:
        """Connect for the first time; every error is raised to the caller."""
        for left in reversed(range(len(self._uri.hosts))):
            self._connect()
            assert self._connection is not None
            try:
                self._prepare(self._connection)
                self.before_consuming()
                self.looks.first([spec.name for spec in self._queues])
                for question in self._open_links(self._queues):
                    question.reply(REPLY_TIMEOUT)
                self._await_first()
                return
            except (ConnectionLost, ReplyTimeout):  # it may be cut off from the other nodes
                self._connection.abort()
                if not left:
                    raise
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

    def _connect(self) -> None:
        connection = self.dial(self._preferred(), self._where())
        with self._engine.lock:
            self._engine.outbox = Outbox(connection, self._engine.lock)
        self._connection, self._better = connection, None
        self._since = time.monotonic()
        self.looks.connected(connection)
        self._missing.clear()
        self._opening.clear()
        self._lookout.connected(time.monotonic())
        self.on_connected(connection)

    def dial(self, uri: Uri, avoid: str) -> Connection:
        """Open a connection, at the first host that answers; `avoid` comes last."""
        return connect(uri, name=self._name, avoid=avoid)

    def _preferred(self) -> Uri:
        """The URI, with the host first that is known to be better."""
        if self._better is None:
            return self._uri
        return replace(self._uri, hosts=tuple(sorted(self._uri.hosts, key=lambda host: host != self._better)))

    def _where(self) -> str:
        return "" if self._connection is None else self._connection.where

    def reconnect(self) -> None:
        """Try until there is a connection, or none is needed."""
        backoff = Backoff(*RECONNECT)
        if time.monotonic() - self._since < _SHORT:
            self.left.wait(self._again.next())
        else:
            self._again.reset()
        while not self.left.is_set():
            try:
                self._connect()
                self.reconnects += 1
                self._unsure = [spec.name for spec in self._queues]
                self._engine.emit()  # what was noted before the loss
                log.info("event=reconnected broker=%r host=%r", str(self._uri), self._where())
                return
            except AmqpError as error:
                wait = backoff.next()
                log.warning("event=connect_failed reason=%r wait=%.1f", str(error), wait)
                self.left.wait(wait)

    def _open_links(self, queues: list[Queue]) -> list[Question]:
        """Open channels first, then all consumers: messages of the first would delay the others."""
        links = [self._new_link(spec) for spec in queues]
        questions = []
        try:
            for link in links:
                with self._engine.lock:
                    lane = self._engine.flow.lanes[link.queue]
                    if link.spec.ordered and link.limit is not None and link.limit < LIMIT:
                        lane.credit = 1  # messages behind the first would be redelivered as often as it is
                    window, epoch = lane.credit, lane.window.epoch if lane.window else 0
                reply = link.start(window, epoch, self._engine.arrivals.deliver, self._engine.cancelled)
                questions.append(Question(link, reply, time.monotonic()))
                with self._engine.lock:
                    link.started()
        except AmqpError:
            for link in links:
                self._engine.lost(link)
            raise
        return questions

    def _new_link(self, spec: Queue) -> Link:
        assert self._connection is not None
        engine = self._engine
        channel = self._connection.channel()
        with engine.lock:
            outbox = engine.outbox
            assert outbox is not None
            told = engine.traits.get(spec.name)
            link = engine.links[spec.name] = Link(
                spec,
                channel,
                outbox,
                engine.clock,
                limit=spec.delivery_limit or self._limit_of(spec, told),
                counted=told is None or told.kind == "quorum",
                fleeting=told is None or told.auto_delete,
                delays=told is not None and told.delays,
            )
        channel.on_lost = lambda error: engine.lost(link, error)
        return link

    def _limit_of(self, spec: Queue, told: Traits | None) -> int | None:
        if told is None and spec.ordered:  # it parks messages near the limit, so assume the usual limit
            return LIMIT
        return limit_of(told, self._connection.version if self._connection is not None else ())

    def mend(self) -> None:
        """Open what is missing; close the channels of consumers that the broker ended."""
        engine = self._engine
        while engine.severed:
            link = engine.severed.pop()
            link.channel.close()
            self._stale.add(link.queue)
        self._see_opened()
        if all(spec.name in engine.links for spec in self._queues):
            return
        wanted = []
        for spec in self._queues:
            known = self._missing.get(spec.name)
            due = known is None or time.monotonic() >= known.due
            paused = engine.flow.lanes[spec.name].blocks & PAUSED
            absent = spec.name not in engine.links and not paused and due
            if absent and self._still_itself(spec):
                wanted.append(spec)
        if wanted and not engine.stopping:
            self._opening.update({each.link.queue: each for each in self._open_links(wanted)})

    def _still_itself(self, spec: Queue) -> bool:
        """Inspect a queue that may have been deleted and declared anew. False: it is missing."""
        assert self._connection is not None
        name = spec.name
        if name in self._stale:
            try:
                told = look(self._connection, spec)
                if (why := refused(spec, told)) is not None:
                    raise why
                self._became(name, told)
            except LeashError as error:
                self._cannot_consume(name, error)
                return False
            self._stale.discard(name)
        return True

    def _became(self, name: str, told: Traits | None) -> None:
        """Prepare a queue whose kind changed: it may need other queues for its copies, such as a limbo."""
        assert self._connection is not None
        known = self._engine.traits
        before, known[name] = known.get(name), told
        if told == before:
            return
        try:
            self._prepare(self._connection)
        except ConfigError as error:  # the existing ones are used as before
            log.warning("event=not_prepared queue=%r reason=%r", name, str(error))
        except AmqpError:
            known[name] = before
            raise

    def look_again(self) -> None:
        """Inspect queues that may have been declared anew while we were away, one per turn."""
        engine, connection = self._engine, self._connection
        if not self._unsure or connection is None:
            return
        name = self._unsure.pop()
        link = engine.links.get(name)
        if link is None:
            self._stale.add(name)
        elif traits(connection, name) != engine.traits.get(name):
            engine.note(logging.WARNING, "queue_changed", queue=name)
            engine.severed.append(link)
            engine.lost(link)

    def _cannot_consume(self, name: str, error: LeashError) -> None:
        assert self._connection is not None
        if self._connection.closed:
            return
        _, backoff, why = self._missing.get(name, _Missing(0.0, Backoff(*_MISSING), ""))
        if str(error) != why:
            log.warning("event=cannot_consume queue=%r reason=%r", name, str(error))
        self._stale.add(name)
        self._missing[name] = _Missing(time.monotonic() + backoff.next(), backoff, str(error))

    def _see_opened(self) -> None:
        """Note which consumers were granted. A queue without a leader answers after 30 s, if at all."""
        assert self._connection is not None
        for name, question in list(self._opening.items()):
            if not question.reply.here():
                if time.monotonic() - question.asked > REPLY_TIMEOUT:
                    self._connection.abort()
                continue
            del self._opening[name]
            try:
                question.reply(0)
                self._missing.pop(name, None)
                log.info("event=consuming queue=%r", name)
            except AmqpError as error:
                self._engine.lost(question.link)
                self._cannot_consume(name, error)

    def look_out(self) -> None:
        """Leave a host that no longer serves us, if another one does."""
        engine, connection = self._engine, self._connection
        assert connection is not None
        links = [
            each for each in list(engine.links.values()) if not each.stream and self._is_quorum(each.queue)
        ]
        better = self._lookout.look(time.monotonic(), connection.where, links, self._opening.values())
        if better is not None:
            log.warning("event=moved from=%r to=%r", connection.where, f"{better[0]}:{better[1]}")
            self._better = better
            connection.abort()
            self.on_moved(connection.where)

    def _is_quorum(self, name: str) -> bool:
        told = self._engine.traits.get(name)
        return told is None or told.kind == "quorum"
