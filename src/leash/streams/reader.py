"""Reading a stream from an offset on, to an end or for ever, as Arrow record batches.

The rule: every message once, in order, through lost connections and moved streams; and never a silent gap. If
what comes next is gone, DataLost says so, or, if that is asked for, a warning in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import (
    AmqpError,
    AuthenticationError,
    ChunkError,
    ConfigError,
    DataLost,
    StreamMissing,
    StreamRefused,
    StreamUnsupported,
    TlsError,
    VirtualHostError,
)
from leash.logfmt import logger
from leash.streams import wire
from leash.streams.chunks import DEFAULT_COLUMNS, Chunk, schema, to_arrow
from leash.streams.connecting import open_member, parse
from leash.streams.connection import Connection
from leash.streams.offsets import Bounds, Start, chunk_at, first_and_end, first_kept, offset_of
from leash.streams.subscription import WINDOW_BYTES, Subscription, filter_properties

log = logger("leash.streams")

T = TypeVar("T")

_LINGER = 0.02  # seconds that a batch waits for more once it has begun
_ENOUGH = 1 << 20
_QUIET = 2.0  # seconds without a chunk after which the broker is asked whether there is none
_FATAL = (
    *(ConfigError, AuthenticationError, VirtualHostError, TlsError),
    *(StreamMissing, StreamRefused, StreamUnsupported, DataLost, ChunkError),
)
"""What trying again does not mend."""


class Reader:
    """The messages of one stream from `start` on; with `end`, those below that offset, and then it stops.

    `start` is first, last, next, an offset, a time or an interval; "next" is settled when the reader is
    made. An `end` is best one of `first_and_end`: then it is sure to come. `columns` are some of value,
    offset, timestamp and message. `filters` takes only chunks that may hold these filter values (RabbitMQ
    3.13), whole: filter again. Batches have up to about `batch_bytes`, or one chunk.

    After a lost connection it tries for `patience` seconds to go on. `fail_on_data_loss=False` goes on with
    what there is after truncation, too. `linger` is how long a batch waits for more once it has begun.
    """

    def __init__(
        self,
        uri: str | Uri,
        stream: str,
        start: Start = "first",
        *,
        end: int | None = None,
        columns: Collection[str] = DEFAULT_COLUMNS,
        filters: Sequence[str] = (),
        unfiltered: bool = False,
        batch_bytes: int = 2 << 20,
        linger: float = _LINGER,
        load_balancer: bool = False,
        name: str = "",
        patience: float = 60.0,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.stream = stream
        self.next: int | None = None
        """The offset after the last message returned, or where reading begins; None if only the broker
        knows.
        """
        self.schema = schema(columns)
        self._uri = parse(uri)
        self._end = end
        self._columns = tuple(columns)
        self._properties = filter_properties(filters, unfiltered)
        self._batch_bytes = batch_bytes
        self._linger = linger
        self._load_balancer = load_balancer
        self._name = name
        self._patience = patience
        self._strict = fail_on_data_loss
        self._exact = False  # whether `next` must come, and is not only where we look from
        self._anchor: Chunk | None = None  # the last chunk taken: it must be there again after a reconnect
        self._resuming = False
        self._connection: Connection | None = None
        self._subscription: Subscription | None = None
        self._where = ""
        self._heard = time.monotonic()
        self._start = offset_of(start, time.time())
        if self._start.kind == wire.at_offset(0).kind:
            self.next, self._exact = self._start.value, True
        elif self._start == wire.NEXT:
            self.next = self._with_patience(lambda connection: first_and_end(connection, stream)).end
            self._start = wire.at_offset(self.next)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Batches up to the end, or for ever."""
        while not self.done:
            batch = self.read()
            if batch is not None:
                yield batch

    @property
    def done(self) -> bool:
        """Whether all up to `end` was returned."""
        return self._end is not None and (self.next or 0) >= self._end

    def close(self) -> None:
        """Leave the broker."""
        connection, self._connection, self._subscription = self._connection, None, None
        if connection is not None:
            connection.close()

    def read(self, timeout: float | None = None) -> Any:
        """The next pyarrow.RecordBatch, never empty; None if none came within `timeout` seconds, or at the
        end.

        Raises DataLost, StreamMissing, ChunkError or, after `patience` seconds of trying, what stands in
        the way.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            chunks = self._take(deadline)
            if chunks:
                batch = self._batch(chunks)
                if batch.num_rows:
                    return batch
            elif deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    def bounds(self) -> Bounds:
        """What the stream has to read now."""
        return self._with_patience(lambda connection: first_and_end(connection, self.stream))

    def chunk_at(self, offset: int) -> Chunk | None:
        """The chunk at an offset, or the first after it; None if that is still to come."""
        return self._with_patience(lambda connection: chunk_at(connection, self.stream, offset))

    # --- batches ---

    def _batch(self, chunks: list[Chunk]) -> Any:
        start = self.next or 0
        chunks = self._checked(chunks)
        end = self._end
        batch = to_arrow(chunks, self.stream, start=start, end=end, columns=self._columns)
        if chunks:
            self._anchor = chunks[-1]
            self.next = max(self.next or 0, min(chunks[-1].end, chunks[-1].end if end is None else end))
            self._exact = True
        return batch

    def _checked(self, chunks: list[Chunk]) -> list[Chunk]:
        """Those that are new. DataLost where something is missing between what was and what is."""
        if self._resuming and chunks:
            self._resuming = False
            self._check_anchor(chunks[0])
        expected = self.next
        missing = None
        new = []
        for chunk in chunks:
            if expected is not None and chunk.end <= expected:
                continue
            if expected is not None and chunk.first > expected and self._exact and missing is None:
                missing = expected
            new.append(chunk)
            expected = chunk.end
        if missing is not None:
            self._check_gap(missing)
        return new

    def _check_anchor(self, chunk: Chunk) -> None:
        anchor = self._anchor
        if anchor is None or chunk.first > max(anchor.first, anchor.end - 1):
            return
        if (chunk.first, chunk.timestamp, chunk.crc) != (anchor.first, anchor.timestamp, anchor.crc):
            self._lost(anchor.end, chunk.first, "it was deleted and made again")

    def _check_gap(self, expected: int) -> None:
        """Offsets are left out for what the broker itself keeps. Only below the first that it has kept are
        messages gone.
        """
        first = self._with_patience(lambda connection: first_kept(connection, self.stream))
        if first > expected:
            self._lost(expected, first, "messages were deleted before they were read")

    def _lost(self, expected: int, first: int, why: str) -> None:
        error = DataLost(self.stream, expected, first, why)
        if self._strict:
            raise error
        log.warning("event=data_lost stream=%r expected=%d first=%d", self.stream, expected, first)
        if first < expected:  # made again: begin at its beginning
            self.next, self._exact, self._anchor = first, False, None

    # --- chunks ---

    def _take(self, deadline: float | None) -> list[Chunk]:
        """Chunks, or none by the deadline, or after a while in which the broker was asked whether all is
        well.
        """
        try:
            subscription = self._subscription or self._subscribe()
            wait = _QUIET if deadline is None else min(_QUIET, max(0.0, deadline - time.monotonic()))
            enough = min(_ENOUGH, self._batch_bytes)
            chunks = subscription.take(wait, enough=enough, linger=self._linger, most=self._batch_bytes)
        except _FATAL:
            raise
        except AmqpError as error:
            self._dropped(error)
            return []
        if chunks:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > _QUIET / 2:
            self._on_quiet()
        return chunks

    def _subscribe(self) -> Subscription:
        return self._with_patience(self._subscribed)

    def _subscribed(self, connection: Connection) -> Subscription:
        offset = self._start
        if self._anchor is not None:
            offset, self._resuming = wire.at_offset(self._anchor.first), True
        elif self.next is not None:
            offset = wire.at_offset(self.next)
        self._subscription = Subscription(
            connection,
            self.stream,
            offset,
            properties=self._properties,
            window_bytes=max(WINDOW_BYTES, 2 * self._batch_bytes),
        )
        self._heard = time.monotonic()
        return self._subscription

    def _dropped(self, error: AmqpError) -> None:
        log.warning("event=stream_lost stream=%r host=%r reason=%r", self.stream, self._where, str(error))
        connection, self._connection, self._subscription = self._connection, None, None
        if connection is not None:
            connection.abort()

    def _with_patience(self, use: Callable[[Connection], T]) -> T:
        """The result of a request, on a connection that may have to be opened first, and again."""
        deadline = time.monotonic() + self._patience
        backoff = Backoff(0.05, 2.0)
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._subscription = None
                    self._connection = self._open()
                return use(self._connection)
            except _FATAL:
                raise
            except AmqpError as error:
                self._dropped(error)
                wait = backoff.next()
                if time.monotonic() + wait > deadline:
                    raise
                time.sleep(wait)

    def _open(self) -> Connection:
        connection = open_member(
            self._uri, self.stream, load_balancer=self._load_balancer, name=self._name, avoid=self._where
        )
        self._where = connection.where
        return connection

    def _on_quiet(self) -> None:
        """Nothing came for a while: is there nothing, or is something wrong?"""
        quiet = time.monotonic() - self._heard
        subscription = self._subscription
        if subscription is None or self.next is None:
            return
        end = self.bounds().end
        if subscription is not self._subscription or subscription.waiting:
            return
        if end > self.next:
            self._on_held_back(subscription, end)
        elif (
            end < self.next and self._exact and quiet > self._patience
        ):  # a replica may be behind, for a while
            self._lost(self.next, end, "it ends before what was read already")

    def _on_held_back(self, subscription: Subscription, end: int) -> None:
        """The broker has more than came. With filters that is usual, and the proof that there is nothing for
        us is an answer to a request behind our credit, with credit left and nothing come in between.
        """
        if not self._properties:
            self._dropped(AmqpError(f"{self._where} has messages up to {end} and sends none"))
        elif self._end is not None and end >= self._end and subscription.granted:
            self._with_patience(lambda connection: first_kept(connection, self.stream))
            if subscription is self._subscription and not subscription.waiting and subscription.granted:
                self.next = self._end
