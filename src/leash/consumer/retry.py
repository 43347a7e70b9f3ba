"""What becomes of a message that failed: a later try, the dead queue, the dead-letter exchange, or nothing.

A later try is a copy in `leash.retry.<queue>.<ms>`, whose time to live sends it back to its queue. The copy
is confirmed before the original is acked, so a crash between the two repeats a message and never loses it.
How often it failed is in the copy's header, and nowhere else. Publishing has a connection and a thread of its
own: an alarm that blocks publishers holds up the messages that failed, and no others.
"""

from __future__ import annotations

import copy
import logging
import queue
import struct
import threading
import traceback
from collections.abc import Callable
from typing import Any

from leash.amqp import (
    Outgoing,
    Properties,
    Publisher,
    connect,
    decode_properties,
    encode_properties,
    with_headers,
)
from leash.amqp.connection import Connection
from leash.amqp.topology import declare_queue, declare_queues, state
from leash.amqp.uri import Uri
from leash.consumer.message import EXCHANGE, ROUTING_KEY, TRIES, Message
from leash.consumer.settings import OnExhausted, Queue, Retry
from leash.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    ConfigError,
    PreconditionFailed,
    ProtocolError,
    Rejected,
    Unroutable,
)

log = logging.getLogger("leash.consumer")

ERROR, TRACE, FROM = "x-leash-error", "x-leash-traceback", "x-leash-queue"
_TRACE_MOST = 4000  # a header must fit into one frame with all the others
_BACKOFF = (0.1, 5.0)
_EXPIRATION, _USER_ID = 0x0100, 0x10  # the property flags


def retry_queue(name: str, wait: int) -> str:
    return f"leash.retry.{name}.{wait}"


def dead_queue(name: str) -> str:
    return f"leash.dead.{name}"


def declare(connection: Connection, specs: list[Queue], retry: Retry, on_exhausted: OnExhausted) -> None:
    """The queues that failed messages go to. Existing ones are used as they are."""
    wanted = [
        (spec, name, arguments)
        for spec in specs
        for name, arguments in _wanted(spec, retry, on_exhausted).items()
    ]
    try:
        with connection.channel() as channel:
            declare_queues(channel, [(name, spec.kind, arguments) for spec, name, arguments in wanted])
    except ChannelError:  # one was refused, and all after it were not looked at
        for spec, name, arguments in wanted:
            _declare(connection, spec, name, arguments)


def _wanted(spec: Queue, retry: Retry, on_exhausted: OnExhausted) -> dict[str, dict[str, object]]:
    wanted: dict[str, dict[str, object]] = {}
    if not spec.ordered:
        for wait in retry.waits():
            if wait:
                wanted[retry_queue(spec.name, wait)] = _retry_arguments(spec, wait)
    if on_exhausted == "park":
        wanted[dead_queue(spec.name)] = {}
    for name in wanted:
        if len(name.encode()) > 255:
            raise ConfigError("queue", spec.name, f"shorter: {name!r} would have more than 255 bytes")
    return wanted


def _retry_arguments(spec: Queue, wait: int) -> dict[str, object]:
    arguments: dict[str, object] = {
        "x-message-ttl": wait,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": spec.name,
    }
    if spec.kind == "quorum":  # else a message that expires while its queue cannot take it is lost
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return arguments


def _declare(connection: Connection, spec: Queue, name: str, arguments: dict[str, object]) -> None:
    try:
        with connection.channel() as channel:
            declare_queue(channel, name, kind=spec.kind, arguments=arguments)
        return
    except PreconditionFailed:
        log.info("event=queue_kept queue=%r reason=%r", name, "it exists with other arguments")
        return
    except AccessRefused as error:
        refused = error
    try:
        with connection.channel() as channel:
            state(channel, name)
    except AmqpError:
        raise ConfigError(
            "retry",
            name,
            f"a queue that exists, or a user with the configure permission for it ({refused.text})",
        ) from refused


class Republisher:
    """Takes failed messages off the workers' hands, and acks each when its copy is confirmed."""

    def __init__(
        self,
        uri: Uri,
        name: str,
        confirmed: Callable[[Message], object],
        mend: Callable[[Connection], None],
    ) -> None:
        self._uri = uri
        self._name = name
        self._confirmed = confirmed
        self._mend = mend
        self._queue: queue.SimpleQueue[tuple[Message, Outgoing] | None] = queue.SimpleQueue()
        self._publisher: Publisher | None = None
        self._connection: Connection | None = None
        self._pending = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.trouble: str | None = None
        """Why failed messages cannot be republished at the moment."""

    @property
    def pending(self) -> int:
        return self._pending

    def put(self, message: Message, copy: Outgoing) -> None:
        with self._lock:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leash-republisher", daemon=True)
                self._thread.start()
        self._queue.put((message, copy))

    def stop(self) -> None:
        self._stop.set()
        self._queue.put(None)
        if self._connection is not None:
            self._connection.close(1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            first = self._queue.get()
            if first is None:
                return
            batch = [first]
            while len(batch) < 256 and not self._queue.empty():
                more = self._queue.get()
                if more is not None:
                    batch.append(more)
            self._publish(batch)

    def _publish(self, batch: list[tuple[Message, Outgoing]]) -> None:
        """Until all are out, or were lost with their connection and will come again."""
        backoff = _BACKOFF[0]
        while batch and not self._stop.is_set():
            batch, lost = _living(batch)
            self._settled(lost)
            if not batch:
                return
            try:
                self._open().publish([copy for _, copy in batch])
                self._confirm(batch)
                self.trouble = None
                return
            except Rejected as error:
                refused = {id(copy) for copy in error.messages}
                if isinstance(error, Unroutable):  # what comes back from the broker is equal, not the same
                    refused = _like(batch, error)
                taken = [pair for pair in batch if id(pair[1]) not in refused]
                self._confirm(taken)
                batch = [pair for pair in batch if id(pair[1]) in refused]
                self._troubled(error)
                self._repair()
            except AmqpError as error:
                self._troubled(error)
                self._close()
            self._stop.wait(backoff)
            backoff = min(_BACKOFF[1], 2 * backoff)

    def _confirm(self, batch: list[tuple[Message, Outgoing]]) -> None:
        for message, _ in batch:
            self._confirmed(message)
        self._settled(len(batch))

    def _settled(self, count: int) -> None:
        with self._lock:
            self._pending -= count

    def _open(self) -> Publisher:
        if self._publisher is None or self._connection is None or self._connection.closed:
            self._close()
            self._connection = connect(self._uri, name=f"{self._name} retries")
            self._publisher = Publisher(self._connection, timeout=10.0)
        return self._publisher

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close(1.0)
        self._publisher = self._connection = None

    def _repair(self) -> None:
        """A queue was deleted: declare all again."""
        try:
            if self._connection is not None:
                self._mend(self._connection)
        except (AmqpError, ConfigError) as error:
            self._troubled(error)
            self._close()

    def _troubled(self, error: Exception) -> None:
        if self.trouble != str(error):
            self.trouble = str(error)
            log.warning("event=republish_failed reason=%r", self.trouble)


def _living(batch: list[tuple[Message, Outgoing]]) -> tuple[list[tuple[Message, Outgoing]], int]:
    alive = [pair for pair in batch if pair[0]._link.alive]
    return alive, len(batch) - len(alive)


def _like(batch: list[tuple[Message, Outgoing]], error: Rejected) -> set[int]:
    keys = {copy.routing_key for copy in error.messages if isinstance(copy, Outgoing)}
    return {id(copy) for _, copy in batch if copy.routing_key in keys}


def later(message: Message, wait: int) -> Outgoing:
    """The copy that comes again after `wait` ms."""
    target = retry_queue(message.queue, wait) if wait else message.queue
    return _copy(message, target, {})


def parked(message: Message, error: BaseException) -> Outgoing:
    """The copy for the dead queue, with what went wrong and where it was published."""
    trace = "".join(traceback.format_exception(error))[-_TRACE_MOST:]
    why = f"{type(error).__name__}: {error}"[:_TRACE_MOST]
    return _copy(message, dead_queue(message.queue), {ERROR: why, TRACE: trace, FROM: message.queue})


def _copy(message: Message, target: str, more: dict[str, object]) -> Outgoing:
    headers = {
        TRIES: message.tries + 1,
        EXCHANGE: message.exchange,
        ROUTING_KEY: message.routing_key,
        "CC": None,  # it would send copies to all those queues again
        **more,
    }
    return Outgoing(message.body, "", target, _properties(message._raw_properties, headers), mandatory=True)


def _properties(raw: bytes, headers: dict[str, object]) -> bytes:
    """The message's own, but for what would make the broker refuse the copy (the publisher's name) or drop it
    from the queue that it is to wait in (a time to live).
    """
    try:
        if raw[0] << 8 & _EXPIRATION or raw[1] & _USER_ID:
            found = copy.copy(decode_properties(raw))
            found.expiration = found.user_id = None
            raw = encode_properties(found)
        return with_headers(raw, headers)
    except (ProtocolError, ValueError, IndexError, struct.error):  # malformed as it came: save the body
        kept: Any = {name: value for name, value in headers.items() if value is not None}
        return encode_properties(Properties(headers=kept, delivery_mode=2))
