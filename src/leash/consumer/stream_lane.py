"""The thread of one stream: reads, delivers what the lane has room for, and stores offsets.

The rule: an offset is stored only if every message up to it is settled: done, parked or discarded. So the
next process of that name skips nothing, and repeats only what was not stored. After a lost connection
reading goes on behind the last message that came; what is in the buffer or in work stays there.

With a single active consumer each turn has a link of its own. A turn ends in good order when what is in work
is settled and stored; if the connection is lost, another process may be active, and nothing more is begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.consumer.engine import Engine
from leash.consumer.stream_link import StreamLink
from leash.consumer.stream_rows import COLUMNS, Spare
from leash.consumer.stream_settings import StreamQueue
from leash.errors import AmqpError, DataLost, LeashError
from leash.logfmt import logger
from leash.streams import Connection, Reader, Turns, open_leader, open_member, store_offset
from leash.streams.offsets import Depth
from leash.streams.resume_offset import begin_of, check_start, store_surely
from leash.streams.wire import NEED_FILTERS, Key, Offset

log = logger("leash.consumer")

STORE_EVERY, STORE_AFTER = 5.0, 10_000
"""An offset is stored after this many seconds, or messages."""

_LOOK = 0.05  # seconds without news
_BATCH = 256 * 1024  # bytes that are read at once
_AHEAD = 256  # messages that are read ahead of the window
_PATIENCE = 3.0  # seconds in which a lost connection is tried again before the log tells why
_HAND_OVER = 45.0  # seconds for what is in work; the broker waits for a minute


class About(NamedTuple):
    """What all streams of a consumer share."""

    uri: Uri
    name: str
    """Of the connections."""
    load_balancer: bool
    window_bytes: int
    frame_max: Callable[[], int]
    parking: Callable[[], int]
    """How many failed messages have a copy that is not confirmed yet."""


class StreamLane:
    """One stream of a consumer."""

    def __init__(self, engine: Engine, spec: StreamQueue, about: About) -> None:
        self._engine = engine
        self._spec = spec
        self._about = about
        self._reader: Reader | None = None
        self._link: StreamLink | None = None
        self._batch: Any = None  # what was read and is not taken in yet
        self._spare = Spare(spec.name)
        self._depth = Depth(spec.name)
        self._more = threading.Event()
        self._left = threading.Event()
        self._next = 0
        self._stored: tuple[Connection | None, int | None] = (None, None)
        self._stored_at = time.monotonic()
        self._told = ""
        self.failed: DataLost | None = None
        """Why it does not go on, for good."""
        self.ready = threading.Event()
        """Set once the lane has messages, or there are none."""
        self.thread = threading.Thread(target=self._run, name=f"leash-stream {spec.name}", daemon=True)

    # --- in the thread of the session ---

    def open(self) -> None:
        """Look where to begin; what is wrong is raised here."""
        spec, about = self._spec, self._about
        turns = None
        begin: Offset | str = "first"
        with open_member(
            about.uri, spec.name, load_balancer=about.load_balancer, name=about.name
        ) as connection:
            if spec.filters:
                connection.require(Key.PUBLISH, spec.name, NEED_FILTERS, 2)
            check_start(connection, self._open_leader, spec.reference, spec.name, spec.start)
            if spec.single_active:
                what = "a single active consumer needs RabbitMQ 3.11"
                connection.require(Key.STREAM_STATS, spec.name, what)
                turns = Turns(spec.reference, spec.super_stream, self._begin, self._end, self._lost)
            else:
                begin = begin_of(connection, spec.reference, spec.name, spec.start, time.time())
        self._reader = Reader(
            about.uri,
            spec.name,
            begin,
            columns=COLUMNS,
            batch_bytes=_BATCH,
            linger=0.0,
            load_balancer=about.load_balancer,
            name=about.name,
            patience=_PATIENCE,
            filters=spec.filters,
            unfiltered=spec.unfiltered,
            fail_on_data_loss=spec.fail_on_data_loss,
            window_bytes=about.window_bytes,
            turns=turns,
        )
        if turns is None:
            self._renew()
        else:
            self._engine.standby.add(spec.name)
            self.ready.set()

    def _open_leader(self) -> Connection:
        about = self._about
        return open_leader(about.uri, self._spec.name, load_balancer=about.load_balancer, name=about.name)

    def leave(self) -> None:
        """Begin to end: what is in work is settled already."""
        self._left.set()
        self._more.set()

    def abandon(self) -> None:
        """End at once, as a crash would."""
        with self._engine.lock:
            if self._link is not None:
                self._link.alive = False
        self.leave()
        connection = self._reader.connection if self._reader is not None else None
        if connection is not None:
            connection.abort()

    # --- its own thread ---

    def _run(self) -> None:
        backoff = Backoff(0.1, 2.0)
        while not self._left.is_set():
            try:
                self._turn()
                backoff.reset()
                self._told = ""
            except DataLost as error:  # with `fail_on_data_loss`
                log.error("event=data_lost stream=%r reason=%r", self._spec.name, str(error))
                self.failed = error
                self.ready.set()
                self._left.wait()
            except Exception as error:
                known = isinstance(error, LeashError)
                if str(error) != self._told:
                    self._told = str(error)
                    log.warning(
                        "event=cannot_consume queue=%r reason=%r",
                        self._spec.name,
                        self._told,
                        exc_info=not known,
                    )
                self._left.wait(backoff.next())
        self._close()

    def _turn(self) -> None:
        reader = self._reader
        assert reader is not None
        reader.serve()
        self._deliver()  # before anything that waits for the broker
        self._answer(reader)
        self._store_if_due(reader)
        link = self._link
        if len(self._spare) < _AHEAD + (0 if link is None else link.window):
            if self._batch is None:
                self._batch = reader.read(0.0 if len(self._spare) else _LOOK)
            if self._batch is not None:
                self._take_in(self._batch)
                self._batch = None
                self._deliver()
                return
        if len(self._spare):
            self._more.wait(_LOOK)
        self._more.clear()

    def _take_in(self, batch: Any) -> None:
        if self._link is None:
            return
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if first < self._next:  # another stream of that name, from its beginning on
            self._renew()
        self._spare.add(batch)
        self._next = last + 1

    def _deliver(self) -> None:
        link, engine = self._link, self._engine
        if link is None or not len(self._spare):
            return
        with engine.lock:
            room = link.room
            if room <= 0:
                return
            batch = self._spare.take(room)
            link.ledger.expect(batch.tags)
        engine.arrivals.deliver(link, batch)
        self.ready.set()

    def _answer(self, reader: Reader) -> None:
        """Tell Flow how many messages there are, if it wants to know."""
        link, engine = self._link, self._engine
        if link is None or not link.asked:
            return
        link.asked = False
        name, held, position = self._spec.name, len(self._spare), reader.next
        began = engine.clock.now()
        try:
            count = held
            if not self._spec.filters:  # otherwise nobody knows how many are for us: no round waits for them
                count += reader.use(lambda connection: self._depth.ready(connection, position))
        except AmqpError:  # reading will say why
            with engine.lock:
                engine.flow.not_probed(name)
            return
        now = engine.clock.now()
        with engine.lock:
            if self._link is link and link.alive:
                engine.flow.probed(now, name, count, 1, max(1, now - began))
                engine.check()
        if not count:
            self.ready.set()

    # --- offsets ---

    def _store_if_due(self, reader: Reader) -> None:
        link, connection = self._link, reader.connection
        if link is None or connection is None or connection.closed or not reader.proven:
            return  # the former stream's offset would skip messages of a new one with that name
        last = self._last(link)
        on, stored = self._stored
        if last is None or (on is connection and stored == last):
            return
        late = time.monotonic() - self._stored_at >= STORE_EVERY
        if late or (stored is not None and last - stored >= STORE_AFTER):
            store_offset(connection, self._spec.reference, self._spec.name, last)
            self._stored, self._stored_at = (connection, last), time.monotonic()

    def _last(self, link: StreamLink) -> int | None:
        with self._engine.lock:
            return link.ledger.last

    def _store_now(self, connection: Connection, link: StreamLink) -> None:
        """Store the last offset, and wait until the broker has it."""
        if (last := self._last(link)) is not None:
            store_surely(connection, self._spec.reference, self._spec.name, last)

    def _close(self) -> None:
        reader, link = self._reader, self._link
        assert reader is not None
        lost = reader.connection is None or reader.connection.closed
        if lost and self._spec.single_active:  # another one may be active, and further
            link = None
        if self.failed is not None or not reader.proven:  # it may be another stream
            link = None
        if link is not None and link.alive:
            last = link
            try:
                reader.use(lambda connection: self._store_now(connection, last))
            except LeashError as error:
                log.warning("event=offset_not_stored stream=%r reason=%r", self._spec.name, str(error))
        reader.close()

    # --- turns ---

    def _renew(self) -> None:
        """A link for what comes from now on; nothing more is done with what came before."""
        engine, name = self._engine, self._spec.name
        reader, about = self._reader, self._about
        assert reader is not None
        self._forget()
        with engine.lock:
            lane = engine.flow.lanes[name]
            self._link = engine.links[name] = StreamLink(
                self._spec,
                engine.clock,
                lane.credit,
                lane.window.epoch if lane.window else 0,
                self._more,
                lambda: reader.connection is not None and not reader.connection.closed,
                about.frame_max,
            )
            self._link.ending = engine.stopping
            engine.standby.discard(name)
            self._link.probe()
        self._next, self._depth = 0, Depth(name)
        self._stored, self._stored_at = (None, None), time.monotonic()

    def _forget(self) -> None:
        self._spare.clear()
        self._batch = None
        if self._link is not None:
            self._engine.lost(self._link)
            self._link = None

    def _begin(self, connection: Connection) -> Offset:
        """We are the active consumer: go on where the one before ended."""
        spec, reader = self._spec, self._reader
        assert reader is not None
        reader.prove()
        start = "first" if reader.made_again else spec.start
        begin = begin_of(connection, spec.reference, spec.name, start, time.time())
        self._renew()
        log.info("event=active stream=%r name=%r offset=%r", spec.name, spec.reference, begin.value)
        return begin

    def _end(self) -> None:
        """Another one becomes active as soon as this returns: finish what is in work, and store it."""
        link, engine, name = self._link, self._engine, self._spec.name
        engine.standby.add(name)
        if link is None:
            return
        self._spare.clear()
        with engine.lock:
            link.ending = True
            waiting = len(engine.flow.forget(engine.clock.now(), name))
            lane = engine.flow.lanes[name]
        deadline = time.monotonic() + _HAND_OVER
        while time.monotonic() < deadline and not self._left.is_set():
            with engine.lock:
                parked = link.ledger.unsettled <= waiting or not self._about.parking()
                if not lane.in_work and parked:
                    break
            time.sleep(0.005)
        connection = self._reader.connection if self._reader is not None else None
        if connection is not None:
            self._store_now(connection, link)
        self._forget()
        log.info("event=standby stream=%r name=%r", name, self._spec.reference)

    def _lost(self) -> None:
        """The connection is gone, and with it the turn."""
        self._engine.standby.add(self._spec.name)
        self._forget()
