"""Reading a stream from an offset on, to an end or for ever, as Arrow record batches.

The rule: every message once, in order, through lost connections and moved streams; and never a silent gap. If
what comes next is gone, DataLost says so, or, if that is asked for, a warning in the log. Then reading goes
on with what there is next; of a stream that was deleted and made again, with its first message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self, TypeVar

from leash.amqp.uri import Uri
from leash.errors import AmqpError
from leash.streams import wire
from leash.streams.chunks_to_arrow import DEFAULT_COLUMNS, Chunk, schema, to_arrow
from leash.streams.connecting import FATAL, Link
from leash.streams.connection import Connection
from leash.streams.gaps import lost, new_chunks
from leash.streams.offsets import Bounds, Start, chunk_at, first_and_end, first_kept, last_chunk_id, offset_of
from leash.streams.same_stream import is_another, last_before
from leash.streams.single_active_consumer import Turns
from leash.streams.subscription import WINDOW_BYTES, Subscription, filter_properties

_LINGER = 0.02  # seconds that a batch waits for more once it has begun
_ENOUGH = 1 << 20
_QUIET = 2.0  # seconds without a chunk after which the broker is asked whether there is none
_QUIET_MAX = 30.0  # the same, once it has said so several times
_ANOTHER = "it was deleted and made again"

T = TypeVar("T")


class Reader:
    """The messages of one stream from `start` on; with `end`, those below that offset, and then it stops.

    `start` is first, last, next, an offset, a time or an interval; "next" is settled when the reader is
    made. An `end` is best one of `first_and_end`: then it is sure to come. `columns` are some of value,
    offset, timestamp and message. `filters` takes only chunks that may hold these filter values (RabbitMQ
    3.13), whole: filter again. Batches have up to about `batch_bytes`, or one chunk.

    After a lost connection it tries for `patience` seconds to go on. `fail_on_data_loss=False` goes on with
    what there is where messages are gone, or where the stream is another one of that name. `linger` is how
    long a batch waits for more once it has begun; `window_bytes` about how much may wait here. With `turns`
    it reads only while it is active, from where each turn begins.
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
        window_bytes: int | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.stream = stream
        self.next: int | None = None
        """The offset after the last message returned, or where reading begins; None if only the broker
        knows.
        """
        self.schema = schema(columns)
        self._link = Link(uri, stream, load_balancer, name, patience)
        self._end = end
        self._columns = tuple(columns)
        self._properties = filter_properties(filters, unfiltered)
        self._batch_bytes = batch_bytes
        self._linger = linger
        self._patience = patience
        self._strict = fail_on_data_loss
        self._window_bytes = max(window_bytes or WINDOW_BYTES, 2 * batch_bytes)
        self._turns = turns
        self._exact = False  # whether `next` must come, and is not only where we look from
        self._anchor: Chunk | None = None  # the last chunk taken, or before any the one that reading follows
        self._earlier: Chunk | None = None  # with `turns`: that of an earlier turn
        self._passed = 0  # with filters: below it, there was nothing for us
        self.proven = True  # that the anchor is still in the stream that we are subscribed to
        self.made_again = False
        """True once this was seen to be another stream than before, all of which is to be read."""
        self._subscription: Subscription | None = None
        self._heard = self._look_at = time.monotonic()
        self._look_after = _QUIET
        self._idle_at: int | None = None  # the stream's last chunk when there was nothing for us
        self._start = offset_of(start, time.time())
        if self._start.kind == wire.at_offset(0).kind:
            self.next, self._exact = self._start.value, True
        elif self._start == wire.NEXT:
            self.next = self._link.use(lambda connection: first_and_end(connection, stream)).end
            self._start = wire.at_offset(self.next)
            self._exact = self.next > 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Batches up to the end, or for ever."""
        while not self.done:
            batch = self.read()
            if batch is not None:
                yield batch

    @property
    def done(self) -> bool:
        """True once all up to `end` was returned."""
        return self._end is not None and (self.next or 0) >= self._end

    def close(self) -> None:
        """Leave the broker."""
        self._link.close()
        if self._turns is not None:
            self._turns.lose()

    def read(self, timeout: float | None = None) -> Any:
        """The next pyarrow.RecordBatch, never empty; None if none came within `timeout` seconds, or at the
        end.

        Raises DataLost, StreamMissing, ChunkError or, after `patience` seconds of trying, what stands in
        the way.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            self.serve()
            chunks = self._take(deadline)
            if chunks:
                try:
                    batch = self._batch(chunks)
                except AmqpError as error:  # whoever reads on gets the same chunks again
                    self._link.drop(error)
                    raise
                if batch.num_rows:
                    return batch
            elif deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    def serve(self) -> None:
        """With `turns`: answer the broker if it says that we are active, or not any more. So does `read`."""
        subscription = self._current()
        if self._turns is not None and subscription is not None:
            offset = self._turns.serve(subscription)
            if offset is not None:
                self._start, self._passed = offset, 0
                self._exact = offset.kind == wire.at_offset(0).kind
                self.next = offset.value if self._exact else None
                self._link.use(self._look_back)

    def prove(self) -> None:
        """Before a turn begins: is it still the stream that was read in an earlier one? Else all of it is to
        be read: DataLost, or a warning and `made_again`. What cannot be known yet, the first chunk will tell.
        """
        self._anchor = seen = self._anchor or self._earlier
        self._earlier, self.proven = seen, seen is None
        if seen is not None and self._differs(seen):
            self._anchor = self._earlier = None
            self.proven = self.made_again = True
            self._lost(seen.end, self._first_kept(), _ANOTHER)

    def use(self, do: Callable[[Connection], T]) -> T:
        """The result of `do` with the connection that is read from, or with a new one."""
        return self._link.use(do)

    def bounds(self) -> Bounds:
        """What the stream has to read now."""
        return self._link.use(lambda connection: first_and_end(connection, self.stream))

    def chunk_at(self, offset: int) -> Chunk | None:
        """The chunk at an offset, or the first after it; None if that is still to come."""
        return self.use(lambda connection: chunk_at(connection, self.stream, offset))

    @property
    def connection(self) -> Connection | None:
        """The one that is read from, if there is one for the time being."""
        return self._link.connection

    # --- batches ---

    def _batch(self, chunks: list[Chunk]) -> Any:
        chunks = self._checked(chunks)
        start, end = self.next or 0, self._end
        batch = to_arrow(chunks, self.stream, start=start, end=end, columns=self._columns)
        if chunks:
            self._anchor = chunks[-1]
            self.next = max(self.next or 0, min(chunks[-1].end, chunks[-1].end if end is None else end))
            self._exact = True
        return batch

    def _checked(self, chunks: list[Chunk]) -> list[Chunk]:
        """Those that are new. DataLost where something is missing between what was and what is."""
        if not self.proven:
            if self._is_another():
                return []
            if not self.proven:
                self._link.drop(AmqpError("a chunk came, and the one before it is not there"))
                return []
        new, missing = new_chunks(chunks, self.next, self._passed)
        if missing is not None and self._exact:
            self._check_gap(missing)
        return new

    def _is_another(self) -> bool:
        """True if the stream is not the one that was read before the connection was lost. Then its first
        message comes next.
        """
        if self._anchor is None or not self._differs(self._anchor):
            return False
        self._lost_all(_ANOTHER)
        return True

    def _differs(self, seen: Chunk) -> bool:
        another = self._link.use(lambda connection: is_another(connection, self.stream, seen))
        self.proven = self.proven or another is not None
        return another is True

    def _check_gap(self, expected: int) -> None:
        """Offsets are left out for what the broker itself keeps. Only below the first that it has kept are
        messages gone.
        """
        first = self._first_kept()
        if first > expected:
            self._lost(expected, first, "messages were deleted before they were read")

    def _lost(self, expected: int, first: int, why: str) -> None:
        lost(self.stream, expected, first, why, self._strict)

    def _lost_all(self, why: str) -> None:
        """What is there is not what was read: begin at its beginning."""
        self._lost(self.next or 0, self._first_kept(), why)
        subscription, self._subscription = self._current(), None
        if subscription is not None:
            subscription.close()
        self._start, self.next, self._exact, self._passed = wire.FIRST, None, False, 0
        self._anchor, self._earlier, self.made_again = None, None, True

    def _first_kept(self) -> int:
        return self._link.use(lambda connection: first_kept(connection, self.stream))

    # --- chunks ---

    def _take(self, deadline: float | None) -> list[Chunk]:
        """Chunks, or none by the deadline, or after a while in which the broker was asked whether all is
        well.
        """
        subscription = self._current() or self._link.use(self._subscribed)
        try:
            wait = _QUIET if deadline is None else min(_QUIET, max(0.0, deadline - time.monotonic()))
            enough = min(_ENOUGH, self._batch_bytes)
            chunks = subscription.take(wait, enough=enough, linger=self._linger, most=self._batch_bytes)
        except FATAL:
            raise
        except AmqpError as error:
            self._link.drop(error)
            if self._turns is not None:
                self._turns.lose()
            return []
        now = time.monotonic()
        if chunks:
            self._heard, self._look_at, self._look_after = now, now + _QUIET, _QUIET
        elif now >= self._look_at:
            self._on_quiet()
            if self._end is None:
                self._look_after = min(_QUIET_MAX, 2 * self._look_after)
            self._look_at = time.monotonic() + self._look_after
        return chunks

    def _current(self) -> Subscription | None:
        """The subscription, if its connection is the one that we have."""
        there = self._subscription
        return there if there is not None and there.connection is self._link.connection else None

    def _subscribed(self, connection: Connection) -> Subscription:
        offset = self._start if self.next is None else wire.at_offset(self.next)
        self.proven = self._anchor is None
        self._subscription = Subscription(
            connection,
            self.stream,
            offset,
            properties=self._properties | (self._turns.properties if self._turns is not None else {}),
            window_bytes=self._window_bytes,
            activated=self._turns.listen() if self._turns is not None else None,
        )
        if self._turns is None:
            self._look_back(connection)
        self._heard, self._idle_at, self._look_after = time.monotonic(), None, _QUIET
        self._look_at = self._heard + _QUIET
        return self._subscription

    def _look_back(self, connection: Connection) -> None:
        """Before the first message comes, only the one before it can tell this stream from another one."""
        if self._end is None and self._anchor is None and self._exact and self.next:
            self._anchor = last_before(connection, self.stream, self.next)

    def _on_quiet(self) -> None:
        """Nothing came for a while: is there nothing, or is something wrong?"""
        subscription = self._current()
        if subscription is None or not subscription.active:
            return
        if self.next is None and self._start != wire.FIRST:
            return
        last = self._link.use(lambda connection: last_chunk_id(connection, self.stream))
        anchor = self._anchor
        seen = anchor is not None and anchor.first == last and anchor.end <= (self.next or 0)
        if self.proven and (seen or last == self._idle_at):
            return
        if not self.proven and self._is_another():
            return
        end, position = self.bounds().end, self.next or 0
        if subscription is not self._current() or subscription.waiting:
            return
        if end > position:
            self._on_held_back(subscription, last, end)
        elif end == position or not self._exact:
            self._idle_at = last
        elif time.monotonic() - self._heard > self._patience:  # a replica may be behind, for a while
            there = self._link.at_leader(lambda leader: first_and_end(leader, self.stream)).end
            if there >= position:
                self._link.drop(AmqpError(f"{self._link.where} is behind: it has messages up to {end} only"))
            elif there:  # a new leader shows nothing until it has heard from a replica
                self._lost_all("it ends before the offset that comes next")

    def _on_held_back(self, subscription: Subscription, last: int, end: int) -> None:
        """The broker has more than came. With filters that is usual, and the proof that there is nothing for
        us is an answer to a request behind our credit, with credit left and nothing come in between.
        """
        if not self._properties:
            self._link.drop(AmqpError(f"{self._link.where} has messages up to {end} and sends none"))
        elif self._end is None:
            self._idle_at = last
            if subscription.granted:  # what retention deletes of it was not for us
                self._passed = end
        elif end >= self._end and subscription.granted:
            self._first_kept()
            if subscription is self._current() and not subscription.waiting and subscription.granted:
                self.next = self._end
