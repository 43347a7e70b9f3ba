"""Publishing to a stream, a column at a time, with confirms.

The rule: when `publish` returns, the stream has every message, on a majority of its nodes. A publisher with a
`reference` goes on after a lost connection: it sends again all that was not confirmed, and the stream takes
each publishing id of that reference once, in rising order: so every message is there once. It never goes by
the last id that the leader knows: that may not be replicated yet, and be lost with the leader. Without a
reference, a lost connection is an error, and what was not confirmed may be there or not.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Self

import numpy as np

from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import (
    AmqpError,
    ConfigError,
    PublishError,
    StreamUnavailable,
)
from leash.streams import wire
from leash.streams.backlog import Backlog
from leash.streams.commands import query_sequence
from leash.streams.connecting import FATAL, open_leader, parse
from leash.streams.connection import Connection
from leash.streams.encoding import Ids, Sub, rows
from leash.streams.wire import Fields, Frame, Key

_PASSING = (6, 15, 18)  # not available, internal error, no such publisher: the leader moved, or goes down
_PIECE = 32768  # rows that are encoded in one go


class Publisher:
    """A publisher of one stream.

    `reference` (at most 255 bytes) makes the stream remember the highest publishing id, and drop what it has:
    `last_id` is what it remembers, and has for good; 0 for nothing, so ids begin at 1. Two publishers of one
    reference at once take messages from each other. `in_flight` is how many entries may be unconfirmed;
    `timeout`, how many seconds may pass without a confirm: while the broker is down, elects a leader, or is
    under an alarm, too.
    """

    def __init__(
        self,
        uri: str | Uri,
        stream: str,
        *,
        reference: str = "",
        in_flight: int = 100_000,
        timeout: float = 60.0,
        load_balancer: bool = False,
        name: str = "",
    ) -> None:
        if in_flight < 1:
            raise ConfigError("in_flight", in_flight, "a whole number from 1 on")
        if reference:
            wire.reference(reference)
        self.stream = stream
        self.reference = reference
        self.last_id = 0
        """The highest publishing id that the stream had at first, or that was given to it since."""
        self._uri = parse(uri)
        self._in_flight = in_flight
        self._timeout = timeout
        self._load_balancer = load_balancer
        self._name = name
        self._turn = threading.Lock()
        self._backlog = Backlog()
        self._refused: list[tuple[int, int]] = []
        self._lost: AmqpError | None = None
        self._progress = time.monotonic()
        self._connection = self._opened(settle=bool(reference))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the broker. What `send` gave and `wait` did not see confirmed may be there or not."""
        self._connection.close()

    @property
    def connection(self) -> Connection:
        """The one to the leader, for the time being."""
        return self._connection

    def publish(
        self,
        values: Any,
        *,
        ids: Any = None,
        sections: Any = None,
        filters: Any = None,
        sub_entries: int = 0,
        codec: str = "none",
    ) -> int:
        """`send`, then `wait`; returns how many messages there were."""
        count = self.send(
            values, ids=ids, sections=sections, filters=filters, sub_entries=sub_entries, codec=codec
        )
        self.wait()
        return count

    def send(
        self,
        values: Any,
        *,
        ids: Any = None,
        sections: Any = None,
        filters: Any = None,
        sub_entries: int = 0,
        codec: str = "none",
    ) -> int:
        """Publish a column of bodies; returns how many. Waits only while too many are unconfirmed.

        `values` is a pyarrow column of binary or string, or a list of bytes. `ids` are rising publishing
        ids, the next ones unless given. `sections` are what stands before each body, made by
        `amqp10.sections`: bytes for all, or a column. `filters` is a column of text with nulls for none
        (RabbitMQ 3.13). With `sub_entries`, so many messages go together into one entry, packed by `codec`
        (none, gzip, snappy, lz4, zstd), which has the id of its last message: such an entry is dropped or
        taken as a whole.
        """
        if filters is not None:
            if sub_entries:
                raise ConfigError("filters", "given", "not together with sub_entries")
            self._connection.require(Key.PUBLISH, self.stream, wire.NEED_FILTERS, 2)
        if codec != "none" and not sub_entries:
            raise ConfigError("codec", codec, "only together with sub_entries")
        sub = Sub(sub_entries, codec) if sub_entries else None
        with self._turn:
            keys = self._ids(ids, len(values))
            step = _PIECE if sub is None else max(1, _PIECE // max(1, sub.messages)) * max(1, sub.messages)
            for at in range(0, len(keys), step):
                made = rows(
                    values[at : at + step],
                    keys[at : at + step],
                    sections=_cut(sections, at, step),
                    filters=_cut(filters, at, step),
                    sub=sub,
                )
                made.check(self._connection.frame_max)
                with self._connection.changed:
                    self._backlog.append(made)
                self._pump()
                self.last_id = max(self.last_id, int(keys[at : at + step][-1]))
            return len(keys)

    def wait(self) -> None:
        """Until all that was sent is confirmed. PublishError if not, or if the broker refuses some."""
        with self._turn:
            while self._backlog.left:
                try:
                    self._pump()
                    self._wait_for(0)
                    break
                except FATAL:
                    raise
                except AmqpError as error:
                    self._recover(error)
            self._raise_refused()

    def _ids(self, ids: Any, count: int) -> Ids:
        if ids is None:
            return np.arange(self.last_id + 1, self.last_id + 1 + count, dtype=np.uint64)
        keys = np.asarray(ids, dtype=np.uint64)
        if len(keys) != count:
            raise ConfigError("ids", len(keys), f"as many as values: {count}")
        if count and (keys[0] == 0 or (keys[1:] <= keys[:-1]).any()):
            raise ConfigError("ids", int(keys[0]), "rising, from 1 on: a stream drops what does not rise")
        return keys

    # --- out ---

    def _pump(self) -> None:
        """Write all that is not written, as far as confirms allow."""
        while True:
            try:
                for batch in self._backlog.batches():
                    for frame, count in batch.rows.frames(
                        self._number, self._connection.frame_max, batch.written
                    ):
                        self._wait_for(self._in_flight - count)
                        with self._connection.changed:
                            self._backlog.write(batch, count)
                        self._write(frame)
                return
            except FATAL:
                raise
            except AmqpError as error:
                self._recover(error)

    def _write(self, frame: bytes) -> None:
        try:
            self._connection.write(frame, time.monotonic() + self._timeout)
        except TimeoutError:
            raise self._late() from None

    def _wait_for(self, room: int) -> None:
        """Until at most `room` entries are unanswered."""
        began = time.monotonic()
        with self._connection.changed:
            while self._backlog.unanswered > max(0, room) and not self._refused:
                if self._lost is not None:
                    raise self._lost
                self._connection.check_open()
                left = max(began, self._progress) + self._timeout - time.monotonic()
                if left <= 0:
                    raise self._late()
                self._connection.changed.wait(left)
        self._raise_refused()

    def _late(self) -> PublishError:
        return PublishError(
            f"stream {self.stream!r}: {self._backlog.left} entries were not confirmed by "
            f"{self._connection.where} within {self._timeout:g} s"
        )

    def _raise_refused(self) -> None:
        if self._refused:
            refused, self._refused = self._refused, []
            key, code = refused[0]
            self._backlog = Backlog()
            raise PublishError(
                f"stream {self.stream!r}: the broker refused {len(refused)} entries, the first with "
                f"id {key}: {wire.meaning(code)} ({code})"
            )

    # --- connections ---

    def _opened(self, settle: bool = False) -> Connection:
        deadline = time.monotonic() + self._timeout
        backoff = Backoff(0.05, 2.0)
        while True:
            try:
                connection = self._declared()
                if settle:
                    self.last_id = self._settled(connection)
                return connection
            except FATAL:
                raise
            except AmqpError:
                wait = backoff.next()
                if time.monotonic() + wait > deadline:
                    raise
                time.sleep(wait)

    def _declared(self) -> Connection:
        connection = open_leader(self._uri, self.stream, load_balancer=self._load_balancer, name=self._name)
        try:
            self._lost = None
            self._number = connection.add_publisher(lambda frame: self._on_frame(connection, frame))
            connection.watch(self.stream, lambda code: self._on_metadata(connection, code))
            self._connection = connection
            reference = wire.reference(self.reference) if self.reference else wire.text("")
            body = bytes((self._number,)) + reference + wire.text(self.stream)
            connection.ask(Key.DECLARE_PUBLISHER, body, stream=self.stream)
            return connection
        except BaseException:
            connection.close()
            raise

    def _settled(self, connection: Connection) -> int:
        """The last id that the stream has, once it has it for good. What its leader knows may not be
        replicated yet. So that id is sent once more: the leader drops it, whatever its body, and confirms it
        when all up to it is replicated. If the leader goes down before, all begins anew.
        """
        last = query_sequence(connection, self.reference, self.stream)
        if last:
            again = rows([b""], np.array([last], np.uint64))
            try:
                with connection.changed:
                    self._backlog.append(again)
                    self._backlog.write(self._backlog.batches()[0], 1)
                for frame, _ in again.frames(self._number, connection.frame_max):
                    self._write(frame)
                self._wait_for(0)
            except BaseException:
                self._backlog = Backlog()
                connection.close()
                raise
        return last

    def _recover(self, error: AmqpError) -> None:
        """Another connection, on which all that was not confirmed is sent again."""
        self._connection.abort()
        if not self.reference and self._backlog.unanswered:
            left = self._backlog.left
            self._backlog = Backlog()
            raise PublishError(
                f"stream {self.stream!r}: {left} entries were not confirmed when the connection was lost, "
                f"and without a reference they cannot be sent again safely ({error})"
            ) from error
        try:
            self._opened()
        except FATAL:
            raise
        except AmqpError as again:
            raise PublishError(
                f"stream {self.stream!r}: {self._backlog.left} entries were not confirmed, and no connection "
                f"came about within {self._timeout:g} s ({again})"
            ) from again
        with self._connection.changed:
            self._progress = time.monotonic()
            self._backlog.resume()

    # --- the reader's thread ---

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if connection is not self._connection:
            return
        fields = Fields(frame.body)
        fields.number(1)
        count = fields.number(4)
        with connection.changed:
            if frame.key == Key.PUBLISH_ERROR:
                errors = [(fields.number(8), fields.number(2)) for _ in range(count)]
                passing = [code for _, code in errors if code in _PASSING]
                if passing:
                    self._lost = StreamUnavailable(self.stream, wire.meaning(passing[0]), passing[0])
                    connection.changed.notify_all()
                    return
                self._refused += errors
            self._backlog.answer(count)
            self._progress = time.monotonic()
            connection.changed.notify_all()

    def _on_metadata(self, connection: Connection, code: int) -> None:
        if connection is self._connection:
            with connection.changed:
                self._lost = StreamUnavailable(self.stream, "it moved, or was deleted", code)
                connection.changed.notify_all()


def _cut(column: Any, at: int, step: int) -> Any:
    return column if column is None or isinstance(column, bytes) else column[at : at + step]
