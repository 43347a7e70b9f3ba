"""One connection and the links on it: opened, mended, and left when its host no longer serves us.

A missing queue is looked for again, while the others go on. Each new channel starts with an empty ledger: old
deliveries are never settled on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from leash.amqp import Connection
from leash.amqp.channel import REPLY_TIMEOUT
from leash.amqp.delivery_limit import LIMIT, limit_of
from leash.amqp.queue_traits import Traits, traits_of
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.consumer.cut_off_node import Host, Lookout, Question
from leash.consumer.depths import Looks
from leash.consumer.engine import Engine
from leash.consumer.inspection import look, refused
from leash.consumer.link import Link
from leash.consumer.outbox import Outbox
from leash.consumer.settings import Queue
from leash.errors import AmqpError, ConfigError, LeashError, NotFound
from leash.flow.lane import PAUSED
from leash.logfmt import logger

log = logger("leash.consumer")

_MISSING = (0.1, 2.0)
SPARE = 47
"""Channels of a connection that stay free for looks, limbo and the like: 2,000 of the usual 2,047 consume."""
_AT_ONCE = 16  # queues inspected again at a turn
_LOOKED_OVER = 10_000  # links that may be looked at in a second, to see whether their host is silent


class _Missing(NamedTuple):
    """A queue that cannot be consumed: when to look again, how long to wait after that, and why."""

    due: float
    backoff: Backoff
    why: str


class Line:
    """The connection for some of a consumer's queues. `prepare` declares the queues that copies go to."""

    def __init__(
        self, engine: Engine, uri: Uri, queues: list[Queue], prepare: Callable[[Connection], None]
    ) -> None:
        self._engine = engine
        self._uri = uri
        self._queues = {spec.name: spec for spec in queues}
        self._prepare = prepare
        self.connection: Connection | None = None
        self.outbox: Outbox | None = None
        self._missing: dict[str, _Missing] = {}
        self._opening: dict[str, Question] = {}
        self._lookout = Lookout(uri)
        self._look_out_at = 0.0
        self.better: Host | None = None
        """A host that serves us better than the one that we left."""
        self._stale: set[str] = set()
        self.unsure: list[str] = []
        """Queues that may have been declared anew while we were away."""
        self.looks = Looks(engine)

    @property
    def queues(self) -> list[str]:
        return list(self._queues)

    def keep(self, room: int) -> list[Queue]:
        """Keep as many queues as there is room for; returns the others."""
        specs = list(self._queues.values())
        self._queues = {spec.name: spec for spec in specs[:room]}
        return specs[room:]

    @property
    def where(self) -> str:
        return "" if self.connection is None else self.connection.where

    @property
    def gone(self) -> bool:
        """True if there is no connection at the moment."""
        return self.connection is None or self.connection.closed

    def connected(self, connection: Connection) -> None:
        """Start afresh with a new connection."""
        self.outbox = Outbox(connection, self._engine.lock, self._engine.unwritten)
        self.connection, self.better = connection, None
        connection.after_read = self._engine.arrived
        self.looks.connected(connection)
        self._missing.clear()
        self._opening.clear()
        self._lookout.connected(time.monotonic())

    def begin(self) -> None:
        """Consume for the first time; every error is raised to the caller."""
        self.looks.first(self.queues)
        for question in self._open_links(list(self._queues.values())):
            question.reply(REPLY_TIMEOUT)

    def _open_links(self, queues: list[Queue]) -> list[Question]:
        """Open channels first, then all consumers: messages of the first would delay the others."""
        assert self.connection is not None
        links: list[Link] = []
        try:
            with self.connection.together():
                links.extend(self._new_link(spec) for spec in queues)
            with self.connection.together():
                questions = [self._start(link) for link in links]
            with self._engine.lock:
                for link in links:
                    link.started()
        except AmqpError:
            for link in links:
                self._engine.lost(link)
            raise
        return questions

    def _start(self, link: Link) -> Question:
        with self._engine.lock:
            lane = self._engine.flow.lanes[link.queue]
            if link.spec.ordered and link.limit is not None and link.limit < LIMIT:
                lane.credit = 1  # messages behind the first would be redelivered as often as it is
            window, epoch = lane.credit, lane.window.epoch if lane.window else 0
        reply = link.start(window, epoch, self._engine.arrivals.deliver, self._engine.cancelled)
        return Question(link, reply, time.monotonic())

    def _new_link(self, spec: Queue) -> Link:
        engine, outbox = self._engine, self.outbox
        assert self.connection is not None
        assert outbox is not None
        channel = self.connection.channel(wait=False)
        with engine.lock:
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
            link.due, link.gathers = engine.due, self.connection.has_reader
            engine.absent.discard(spec.name)
        channel.on_lost = lambda error: engine.lost(link, error)
        return link

    def _limit_of(self, spec: Queue, told: Traits | None) -> int | None:
        if told is None and spec.ordered:  # it parks messages near the limit, so assume the usual limit
            return LIMIT
        return limit_of(told, self.connection.version if self.connection is not None else ())

    def mend(self) -> None:
        """Open what is missing; close the channels of consumers that the broker ended."""
        engine = self._engine
        for link in [each for each in engine.severed if each.queue in self._queues]:
            engine.severed.remove(link)
            engine.drain(link.outbox)  # a frame behind the close would end the connection
            link.channel.close()
            self._stale.add(link.queue)
        if self._opening:
            self._see_opened()
        if not engine.absent:
            return
        wanted = []
        for name in [name for name in self._queues if name in engine.absent]:
            known = self._missing.get(name)
            due = known is None or time.monotonic() >= known.due
            paused = engine.flow.lanes[name].blocks & PAUSED
            if not paused and due and self._still_itself(self._queues[name]):
                wanted.append(self._queues[name])
        if wanted and not engine.stopping:
            self._opening.update({each.link.queue: each for each in self._open_links(wanted)})

    def _still_itself(self, spec: Queue) -> bool:
        """Inspect a queue that may have been deleted and declared anew. False: it is missing."""
        assert self.connection is not None
        name = spec.name
        if name in self._stale:
            try:
                told = look(self.connection, spec)
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
        assert self.connection is not None
        known = self._engine.traits
        before, known[name] = known.get(name), told
        if told == before:
            return
        try:
            self._prepare(self.connection)
        except ConfigError as error:  # the existing ones are used as before
            log.warning("event=not_prepared queue=%r reason=%r", name, str(error))
        except AmqpError:
            known[name] = before
            raise

    def look_again(self) -> None:
        """Inspect queues that may have been declared anew while we were away, some at each turn."""
        engine, connection = self._engine, self.connection
        if not self.unsure or connection is None:
            return
        names, self.unsure = self.unsure[-_AT_ONCE:], self.unsure[:-_AT_ONCE]
        self._stale |= {name for name in names if name not in engine.links}
        told = traits_of(connection, [name for name in names if name in engine.links])
        for name, now in told.items():
            link = engine.links.get(name)
            if link is not None and (isinstance(now, NotFound) or now != engine.traits.get(name)):
                engine.note(logging.WARNING, "queue_changed", queue=name)
                engine.severed.append(link)
                engine.lost(link)

    def _cannot_consume(self, name: str, error: LeashError) -> None:
        assert self.connection is not None
        if self.connection.closed:
            return
        _, backoff, why = self._missing.get(name, _Missing(0.0, Backoff(*_MISSING), ""))
        if str(error) != why:
            log.warning("event=cannot_consume queue=%r reason=%r", name, str(error))
        self._stale.add(name)
        self._missing[name] = _Missing(time.monotonic() + backoff.next(), backoff, str(error))

    def _see_opened(self) -> None:
        """Note which consumers were granted. A queue without a leader answers after 30 s, if at all."""
        assert self.connection is not None
        for name, question in list(self._opening.items()):
            if not question.reply.here():
                if time.monotonic() - question.asked > REPLY_TIMEOUT:
                    self.connection.abort()
                continue
            del self._opening[name]
            try:
                question.reply(0)
                self._missing.pop(name, None)
                log.info("event=consuming queue=%r", name)
            except AmqpError as error:
                self._engine.lost(question.link)
                self._cannot_consume(name, error)

    def look_out(self) -> str | None:
        """Leave a host that no longer serves us, if another one does; returns that host's name."""
        connection, now = self.connection, time.monotonic()
        assert connection is not None
        if len(self._uri.hosts) < 2 or now < self._look_out_at:
            return None
        links = [each for each in self._links() if self._is_quorum(each.queue)]
        self._look_out_at = now + len(links) / _LOOKED_OVER
        better = self._lookout.look(now, connection.where, links, self._opening.values())
        if better is None:
            return None
        log.warning("event=moved from=%r to=%r", connection.where, f"{better[0]}:{better[1]}")
        self.better = better
        connection.abort()
        return connection.where

    def _links(self) -> list[Link]:
        links = self._engine.links
        return [link for name in self._queues if (link := links.get(name)) is not None]

    def _is_quorum(self, name: str) -> bool:
        told = self._engine.traits.get(name)
        return told is None or told.kind == "quorum"
