"""A connection: handshake, reader thread, heartbeats, and the channels on it.

The law: one thread of our own reads, always. So heartbeats are answered and deliveries taken in while the
user's code sleeps or computes. (A C call that keeps the interpreter's lock stops every thread, this one too.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, Self

from pamqp import commands
from pamqp.base import Frame as Method

import leash
from leash.amqp import wire
from leash.amqp.channel import Channel
from leash.amqp.transport import READ, Transport, open_transport, tls_context
from leash.amqp.uri import Uri, parse
from leash.errors import (
    AmqpError,
    AuthenticationError,
    ConnectError,
    ConnectionLost,
    HostUnreachable,
    ProtocolError,
    TlsRequired,
    VirtualHostError,
)

log = logging.getLogger("leash.amqp")

_CAPABILITIES = dict.fromkeys(
    [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "exchange_exchange_bindings",
        "publisher_confirms",
    ],
    True,
)


# RabbitMQ flushes a stream of messages in small pieces. A rest after each lets the next read take more at
# once, which costs both sides less: half the CPU here. It is as long as a fast broker takes to send what came
# just now, so a trickle is not delayed at all, and a stream by 2 ms at most.
_SEVERAL = 3
_REST_EACH, _REST_LEAST, _REST_MOST = 0.00002, 0.0002, 0.002


def connect(
    uri: str | Uri, *, name: str = "", heartbeat: int | None = None, timeout: float | None = None
) -> Connection:
    """Connect to the first host that answers. `name` shows in the management UI."""
    place = parse(uri)
    limit = place.timeout if timeout is None else timeout
    context = None
    if place.tls:
        context = tls_context(place.cafile, place.certfile, place.keyfile, place.verify)
    failures: list[ConnectError] = []
    for host, port in place.hosts:
        try:
            transport = open_transport(host, port, limit, context, place.server_name)
            try:
                return Connection(place, transport, f"{host}:{port}", name, heartbeat, limit)
            except BaseException:
                transport.close()
                raise
        except (AuthenticationError, VirtualHostError):
            raise  # every node of a cluster would say the same
        except ConnectError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    raise type(failures[-1])("; ".join(str(failure) for failure in failures))


class Connection:
    """An open connection. Every method may be called from any thread; `connect` makes one."""

    def __init__(
        self, uri: Uri, transport: Transport, where: str, name: str, heartbeat: int | None, timeout: float
    ) -> None:
        self.uri = uri
        self.where = where
        self.server: Mapping[str, Any] = {}
        self.heartbeat = 0
        self.frame_max = wire.FRAME_MAX
        self.blocked: str | None = None
        """Why the broker takes no messages at the moment, in its own words."""
        self.error: AmqpError | None = None
        self.changed = threading.Condition()
        """Notified when `blocked` or `error` changes."""
        self._transport = transport
        self._decoder = wire.Decoder()
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._free: list[int] = []
        self._channel_max = 2047
        self._closing = False
        self._owed: list[tuple[bytes, Channel | None]] = []
        self._last_sent = time.monotonic()
        _Handshake(self, transport, self._decoder, time.monotonic() + timeout).run(name, heartbeat)
        self._reader = threading.Thread(target=self._read, name=f"leash-reader {where}", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Connection {self.uri}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """No more traffic: closed here, by the broker or by the network."""
        return self.error is not None

    @property
    def version(self) -> tuple[int, ...]:
        """The broker's version as numbers, (3, 10, 8)."""
        digits = [
            part for part in str(self.server.get("version", "")).split("-")[0].split(".") if part.isdecimal()
        ]
        return tuple(map(int, digits))

    def channel(self) -> Channel:
        """Open a channel."""
        with self._lock:
            self._check()
            number = heappop(self._free) if self._free else len(self._channels) + 1
            if number > self._channel_max:
                raise AmqpError(f"all {self._channel_max} channels of this connection are in use")
            channel = self._channels[number] = Channel(self, number)
        channel.open()
        return channel

    def close(self, timeout: float = 5.0) -> None:
        """Close in good order; a second call, or one after a loss, does nothing."""
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
        """Leave without a word, as a crash would."""
        self._transport.shutdown()

    def write(self, data: bytes, deadline: float | None = None) -> None:
        """Hand bytes to the socket. TimeoutError after the deadline, and the connection ends with it."""
        self._check()
        try:
            self._transport.write(data, deadline)
        except TimeoutError:
            self.abort()
            raise
        except (OSError, ValueError) as error:
            raise self.error or ConnectionLost(f"{self.where}: {error}") from error
        self._last_sent = time.monotonic()

    @property
    def in_reader(self) -> bool:
        """Whether this is the reader's thread, which must never wait for a reply."""
        return threading.current_thread() is self._reader

    def release(self, channel: Channel) -> None:
        """A channel's number may be used again."""
        with self._lock:
            if self._channels.pop(channel.number, None) is channel:
                heappush(self._free, channel.number)

    def _check(self) -> None:
        if self.error is not None:
            raise ConnectionLost(str(self.error)) from self.error

    # --- the reader's thread ---

    def answer(self, data: bytes, closed: Channel | None = None) -> None:
        """Send a reply from the reader's thread, which must not wait: now, or when the socket takes it.

        Only once it is out may a `closed` channel's number be used again: the broker would take the new
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
            log.exception("the reader of %s failed", self.where)
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
        patience = self.heartbeat * 1.5  # the broker sends every half interval: two were missed, and a margin
        last_heard = time.monotonic()
        while True:
            data = transport.read(0.01 if self._owed else beat / 2 if beat else 60.0)
            now = time.monotonic()
            if data:
                last_heard = now
                count = 0
                for event in decoder.feed(data):
                    if not self._dispatch(event):
                        return
                    if type(event) is wire.Deliveries:
                        count += len(event)
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
                log.warning("%s takes messages again", self.where)
            else:
                log.warning("%s blocks publishers: %s", self.where, reason)
            with self.changed:
                self.blocked = reason
                self.changed.notify_all()
        return True


class _Handshake:
    """From the protocol header to open-ok, before the reader's thread exists."""

    def __init__(
        self, connection: Connection, transport: Transport, decoder: wire.Decoder, deadline: float
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._decoder = decoder
        self._deadline = deadline
        self._where = connection.where

    def run(self, name: str, heartbeat: int | None) -> None:
        connection, uri = self._connection, self._connection.uri
        self._write(wire.PROTOCOL_HEADER)
        start = self._expect(commands.Connection.Start)
        connection.server = dict(start.server_properties)
        mechanisms = str(start.mechanisms).split()
        if uri.mechanism not in mechanisms:
            raise AuthenticationError(f"{self._where} offers {', '.join(mechanisms)}, not {uri.mechanism}")
        response = f"\0{uri.username}\0{uri.password}" if uri.mechanism == "PLAIN" else ""
        about: dict[str, Any] = {
            "product": "leash",
            "version": leash.__version__,
            "platform": "Python",
            "capabilities": _CAPABILITIES,
        }
        if name:
            about["connection_name"] = name
        self._send(commands.Connection.StartOk(about, uri.mechanism, response, "en_US"))
        tune = self._expect(commands.Connection.Tune)
        asked = uri.heartbeat if heartbeat is None else heartbeat
        connection.heartbeat = tune.heartbeat if asked is None else asked
        connection.frame_max = self._decoder.frame_max = min(tune.frame_max or wire.FRAME_MAX, wire.FRAME_MAX)
        connection._channel_max = min(tune.channel_max or 65535, 65535)
        self._send(
            commands.Connection.TuneOk(connection._channel_max, connection.frame_max, connection.heartbeat)
        )
        self._send(commands.Connection.Open(uri.vhost))
        self._expect(commands.Connection.OpenOk)

    def _send(self, method: Method) -> None:
        self._write(wire.method(0, method))

    def _write(self, data: bytes) -> None:
        try:
            self._transport.write(data, self._deadline)
        except OSError as error:
            raise ConnectError(f"{self._where}: {error.strerror or error}") from error

    def _expect(self, wanted: type[Method]) -> Any:
        try:
            while True:
                data = self._transport.read(self._deadline - time.monotonic())
                if data is None:
                    if time.monotonic() < self._deadline:
                        continue
                    raise HostUnreachable(f"{self._where} accepted the connection and said nothing")
                if data[:2] == b"\x15\x03":
                    raise TlsRequired(f"{self._where} expects TLS: use amqps://")
                if not data:
                    raise ConnectError(f"{self._where} closed the connection during the handshake")
                for event in self._decoder.feed(data):
                    if isinstance(event, wire.MethodEvent):
                        if isinstance(event.method, wanted):
                            return event.method
                        self._refused(event.method)
        except ProtocolError as error:
            raise ConnectError(f"{self._where}: {error}") from error
        except OSError as error:
            raise ConnectError(f"{self._where}: {error.strerror or error}") from error

    def _refused(self, method: Method) -> None:
        if not isinstance(method, commands.Connection.Close):
            raise ConnectError(f"{self._where} sent {method.name} during the handshake")
        said = f"{self._where}: {method.reply_text} ({method.reply_code})"
        if method.reply_code == 403:
            raise AuthenticationError(f"{said}, as user {self._connection.uri.username!r}")
        if method.reply_code in (402, 530):
            raise VirtualHostError(f"{said}, virtual host {self._connection.uri.vhost!r}")
        raise ConnectError(said)
