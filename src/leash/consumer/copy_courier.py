"""Publishes the copies of failed messages: the original is acked only after the copy is confirmed.

Each queue or exchange that copies go to has a courier, with its own thread, channel and backlog: a full queue
does not delay the others. An idle courier ends after a while. All couriers share one connection, which is not
the consumers': an alarm blocks connections that publish.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from leash.amqp import Outgoing, Publisher, connect
from leash.amqp.connection import Connection
from leash.amqp.publish import refused, try_to_publish
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.consumer.message import Message
from leash.errors import (
    AccessRefused,
    AmqpError,
    ConfigError,
    NotFound,
    PublishBlocked,
    PublishError,
    Rejected,
)
from leash.logfmt import logger

log = logger("leash.consumer")

BATCH = 256
PATIENCE = 10.0
"""Seconds without a confirm before it is reported as trouble."""
IDLE = 10.0
_BACKOFF = (0.1, 5.0)
_CHECK = 2.0
_WAITS = "; failed messages, and an ordered queue with them, wait until this user may write to that exchange"

Pair = tuple[Message, Outgoing]


class Republisher:
    """Takes failed messages off the workers' hands, and acks each when its copy is confirmed."""

    def __init__(
        self,
        uri: Uri,
        name: str,
        confirmed: Callable[[Message], object],
        mend: Callable[[Connection, str | None], None],
    ) -> None:
        self.uri = uri
        self._name = name
        self._mend = mend
        self._connection: Connection | None = None
        self._connecting = threading.Lock()
        self.couriers: dict[str, Courier] = {}
        self._lock = threading.Lock()
        self.pending = 0
        """Failed messages whose copies are not confirmed yet."""
        self.confirmed = confirmed
        self.barred: Callable[[Message, Outgoing, Exception], bool] = lambda *_: False
        """Called when a copy was refused, or this user may not publish it; True if the message was dealt with
        in another way."""
        self.late: Callable[[str], bool] = lambda _: False
        """Asked whether a queue is declared only now that it is needed."""
        self.stopped = threading.Event()

    @property
    def trouble(self) -> str | None:
        """Why some failed messages cannot be republished now."""
        with self._lock:
            return next((each.trouble for each in self.couriers.values() if each.trouble), None)

    def put(self, message: Message, copy: Outgoing) -> None:
        with self._lock:
            self.pending += 1
            target = f"exchange {copy.exchange}" if copy.exchange else copy.routing_key
            courier = self.couriers.get(target)
            if courier is None:
                courier = self.couriers[target] = Courier(self, target)
                threading.Thread(target=courier.run, name="leash-republisher", daemon=True).start()
            courier.backlog.put((message, copy))

    def stop(self) -> None:
        self.stopped.set()
        with self._lock:
            for courier in self.couriers.values():
                courier.backlog.put(None)
        if self._connection is not None:
            self._connection.close(1.0)

    # --- for the couriers ---

    def dismiss(self, courier: Courier) -> bool:
        """True if it may end: nothing was put into its backlog meanwhile."""
        with self._lock:
            if courier.backlog.empty():
                del self.couriers[courier.target]
                return True
            return False

    def settled(self, count: int) -> None:
        with self._lock:
            self.pending -= count

    def connection(self) -> Connection:
        with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = self.connect(self._connection.where if self._connection else "")
            return self._connection

    def connect(self, avoid: str) -> Connection:
        return connect(self.uri, name=f"{self._name} retries", avoid=avoid)

    def check(self) -> None:
        """Raises ConfigError if this user may not publish copies. During an alarm that cannot be known."""
        try:
            connection = self.connect("")
            try:
                try_to_publish(connection, _CHECK)
            finally:
                connection.close(1.0)
        except AccessRefused as error:
            needed = "one that may write to the default exchange, which carries copies of failed messages"
            raise ConfigError("user", self.uri.username, f"{needed} ({error.text})") from error
        except AmqpError as error:
            log.debug("event=not_checked reason=%r", str(error))

    def leave(self, where: str) -> None:
        """Leave a host that no longer serves us, although its connections are open."""
        if self._connection is not None and self._connection.where == where:
            self._connection.abort()

    def mend(self, target: str) -> None:
        """Declare the queues for copies again, because this one was deleted."""
        self._mend(self.connection(), target)

    def declare(self, target: str) -> None:
        """Declare a queue that was not needed before."""
        if self.late(target):
            self._mend(self.connection(), target)


class Courier:
    """Publishes the copies for one queue, in order."""

    def __init__(self, office: Republisher, target: str) -> None:
        self._office = office
        self.target = target
        self.backlog: queue.SimpleQueue[Pair | None] = queue.SimpleQueue()
        self.trouble: str | None = None
        self._publisher: Publisher | None = None

    def run(self) -> None:
        while not self._office.stopped.is_set():
            try:
                first = self.backlog.get(timeout=IDLE)
            except queue.Empty:
                if self._office.dismiss(self):
                    break
                continue
            if first is not None:
                self.deliver(self._batch(first))
        self._leave()

    def _batch(self, first: Pair) -> list[Pair]:
        batch = [first]
        while len(batch) < BATCH and not self.backlog.empty():
            more = self.backlog.get()
            if more is not None:
                batch.append(more)
        return batch

    def deliver(self, batch: list[Pair]) -> None:
        """Publish until all are confirmed, or were lost with their connection and will be redelivered."""
        backoff = Backoff(*_BACKOFF)
        published: Publisher | None = None  # may still confirm them
        while (batch := self._living(batch)) and not self._office.stopped.is_set():
            at = published
            try:
                if at is not None:
                    at.wait()
                else:
                    self._office.declare(self.target)
                    at = self._open()
                    at.publish([copy for _, copy in batch])
                at = None
                self._confirm(batch)
                self.trouble = None
                return
            except Rejected as error:
                published = None
                batch = self._barred(self._refused(batch, error.messages), error)
                self._troubled(error)
                self._leave()  # RabbitMQ 3.10 refuses everything on a channel opened without a leader
                self._repair()
            except PublishError as error:
                self._troubled(error)
                if error.messages is not None:  # publishing them again would repeat them
                    published = self._publisher
                    batch = self._refused(batch, error.messages)
                    continue
                if not isinstance(error, PublishBlocked):
                    self._leave()
            except Exception as error:
                published = None
                if at is not None and (left := at.unconfirmed) is not None:
                    batch = self._refused(batch, list(left))
                self._troubled(error)
                self._leave()
                if isinstance(error, AccessRefused | NotFound):
                    batch = self._barred(batch, error)
            self._office.stopped.wait(backoff.next())
        if published is not None:
            self._leave()

    def _living(self, batch: list[Pair]) -> list[Pair]:
        alive = [pair for pair in batch if pair[0].link.alive]
        self._office.settled(len(batch) - len(alive))
        return alive

    def _barred(self, batch: list[Pair], error: Exception) -> list[Pair]:
        left = [pair for pair in batch if not self._office.barred(*pair, error)]
        self._office.settled(len(batch) - len(left))
        return left

    def _refused(self, batch: list[Pair], messages: list[object]) -> list[Pair]:
        """Those of a batch that the broker did not take; the others are confirmed."""
        not_taken = refused([copy for _, copy in batch], messages)
        self._confirm([pair for pair, no in zip(batch, not_taken, strict=True) if not no])
        return [pair for pair, no in zip(batch, not_taken, strict=True) if no]

    def _confirm(self, batch: list[Pair]) -> None:
        for message, _ in batch:
            self._office.confirmed(message)
        self._office.settled(len(batch))

    def _open(self) -> Publisher:
        connection = self._office.connection()
        if self._publisher is None or self._publisher.connection is not connection:
            self._publisher = Publisher(connection, timeout=PATIENCE)
        return self._publisher

    def _leave(self) -> None:
        """Close the channel; the next copy opens another."""
        if self._publisher is not None:
            with contextlib.suppress(AmqpError):
                self._publisher.close()
            self._publisher = None

    def _repair(self) -> None:
        try:
            self._office.mend(self.target)
        except (AmqpError, ConfigError) as error:
            self._troubled(error)

    def _troubled(self, error: Exception) -> None:
        trouble = f"{self.target}: {error}{_WAITS if isinstance(error, AccessRefused) else ''}"
        if self.trouble != trouble:
            self.trouble = trouble
            ours = not isinstance(error, AmqpError)
            log.warning("event=republish_failed queue=%r reason=%r", self.target, trouble, exc_info=ours)
