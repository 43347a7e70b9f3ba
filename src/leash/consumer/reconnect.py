"""The connections of a consumer: opened, and opened again when they are lost.

There is one, unless its channels are too few for the queues: each further one has the next queues. One that
is lost is opened again with a growing wait, while the others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from leash.amqp import Connection, connect
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.consumer.engine import Engine
from leash.consumer.one_connection import SPARE, Line
from leash.consumer.outbox import Outbox
from leash.consumer.settings import Queue
from leash.errors import AmqpError, ConnectionLost, ReplyTimeout
from leash.logfmt import logger

log = logger("leash.consumer")

RECONNECT = (0.1, 3.0)
"""Seconds from one try to the next, at first and at most."""
_AGAIN = (0.05, 1.0)
"""Seconds before a connection that lasted less than `_SHORT` seconds is opened again."""
_SHORT = 1.0
_FIRST = 0.5  # seconds


class Connector:
    """The connections of one consumer. `prepare` declares the queues that copies go to."""

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
        self.lines = [Line(engine, uri, queues, prepare)]
        self.on_moved: Callable[[str], object] = lambda _: None
        """Called with the host that we leave because another one serves us better."""
        self.on_connected: Callable[[Connection, Outbox], object] = lambda *_: None
        """Called with the first connection, whenever it was opened."""
        self.before_consuming: Callable[[], object] = lambda: None
        self.left = threading.Event()
        """Set when there is nothing more to connect for."""
        self.reconnects = 0
        self._since: dict[Line, float] = {}
        self._again: dict[Line, Backoff] = {}
        self._reopening: dict[Line, threading.Thread] = {}

    @property
    def connection(self) -> Connection | None:
        """The first one, which is also used for what is not about a single queue."""
        return self.lines[0].connection

    @property
    def connections(self) -> list[Connection]:
        return [line.connection for line in self.lines if line.connection is not None]

    @property
    def gone(self) -> bool:
        """True if there is no connection at the moment."""
        return all(line.gone for line in self.lines)

    @property
    def whole(self) -> bool:
        """True if no connection is missing."""
        return not any(line.gone for line in self.lines)

    def open(self) -> None:
        """Connect for the first time; every error is raised to the caller."""
        avoid = ""
        for left in reversed(range(len(self._uri.hosts))):
            self.lines = [Line(self._engine, self._uri, self._queues, self._prepare)]
            self._connect(self.lines[0], avoid)
            try:
                self._begin()
                return
            except (ConnectionLost, ReplyTimeout):  # it may be cut off from the other nodes
                avoid = self.lines[0].where
                for connection in self.connections:
                    connection.abort()
                if not left:
                    raise
            except BaseException:
                for connection in self.connections:
                    connection.close()
                raise

    def _begin(self) -> None:
        first = self.lines[0].connection
        assert first is not None
        self._prepare(first)
        for line in self.lines:  # it grows meanwhile
            self._divide(line, first)
        self.before_consuming()
        for line in self.lines[1:]:
            self._connect(line, "")
        for line in self.lines:
            line.begin()
        self._await_first()

    def _divide(self, line: Line, connection: Connection) -> None:
        """Leave the queues for which a connection has no channels to one more connection."""
        if rest := line.keep(max(1, connection.channel_max - SPARE)):
            self.lines.append(Line(self._engine, self._uri, rest, self._prepare))

    def _await_first(self) -> None:
        """The first round begins when every queue that has messages has some here, or soon after."""
        lanes = self._engine.flow.lanes.values()
        deadline = time.monotonic() + _FIRST
        while time.monotonic() < deadline:
            with self._engine.lock:
                if all(lane.buffer or not lane.evidence or lane.sole for lane in lanes):
                    return
            time.sleep(0.001)

    def _connect(self, line: Line, avoid: str) -> None:
        connection = self.dial(self._preferred(line), avoid)
        line.connected(connection)
        self._since[line] = time.monotonic()
        if line is self.lines[0]:
            assert line.outbox is not None
            self.on_connected(connection, line.outbox)

    def dial(self, uri: Uri, avoid: str) -> Connection:
        """Open a connection, at the first host that answers; `avoid` comes last."""
        return connect(uri, name=self._name, avoid=avoid)

    def _preferred(self, line: Line) -> Uri:
        """The URI, with the host first that is known to be better."""
        if line.better is None:
            return self._uri
        return replace(self._uri, hosts=tuple(sorted(self._uri.hosts, key=lambda host: host != line.better)))

    def reconnect(self) -> None:
        """Open again what was lost. A single connection is waited for; one of several is not."""
        self._reopening = {line: thread for line, thread in self._reopening.items() if thread.is_alive()}
        for line in self.lines:
            if line.gone and line not in self._reopening:
                if len(self.lines) == 1:
                    self._reopen(line)
                else:
                    thread = threading.Thread(
                        target=self._reopen, args=(line,), name="leash-reconnect", daemon=True
                    )
                    self._reopening[line] = thread
                    thread.start()

    def _reopen(self, line: Line) -> None:
        """Try until there is a connection, or none is needed."""
        backoff = Backoff(*RECONNECT)
        again = self._again.setdefault(line, Backoff(*_AGAIN))
        if time.monotonic() - self._since.get(line, 0.0) < _SHORT:
            self.left.wait(again.next())
        else:
            again.reset()
        while not self.left.is_set():
            try:
                self._connect(line, line.where)
                if self.left.is_set() or self._engine.stopping:
                    break  # whoever leaves may have closed the others already
                assert line.connection is not None
                self._divide(line, line.connection)  # another host may allow fewer channels
                with self._engine.lock:
                    self.reconnects += 1
                line.unsure = line.queues
                self._engine.emit()  # what was noted before the loss
                log.info("event=reconnected broker=%r host=%r", str(self._uri), line.where)
                self._engine.nudge.set()
                return
            except Exception as error:
                wait = backoff.next()
                ours = not isinstance(error, AmqpError)
                log.warning("event=connect_failed reason=%r wait=%.1f", str(error), wait, exc_info=ours)
                self.left.wait(wait)
        if line.connection is not None:
            line.connection.close()

    def tend(self) -> None:
        """Mend what is missing, and leave hosts that no longer serve us."""
        for line in self._open_lines():
            try:
                line.mend()
                moved = line.look_out()
                if moved is not None:
                    self.on_moved(moved)
                line.look_again()
            except AmqpError as error:
                if len(self.lines) == 1:
                    raise
                log.debug("event=interrupted host=%r reason=%r", line.where, str(error))

    def look_at(self, names: list[str]) -> None:
        """Look at queues when Flow asks for it."""
        if len(self.lines) == 1:
            self.lines[0].looks.at(names)
            return
        asked = set(names)
        for line in self._open_lines():
            mine = [name for name in line.queues if name in asked]
            asked.difference_update(mine)
            try:
                if mine:
                    line.looks.at(mine)
            except AmqpError as error:  # the others are waited for
                log.debug("event=interrupted host=%r reason=%r", line.where, str(error))
        with self._engine.lock:
            for name in asked:
                self._engine.flow.not_probed(name)

    def _open_lines(self) -> list[Line]:
        """Those that no thread is about to open again."""
        return [line for line in self.lines if not line.gone and not self._is_reopening(line)]

    def _is_reopening(self, line: Line) -> bool:
        thread = self._reopening.get(line)
        return thread is not None and thread.is_alive()
