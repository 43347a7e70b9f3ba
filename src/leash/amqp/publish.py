"""Publishing in bulk, with confirms.

The rule: when `publish` returns, the broker has taken responsibility for every message. When it raises an
error that carries messages, this holds for all but those; when it raises any other error, it is unknown which
arrived, and publishing them again may repeat some. Rejected means that the broker took none of the messages
that it carries; after any other PublishError the broker may still confirm them, and `wait` goes on waiting.
Errors carry the objects that were published; if the broker changed a message that it returned, a copy of it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from typing import Self

from pamqp import commands

from leash.amqp import wire
from leash.amqp.connection import Connection
from leash.amqp.properties import decode_properties, encode_safe
from leash.errors import (
    AmqpError,
    ConfigError,
    LeashError,
    Nacked,
    PublishBlocked,
    PublishError,
    Unroutable,
)

_CHUNK = 256  # messages encoded and sent together
_CHUNK_BYTES = 1 << 18


class Publisher:
    """A channel in confirm mode. Give it its own connection: an alarm blocks a connection that publishes."""

    def __init__(self, connection: Connection, *, in_flight: int = 10_000, timeout: float = 60.0) -> None:
        if in_flight < 1:
            raise ConfigError("in_flight", in_flight, "a whole number of at least 1")
        self.connection = connection
        self._timeout = timeout
        self._in_flight = in_flight
        self._turn = threading.Lock()
        self._changed = connection.changed
        self._next = 1
        self._confirmed = 0  # everything up to this tag
        self._pending: dict[int, wire.Outgoing] = {}
        self._nacked: list[wire.Outgoing] = []
        self._returned: list[wire.Outgoing] = []
        self._sent = False  # True once all of the last `publish` is sent
        self._seek = 1  # the next returned message was published with this tag or later
        self._channel = connection.channel()
        self._encoder = wire.PublishEncoder(self._channel.number, connection.frame_max)
        self._channel.on_confirm = self._on_confirm
        self._channel.on_return = self._on_return
        self._channel.on_lost = self._on_lost
        self._channel.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if its channel ended, as when an exchange is missing or forbidden: it takes no more."""
        return self._channel.closed

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def publish(self, messages: Iterable[wire.Outgoing]) -> int:
        """Publish all and wait until all are confirmed; returns how many."""
        with self._turn:
            self._nacked, self._returned, self._sent = [], [], False
            first = self._seek = self._next
            for chunk in _chunks(messages):
                self._wait(self._in_flight - len(chunk))
                self._send(chunk)
            self._sent = True
            self._finish()
            return self._next - first

    def wait(self) -> None:
        """Go on waiting for what was not confirmed in time, by the same rule."""
        with self._turn:
            self._finish()

    @property
    def unconfirmed(self) -> list[wire.Outgoing] | None:
        """The messages of the last `publish` that are not known to be taken, even after the connection is
        lost; None if not all were sent.
        """
        with self._changed:
            return [*self._pending.values(), *self._nacked, *self._returned] if self._sent else None

    def _finish(self) -> None:
        try:
            self._wait(0)
        except PublishError as error:
            left = self.unconfirmed
            error.messages = None if left is None else list(left)
            raise
        self._raise_rejected()

    def _send(self, chunk: list[wire.Outgoing]) -> None:
        parts: list[bytes] = []
        self._encoder.encode(chunk, parts)
        self._pending.update(zip(itertools.count(self._next), chunk, strict=False))
        self._next += len(chunk)
        try:
            self._channel.write(b"".join(parts), time.monotonic() + self._timeout)
        except TimeoutError:
            raise self._stuck() from None

    def _wait(self, room: int) -> None:
        """Wait until at most `room` messages are unconfirmed, and the broker takes more."""
        deadline = time.monotonic() + self._timeout
        seen = self._confirmed
        with self._changed:
            while self._channel.error is None and (
                len(self._pending) > max(0, room) or (room and self.connection.blocked is not None)
            ):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._stuck()
                self._changed.wait(left)
                if self._confirmed != seen:  # slow is not stuck
                    seen, deadline = self._confirmed, time.monotonic() + self._timeout
        if self._channel.error is not None and (self._pending or room):
            self._channel.write(b"")  # raises the error that ended it

    def _stuck(self) -> PublishError:
        unconfirmed = len(self._pending)
        reason = self.connection.blocked
        if reason is not None:
            return PublishBlocked(
                f"{self.connection.where} blocks publishers ({reason}); {unconfirmed} messages "
                f"were not confirmed within {self._timeout:g} s"
            )
        return PublishError(
            f"{self.connection.where}: {unconfirmed} messages were not confirmed within {self._timeout:g} s"
        )

    def _raise_rejected(self) -> None:
        if self._nacked:
            also = f", and {len(self._returned)} found no queue" if self._returned else ""
            raise Nacked(f"the broker refused {_named(self._nacked)}{also}", self._nacked + self._returned)
        if self._returned:
            raise Unroutable(f"no queue for {_named(self._returned)}", self._returned)

    # --- the reader's thread ---

    def _on_confirm(self, confirm: wire.Confirm) -> None:
        tag = confirm.tag
        tags = range(self._confirmed + 1, tag + 1) if confirm.multiple else (tag,)
        with self._changed:
            for each in tags:
                message = self._pending.pop(each, None)
                if message is not None and not confirm.ok:
                    self._nacked.append(message)
            if confirm.multiple:
                self._confirmed = tag
            self._changed.notify_all()

    def _on_return(self, event: wire.ContentEvent) -> None:
        method = event.method
        assert isinstance(method, commands.Basic.Return)
        address = method.exchange, method.routing_key or ""
        came = wire.Outgoing(event.body, *address, event.properties, mandatory=True)
        self._returned.append(self._published(came, event.properties))

    def _published(self, came: wire.Outgoing, properties: bytes) -> wire.Outgoing:
        """The published object that was returned: they are returned in order, each before its confirm. If the
        broker changed it (an interceptor may), neither it nor later ones are guessed.
        """
        for tag in range(self._seek, self._next):
            ours = self._pending.get(tag)
            if ours is not None and ours[:3] == came[:3] and _alike(encode_safe(ours.properties), properties):
                self._seek = tag + 1
                return ours
        self._seek = self._next
        return came

    def _on_lost(self, _: AmqpError) -> None:
        with self._changed:
            self._changed.notify_all()


def _chunks(messages: Iterable[wire.Outgoing]) -> Iterable[list[wire.Outgoing]]:
    chunk: list[wire.Outgoing] = []
    size = 0
    for message in messages:
        chunk.append(message)
        size += len(message.body)
        if len(chunk) == _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def try_to_publish(connection: Connection, timeout: float) -> None:
    """Publish to the default exchange in a transaction that is rolled back: AccessRefused if this user may
    not, no effect otherwise. The connection then counts as one that publishes, and should be closed.
    """
    channel = connection.channel()
    channel.call(commands.Tx.Select(), commands.Tx.SelectOk)
    parts: list[bytes] = []
    wire.PublishEncoder(channel.number, connection.frame_max).encode(
        [wire.Outgoing(b"", mandatory=False)], parts
    )
    channel.write(b"".join(parts))
    channel.ask(commands.Tx.Rollback(), commands.Tx.RollbackOk)(timeout)


def refused(published: Iterable[wire.Outgoing], messages: Iterable[object]) -> list[bool]:
    """Which of the published messages an error carries. One that the broker changed is known by its body:
    another with the same body counts as refused too, so that it is repeated rather than lost.
    """
    ours = list(published)
    known, carried = {id(each) for each in ours}, {id(each): each for each in messages}
    bodies = {
        each.body for at, each in carried.items() if at not in known and isinstance(each, wire.Outgoing)
    }
    return [id(each) in carried or each.body in bodies for each in ours]


def _alike(ours: bytes, came: bytes) -> bool:
    """True if two encodings of properties are equal but for the order of headers: RabbitMQ 4 sorts them."""
    if ours == came or sorted(ours) != sorted(came):
        return ours == came
    try:
        return decode_properties(ours) == decode_properties(came)
    except LeashError:
        return False


def _named(messages: list[wire.Outgoing]) -> str:
    first = messages[0]
    count = f"{len(messages)} messages, the first" if len(messages) > 1 else "a message"
    return f"{count} with routing key {first.routing_key!r} on exchange {first.exchange!r}"
