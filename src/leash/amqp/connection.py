"""A connection: opening one, its reader thread, heartbeats, and the channels on it.

The law: a thread of our own always reads. So heartbeats are answered and deliveries received while the
user's code sleeps or computes. (A C call that holds the interpreter's lock stops every thread, this one too.)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from pamqp import commands
from pamqp.base import Frame as Method

from leash.amqp import wire
from leash.amqp.channel import Channel
from leash.amqp.handshake import Handshake, version
from leash.amqp.hosts import first_host
from leash.amqp.transport import READ, Transport
from leash.amqp.uri import Uri, parse
from leash.errors import AmqpError, ConnectionLost
from leash.logfmt import logger

log = logger("leash.amqp")

# RabbitMQ flushes a stream of messages in small pieces. A pause after each lets the next read take more at
# once, which costs both sides less: half the CPU here. It is as long as a fast broker takes to send the last
# piece, so a trickle is not delayed at all, and a stream by 2 ms at most.
_SEVERAL = 3
_REST_EACH, _REST_LEAST, _REST_MOST = 0.00002, 0.0002, 0.002
_RELEASED = 1.0
"""Seconds to wait for the number of a channel that the broker closed: it is free once our answer is out."""


def connect(
    uri: str | Uri,
    *,
    name: str = "",
    heartbeat: int | None = None,
    timeout: float | None = None,
    avoid: str = "",
) -> Connection:
    """Connect to the first host that accepts us. `name` is shown in the management UI.

    Each host has `timeout` seconds, from the first packet to the open virtual host. One that is down,
    drained, full or not ready is skipped; refused credentials or a missing virtual host end the search,
    because every node of a cluster would answer the same. `avoid` is the `where` of a lost connection:
    that host is tried last.
    """
    place = parse(uri)
    return first_host(
        place,
        timeout,
        avoid,
        lambda transport, where, deadline: Connection(place, transport, where, name, heartbeat, deadline),
    )


class Connection:
    """An open connection. Every method may be called from any thread; `connect` makes one."""

    has_reader = True
    """True if a thread reads the socket and calls `after_read`."""

    def __init__(
        self, uri: Uri, transport: Transport, where: str, name: str, heartbeat: int | None, deadline: float
    ) -> None:
        self.uri = uri
        self.where = where
        self.blocked: str | None = None
        """Why the broker takes no messages now, in its own words."""
        self.error: AmqpError | None = None
        self.changed = threading.Condition()
        """Notified when `blocked` or `error` changes."""
        self.received = 0
        """Bytes received: a thread that waits for an answer behind large messages sees that data arrives."""
        self.after_read: Callable[[], object] = lambda: None
        """Called in the reader's thread after all deliveries of one read have been passed on."""
        self._transport = transport
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}  # from before open is sent until close-ok has arrived
        self._decoder = wire.Decoder(channels=self._channels)
        self._free: deque[int] = deque()
        self._released = threading.Condition(self._lock)
        self._highest = 0  # number of a channel, ever
        self._closing = False
        self._owed: list[tuple[bytes, Channel | None]] = []
        self._gathered: dict[int, list[bytes]] = {}  # by thread
        self._last_sent = time.monotonic()
        agreed = Handshake(uri, transport, self._decoder, where, deadline).run(name, heartbeat)
        self.server: Mapping[str, Any] = agreed.server
        self.heartbeat = agreed.heartbeat
        self.frame_max = agreed.frame_max
        self.channel_max = agreed.channel_max
        self._reader = threading.Thread(target=self._read, name=f"leash-reader {where}", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Connection {self.uri}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if it is closed: here, by the broker or by the network."""
        return self.error is not None

    @property
    def version(self) -> tuple[int, ...]:
        """The broker's version as numbers, (3, 10, 8)."""
        return version(self.server)

    @property
    def free(self) -> int:
        """How many more channels it can have."""
        return self.channel_max - len(self._channels)

    def channel(self, wait: bool = True) -> Channel:
        """Open a channel. It may be used at once, whether or not one waits for the broker's word."""
        with self._lock:
            self.check_open()
            number = self._number()
            channel = self._channels[number] = Channel(self, number)
        channel.open(wait)
        return channel

    def _number(self) -> int:
        """One that was free for the longest time: a late frame for an old channel must not meet a new one."""
        if self._highest < self.channel_max:
            self._highest += 1
            return self._highest
        if not self._free and any(channel.closed for channel in self._channels.values()):
            self._released.wait_for(lambda: self._free, _RELEASED)
            self.check_open()
        if not self._free:
            raise AmqpError(f"all {self.channel_max} channels of this connection are in use")
        return self._free.popleft()

    def close(self, timeout: float = 5.0) -> None:
        """Close cleanly; a second call, or one after a loss, does nothing."""
        with self._lock:
            if self._closing or self.closed:
                self._closing = True
                self._transport.shutdown()
                return
            self._closing = True
        try:
            bye = commands.Connection.Close(200, "bye", 0, 0)
            self.write(wire.method(0, bye), time.monotonic() + timeout)
        except (AmqpError, TimeoutError):
            self._transport.shutdown()
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout)
            self._transport.shutdown()

    def abort(self) -> None:
        """Drop the connection without closing it, as a crash would."""
        self._transport.shutdown()

    def disown(self) -> None:
        """In a process that was forked: let go of the socket, which is the other process's to use and end."""
        self.error = ConnectionLost(f"{self.where}: this connection belongs to another process")
        self._transport.disown()

    def write(self, data: bytes, deadline: float | None = None) -> None:
        """Write bytes to the socket. TimeoutError after the deadline, which ends the connection."""
        self.check_open()
        if self._gathered and (gathered := self._gathered.get(threading.get_ident())) is not None:
            gathered.append(data)
            return
        try:
            self._transport.write(data, deadline)
        except TimeoutError:
            self.abort()
            raise
        except (OSError, ValueError) as error:
            raise self.error or ConnectionLost(f"{self.where}: {error}") from error
        self._last_sent = time.monotonic()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What this thread writes inside is sent at the end, in one go. It must not wait for answers."""
        me = threading.get_ident()
        gathered = self._gathered[me] = []
        try:
            yield
        finally:
            del self._gathered[me]
            if gathered:
                self.write(b"".join(gathered))

    @property
    def in_reader(self) -> bool:
        """True if this is the reader's thread, which must never wait for a reply."""
        return threading.current_thread() is self._reader

    def release(self, channel: Channel) -> None:
        """Let a channel's number be used again."""
        with self._lock:
            if self._channels.get(channel.number) is channel:  # not a newer one with its number
                del self._channels[channel.number]
                self._free.append(channel.number)
                self._released.notify()

    def check_open(self) -> None:
        if self.error is not None:
            raise ConnectionLost(str(self.error)) from self.error

    # --- the reader's thread ---

    def answer(self, data: bytes, closed: Channel | None = None) -> None:
        """Send a reply from the reader's thread, which must not wait: now, or when the socket takes it.

        The number of a `closed` channel may be used again only after that: the broker would take the new
        channel for the old one.
        """
        self._owed.append((data, closed))
        self._pay()

    def _pay(self) -> None:
        while self._owed and self._transport.try_write(self._owed[0][0]):
            closed = self._owed.pop(0)[1]
            if closed is not None:
                self.release(closed)

    def _read(self) -> None:
        error: AmqpError
        try:
            self._read_until_closed()
            error = ConnectionLost(f"{self.where}: closed")
        except AmqpError as caught:
            error = caught
        except OSError as caught:
            error = ConnectionLost(f"{self.where}: connection lost: {caught.strerror or caught}")
        except BaseException as caught:
            log.exception("event=reader_failed host=%r", self.where)
            error = ConnectionLost(f"{self.where}: the reader failed: {type(caught).__name__}")
        with self.changed:
            self.error = error
            self.changed.notify_all()
        with self._lock:
            channels = list(self._channels.values())
        for channel in channels:
            channel.lost(error, asked=self._closing)
        self._transport.close()

    def _read_until_closed(self) -> None:
        transport, decoder = self._transport, self._decoder
        beat = self.heartbeat / 2
        patience = self.heartbeat * 1.5  # the broker sends every half interval: two missed, and a margin
        last_heard = time.monotonic()
        while True:
            data = transport.read(0.01 if self._owed else beat / 2 if beat else 60.0)
            now = time.monotonic()
            if data:
                last_heard = now
                self.received += len(data)
                count = 0
                for event in decoder.feed(data):
                    if not self._dispatch(event):
                        return
                    if type(event) is wire.Deliveries:
                        count += len(event)
                if count:
                    self.after_read()
                if len(data) < READ and (count > _SEVERAL or decoder.waiting):
                    time.sleep(min(_REST_MOST, max(_REST_LEAST, count * _REST_EACH)))
            elif data is not None:
                raise ConnectionLost(f"{self.where}: the broker closed the connection")
            elif beat and now - last_heard > patience:
                raise ConnectionLost(f"{self.where}: nothing heard for {now - last_heard:.1f} s")
            self._pay()
            if beat and now - self._last_sent >= beat and transport.try_write(wire.HEARTBEAT):
                self._last_sent = now

    def _dispatch(self, event: wire.Event) -> bool:
        """Pass an event on. False: the connection is closed."""
        if event.channel:
            channel = self._channels.get(event.channel)
            if channel is not None:
                channel.on_event(event)
            return True
        return not isinstance(event, wire.MethodEvent) or self._on_method(event.method)

    def _on_method(self, method: Method) -> bool:
        if isinstance(method, commands.Connection.Close):
            self.answer(wire.method(0, commands.Connection.CloseOk()))
            raise ConnectionLost(
                f"{self.where}: the broker closed: {method.reply_text} ({method.reply_code})"
            )
        if isinstance(method, commands.Connection.CloseOk):
            return False
        if isinstance(method, commands.Connection.Blocked | commands.Connection.Unblocked):
            reason = getattr(method, "reason", None)
            if reason is None:
                log.warning("event=unblocked host=%r", self.where)
            else:
                log.warning("event=blocked host=%r reason=%r", self.where, f"blocks publishers: {reason}")
            with self.changed:
                self.blocked = reason
                self.changed.notify_all()
        return True
