"""Statistics and requests for whoever listens: two fanout exchanges, `leash.stats` and `leash.control`.

The law: it is never a reason to fail or to wait. What cannot be sent at once is dropped: under an alarm,
without permission, without a connection. Messages are transient, and gone where nobody listens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from leash.amqp import wire
from leash.amqp.channel import Channel
from leash.amqp.connection import Connection, connect
from leash.amqp.properties import Properties
from leash.amqp.topology import bind_queue, check_exchange, declare_exchange, declare_queue
from leash.amqp.uri import Uri
from leash.errors import AccessRefused, AmqpError, NotFound, PreconditionFailed

STATS, CONTROL = "leash.stats", "leash.control"
VERSION = 1
"""The version of what is sent, in its field `v`."""
_AGAIN, _REFUSED_AGAIN = 2.0, 60.0  # seconds until it is tried again
_WRITE = 1.0  # seconds that a write may take
_JSON = Properties(content_type="application/json", delivery_mode=1)


class Broadcast:
    """A connection of its own, opened when it is needed. `hear` gets what is sent to `listen`'s exchange, in
    the reader's thread. To be used by one thread.
    """

    def __init__(
        self,
        uri: str | Uri,
        name: str,
        listen: str | None = None,
        hear: Callable[[bytes], object] | None = None,
    ) -> None:
        self._uri = uri
        self._name = name
        self._listen = listen
        self._hear = hear
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._due = 0.0
        self.trouble: str | None = None
        """Why nothing can be sent or heard at the moment."""

    @property
    def open(self) -> bool:
        return self._channel is not None and not self._channel.closed

    def ready(self) -> bool:
        """Open it if necessary and if a try is due; True if it is open."""
        if self.open:
            return True
        refused = None if self._channel is None else self._channel.error
        if isinstance(refused, AccessRefused):  # it was sent, and then the broker said no
            self._refuse(refused)
        if time.monotonic() < self._due:
            return False
        self.close()
        self._due = time.monotonic() + _AGAIN
        try:
            self._connection = connect(self._uri, name=self._name)
            self._prepare(self._connection)
            self.trouble = None
        except (AccessRefused, NotFound, PreconditionFailed) as error:
            self._refuse(error)
        except AmqpError as error:
            self.trouble = str(error)
            self.close()
        return self.open

    def _refuse(self, error: AmqpError) -> None:
        """Wait longer: somebody must grant a permission first."""
        self._due = time.monotonic() + _REFUSED_AGAIN
        self.trouble = str(error)
        self.close()

    def _prepare(self, connection: Connection) -> None:
        for exchange in (STATS, CONTROL):
            try:
                with connection.channel() as channel:
                    declare_exchange(channel, exchange, kind="fanout")
            except AccessRefused as refused:  # whoever may not declare it may use it, if it is there
                try:
                    with connection.channel() as channel:
                        check_exchange(channel, exchange)
                except NotFound:
                    raise refused from None
        if self._hear is not None:
            try:
                self._subscribe(connection.channel(), self._hear)
            except AccessRefused:
                if self._listen == STATS:
                    raise
                # A process that cannot be asked for anything can still tell.
        self._channel = connection.channel()

    def _subscribe(self, channel: Channel, hear: Callable[[bytes], object]) -> None:
        assert self._listen is not None
        queue = declare_queue(channel, "", durable=False, exclusive=True, auto_delete=True).name
        bind_queue(channel, queue, self._listen)

        def deliver(batch: wire.Deliveries) -> None:
            for body in batch.bodies:
                hear(body)

        channel.consume(queue, no_ack=True, deliver=deliver)

    def send(self, exchange: str, body: bytes) -> bool:
        """True if it was sent; nobody knows who got it."""
        if not self.ready() or self._channel is None or self._connection is None:
            return False
        if self._connection.blocked is not None:
            self.trouble = self._connection.blocked
            return False
        parts: list[bytes] = []
        encoder = wire.PublishEncoder(self._channel.number, self._connection.frame_max)
        encoder.encode([wire.Outgoing(body, exchange, "", _JSON)], parts)
        try:
            self._channel.write(b"".join(parts), time.monotonic() + _WRITE)
        except (AmqpError, TimeoutError) as error:
            self.trouble = str(error) or "the broker does not read"
            self.close()
            return False
        self.trouble = None
        return True

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(AmqpError):
                connection.close(0.5)
