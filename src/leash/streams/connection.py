"""A connection to the stream port: its reader thread, heartbeats, requests.

The law: one thread of our own reads, always. So heartbeats are answered and chunks taken in while the user's
code sleeps or computes. That thread never waits: for a lock that is held long, for a write, or for a reply.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from leash.amqp.handshake import version
from leash.amqp.transport import Transport
from leash.amqp.uri import Uri
from leash.errors import (
    AmqpError,
    ConfigError,
    ConnectionLost,
    ReplyTimeout,
    StreamUnsupported,
)
from leash.logfmt import logger
from leash.streams import wire
from leash.streams.handshake import Handshake
from leash.streams.wire import Fields, Frame, Key

log = logger("leash.streams")

REPLY_TIMEOUT = 30.0
_IDS = 256

Listener = Callable[[Frame], None]
"""Called in the reader's thread with a frame for one subscription or publisher; it must not wait."""


class Connection:
    """An open connection. Every method may be called from any thread; `connect` makes one."""

    def __init__(
        self, uri: Uri, transport: Transport, where: str, name: str, heartbeat: int | None, deadline: float
    ) -> None:
        self.uri = uri
        self.where = where
        self.error: AmqpError | None = None
        self.changed = threading.Condition()
        """Notified when `error` changes; subscriptions and publishers share it."""
        self.received = 0
        """How many bytes have come."""
        self._transport = transport
        self._decoder = wire.Decoder()
        agreed = Handshake(uri, transport, self._decoder, where, deadline).run(name, heartbeat)
        self.server: Mapping[str, str] = agreed.server
        self.heartbeat = agreed.heartbeat
        self.frame_max = agreed.frame_max
        self.itself = agreed.itself
        """The node's own idea of where it is: what Metadata calls it."""
        self.commands = agreed.commands
        self._correlations = itertools.count(1000)
        self._replies: dict[int, Frame | None] = {}
        self._subscribers: dict[int, Listener] = {}
        self._publishers: dict[int, Listener] = {}
        self._watchers: dict[str, list[Callable[[int], None]]] = {}
        self._owed: list[bytes] = []
        self._closing = False
        self._last_sent = time.monotonic()
        self._reader = threading.Thread(target=self._read, name=f"leash-stream-reader {where}", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Connection {self.uri}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """No more traffic: closed here, by the broker or by the network."""
        return self.error is not None

    @property
    def version(self) -> tuple[int, ...]:
        """The broker's version as numbers, (3, 10, 8)."""
        return version(self.server)

    def can(self, key: Key, at_least: int = 1) -> bool:
        """True if the broker knows a command, in a version."""
        return self.commands.get(key, (0, 0))[1] >= at_least

    def require(self, key: Key, stream: str, what: str, at_least: int = 1) -> None:
        """StreamUnsupported, in one sentence, if it does not."""
        if not self.can(key, at_least):
            said = self.server.get("version", "of unknown version")
            raise StreamUnsupported(stream, f"{what}, and {self.where} is RabbitMQ {said}")

    # --- requests ---

    def ask(self, key: Key, body: bytes = b"", *, stream: str = "", timeout: float = REPLY_TIMEOUT) -> Fields:
        """Send a request, wait for its answer, and return what follows the answer's code.

        A code other than OK raises the StreamError that stands for it.
        """
        fields = self.answer_to(key, body, timeout=timeout)
        code = fields.number(2)
        if code != wire.OK:
            raise wire.error(code, stream)
        return fields

    def answer_to(self, key: Key, body: bytes = b"", *, timeout: float = REPLY_TIMEOUT) -> Fields:
        """The same, with all that follows the correlation id: the code is left to the caller."""
        return self.answers_to([(key, body)], timeout=timeout)[0]

    def answers_to(
        self, requests: Sequence[tuple[Key, bytes]], *, timeout: float = REPLY_TIMEOUT
    ) -> list[Fields]:
        """The answers to requests that go out in one write."""
        deadline = time.monotonic() + timeout
        numbers = [next(self._correlations) & 0x7FFFFFFF for _ in requests]
        frames = [wire.request(key, at, body) for (key, body), at in zip(requests, numbers, strict=True)]
        self._replies.update(dict.fromkeys(numbers))
        try:
            try:
                self.write(b"".join(map(self._checked, frames)), deadline)
            except TimeoutError:
                raise self._late(requests[0][0], timeout) from None
            with self.changed:
                while None in (came := [self._replies[number] for number in numbers]):
                    self.check_open()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise self._late(requests[came.index(None)][0], timeout)
                    self.changed.wait(left)
        finally:
            for number in numbers:
                del self._replies[number]
        answers = [Fields(frame.body) for frame in came if frame is not None]
        for fields in answers:
            fields.number(4)
        return answers

    def _late(self, key: Key, timeout: float) -> ReplyTimeout:
        return ReplyTimeout(f"{self.where} did not answer {key.name.lower()} within {timeout:g} s")

    def _checked(self, data: bytes) -> bytes:
        if len(data) > self.frame_max:
            raise ConfigError("frame", len(data), f"at most {self.frame_max} bytes, as {self.where} has it")
        return data

    def write(self, data: bytes, deadline: float | None = None) -> None:
        """Hand frames to the socket. TimeoutError after the deadline, and the connection ends with it."""
        self.check_open()
        try:
            self._transport.write(data, deadline)
        except TimeoutError:
            self.abort()
            raise
        except (OSError, ValueError) as error:
            raise self.error or ConnectionLost(f"{self.where}: {error}") from error
        self._last_sent = time.monotonic()

    def check_open(self) -> None:
        """ConnectionLost, with the reason, if it is closed."""
        if self.error is not None:
            raise ConnectionLost(str(self.error)) from self.error

    # --- who gets what ---

    def add_subscriber(self, listener: Listener) -> int:
        """A free subscription id, whose delivers, failed credits and consumer updates go to `listener`."""
        return self._add(self._subscribers, listener, "subscriptions")

    def add_publisher(self, listener: Listener) -> int:
        """A free publisher id, whose confirms and errors go to `listener`."""
        return self._add(self._publishers, listener, "publishers")

    def _add(self, table: dict[int, Listener], listener: Listener, what: str) -> int:
        with self.changed:
            number = next((each for each in range(_IDS) if each not in table), None)
            if number is None:
                raise AmqpError(f"all {_IDS} {what} of the connection to {self.where} are in use")
            table[number] = listener
            return number

    def remove_subscriber(self, number: int) -> None:
        with self.changed:
            self._subscribers.pop(number, None)

    def remove_publisher(self, number: int) -> None:
        with self.changed:
            self._publishers.pop(number, None)

    def watch(self, stream: str, watcher: Callable[[int], None]) -> Callable[[], None]:
        """Have `watcher` called, in the reader's thread, with the code of each MetadataUpdate of a stream:
        its subscriptions and publishers on this connection have ended. Returns what ends the watch.
        """
        with self.changed:
            self._watchers.setdefault(stream, []).append(watcher)

        def end() -> None:
            with self.changed:
                if watcher in self._watchers.get(stream, ()):
                    self._watchers[stream].remove(watcher)

        return end

    # --- the end ---

    def close(self, timeout: float = 5.0) -> None:
        """Close in good order; a second call, or one after a loss, does nothing."""
        again, self._closing = self._closing, True
        if not again and not self.closed:
            with contextlib.suppress(AmqpError):  # it ends either way
                self.answer_to(Key.CLOSE, wire.OK.to_bytes(2, "big") + wire.text("bye"), timeout=timeout)
        self._transport.shutdown()
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout)

    def abort(self) -> None:
        """Leave without a word, as a crash would."""
        self._transport.shutdown()

    # --- the reader's thread ---

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
        self._transport.close()

    def _read_until_closed(self) -> None:
        transport, decoder = self._transport, self._decoder
        beat = self.heartbeat / 2
        patience = self.heartbeat * 1.5
        last_heard = time.monotonic()
        while True:
            data = transport.read(0.01 if self._owed else beat / 2 if beat else 60.0)
            now = time.monotonic()
            if data:
                last_heard = now
                self.received += len(data)
                for frame in decoder.feed(data):
                    self._dispatch(frame)
            elif data is not None:
                if self._closing:
                    return
                raise ConnectionLost(f"{self.where}: the broker closed the connection")
            elif beat and now - last_heard > patience:
                raise ConnectionLost(f"{self.where}: nothing heard for {now - last_heard:.1f} s")
            while self._owed and transport.try_write(self._owed[0]):
                del self._owed[0]
            if beat and now - self._last_sent >= beat and transport.try_write(wire.HEARTBEAT):
                self._last_sent = now

    def reply(self, data: bytes) -> None:
        """Send from the reader's thread, which must not wait: now, or when the socket takes it."""
        self._owed.append(data)

    def _dispatch(self, frame: Frame) -> None:
        key = frame.key
        if key == Key.DELIVER:
            self._pass_on(self._subscribers, frame.body[0], frame)
        elif key in (Key.PUBLISH_CONFIRM, Key.PUBLISH_ERROR):
            self._pass_on(self._publishers, frame.body[0], frame)
        elif key == Key.CREDIT:
            self._pass_on(self._subscribers, frame.body[2], frame)
        elif frame.answer:
            correlation = int.from_bytes(frame.body[:4], "big")
            with self.changed:
                if correlation in self._replies:
                    self._replies[correlation] = frame
                    self.changed.notify_all()
        elif key == Key.CONSUMER_UPDATE:
            self._pass_on(self._subscribers, frame.body[4], frame)
        elif key == Key.METADATA_UPDATE:
            self._on_metadata(Fields(frame.body))
        elif key == Key.CLOSE:
            self._on_close(Fields(frame.body))

    def _pass_on(self, table: dict[int, Listener], number: int, frame: Frame) -> None:
        listener = table.get(number)
        if listener is not None:
            listener(frame)

    def _on_metadata(self, fields: Fields) -> None:
        code, stream = fields.number(2), fields.text()
        with self.changed:
            watchers = list(self._watchers.get(stream, ()))
        for watcher in watchers:
            watcher(code)

    def _on_close(self, fields: Fields) -> None:
        correlation, code = fields.number(4), fields.number(2)
        body = correlation.to_bytes(4, "big") + wire.OK.to_bytes(2, "big")
        self._transport.try_write(wire.frame(Key.CLOSE | wire.ANSWER, body))
        raise ConnectionLost(f"{self.where}: the broker closed: {fields.text()} ({code})")
