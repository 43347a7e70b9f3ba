"""The publisher's thread: it connects, writes what is in the line, and connects again.

A connection of its own, because an alarm blocks those that publish. While the broker blocks, nothing is
written, so that what waits is known not to have been sent.
"""

from __future__ import annotations

import threading
import time

from pamqp import commands

from leash.amqp import Connection, Outgoing, connect, wire
from leash.amqp.channel import Channel
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import (
    AmqpError,
    AuthenticationError,
    ChannelError,
    ConfigError,
    ConnectionLost,
    LeashError,
    TlsError,
    VirtualHostError,
)
from leash.logfmt import logger
from leash.publisher.sent import Sent
from leash.publisher.unconfirmed import Line

log = logger("leash.publisher")

RECONNECT = (0.1, 5.0)
"""Seconds from one try to the next, at first and at most."""
_LOOK = 1.0
_GATHER = 0.00001  # seconds: hardly more than giving way; see `Line.crowded`
_FINAL = (AuthenticationError, VirtualHostError, TlsError, ConfigError)
"""What another try does not mend, if there was never a connection."""


class Link:
    """One channel in confirm mode."""

    def __init__(self, connection: Connection, line: Line) -> None:
        self.connection = connection
        self.channel: Channel = connection.channel()
        self.epoch = epoch = line.opened()
        self._line = line
        self.channel.on_lost = lambda error: line.lost(epoch, error)
        self.channel.on_confirm = lambda told: line.confirm(epoch, told.tag, told.multiple, told.ok)
        self.channel.on_return = self._on_return
        self.encoder = wire.PublishEncoder(self.channel.number, connection.frame_max)
        self.channel.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def _on_return(self, event: wire.ContentEvent) -> None:
        method = event.method
        assert isinstance(method, commands.Basic.Return)
        came = Outgoing(event.body, method.exchange, method.routing_key or "")
        self._line.returned(self.epoch, came, event.properties, method.reply_text)

    def encoded(self, lot: list[Sent]) -> bytes:
        parts: list[bytes] = []
        self.encoder.encode([sent.message for sent in lot], parts)
        return b"".join(parts)


class Writer:
    """Of one publisher in one process."""

    def __init__(self, uri: Uri, name: str, line: Line) -> None:
        self._uri = uri
        self._name = name
        self._line = line
        self._link: Link | None = None
        self._connection: Connection | None = None
        self._connected = False  # at least once
        self._confirmed = 0  # when the last connection was lost
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._opening = threading.Lock()
        line.blocked = lambda: self._connection.blocked if self._connection is not None else None

    def start(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="leash-publisher", daemon=True)
                    self._thread.start()

    def open(self) -> None:
        """Connect now; raises what is wrong."""
        with self._opening:
            self._dial()

    @property
    def where(self) -> str:
        return "" if self._connection is None else self._connection.where

    @property
    def is_current(self) -> bool:
        """True if this is one of the threads that everything waits for."""
        inside = threading.current_thread() is self._thread
        return inside or (self._connection is not None and self._connection.in_reader)

    def stop(self) -> None:
        """After the line was closed."""
        connection = self._connection
        if connection is not None:
            connection.close(1.0)
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def disown(self) -> None:
        """In a process that was forked: the connection is the other one's."""
        if self._connection is not None:
            self._connection.disown()

    # --- its thread ---

    def _run(self) -> None:
        line = self._line
        backoff = Backoff(*RECONNECT)
        while self._due():
            try:
                link = self._ready()
                self._write(link)
            except (LeashError, OSError) as error:
                self._troubled(error, backoff)
            except Exception as error:  # ours: what waits must hear of it all the same
                log.exception("event=writer_failed")
                self._troubled(ConnectionLost(f"{type(error).__name__}: {error}"), backoff)
        with line.lock:
            line.trouble = "the publisher is closed"

    def _due(self) -> bool:
        """Wait for something to write. False: there is to be no more."""
        line = self._line
        with line.lock:
            while line.idle() and not line.closed:
                line.writer_waits = True
                line.work.wait()
            line.writer_waits = False
            gather = line.crowded()
        if gather:
            time.sleep(_GATHER)
        return not line.closed

    def _troubled(self, error: Exception, backoff: Backoff) -> None:
        line, link = self._line, self._link
        if link is not None:  # its reader says the same, now or a moment later
            line.lost(link.epoch, error if isinstance(error, AmqpError) else ConnectionLost(str(error)))
            self._link = None
            if not link.channel.closed:
                link.connection.abort()
        worked = line.confirmed != self._confirmed  # so it may work again at once
        if worked or isinstance(error, ChannelError):
            self._confirmed = line.confirmed
            backoff.reset()
            if link is not None:
                return
        if isinstance(error, _FINAL) and not self._connected:
            line.fail_queued(error)
            return
        wait = backoff.next()
        log.warning("event=connect_failed reason=%r wait=%.1f", str(error), wait)
        with line.lock:
            line.trouble = str(error)
            if not line.closed:
                line.work.wait(wait)

    def _ready(self) -> Link:
        """A channel that messages can be written to now."""
        link = self._link
        if link is None or link.channel.closed:
            if link is not None and link.channel.error is not None:
                self._line.lost(link.epoch, link.channel.error)
            self._link = None
            with self._opening:
                connection = self._dial()
            link = self._link = Link(connection, self._line)
        connection = link.connection
        while connection.blocked is not None and not link.channel.closed and not self._line.closed:
            with connection.changed:
                if connection.blocked is not None and connection.error is None:
                    connection.changed.wait(_LOOK)
        return link

    def _dial(self) -> Connection:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = connect(self._uri, name=self._name, avoid=self.where)
            if self._line.closed:
                connection.close(1.0)
                raise ConnectionLost("the publisher is closed")
            if self._connected:
                log.info("event=reconnected host=%r", connection.where)
            self._connected = True
        return connection

    def _write(self, link: Link) -> None:
        lot = self._line.take()
        if not lot:
            return
        try:
            data = link.encoded(lot)
        except Exception:
            lot, data = self._those_that_fit(link, lot)
        if lot and self._line.number(lot, link.epoch):
            link.channel.write(data)

    def _those_that_fit(self, link: Link, lot: list[Sent]) -> tuple[list[Sent], bytes]:
        """Properties that fill more than a frame, say: only that message fails."""
        good = []
        for sent in lot:
            try:
                link.encoded([sent])
                good.append(sent)
            except Exception as error:
                self._line.fail([sent], error)
        return good, link.encoded(good)
