"""One subscription on one connection: chunks as they come, and credit for more.

The law: what was granted and has not come, and what has come and was not taken, is bounded by the window. So
memory is bounded however slow the reader is, and the connection's thread never waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from leash.errors import AmqpError, ChunkError, ConfigError, StreamError, StreamUnavailable
from leash.logfmt import logger
from leash.streams import wire
from leash.streams.chunks_to_arrow import Chunk, read_chunk
from leash.streams.connection import Connection
from leash.streams.wire import Fields, Frame, Key, Offset

log = logger("leash.streams")

WINDOW_BYTES = 8 << 20
_MOST_CHUNKS = 2000  # credit is a number of 16 bits, and AMQP publishers leave chunks of a few kilobytes
_LEAST_CHUNKS = 2
_BEFORE_ANY = 10  # chunks, until it is known how large they are

Activated = Callable[[bool], Offset]
"""Told whether this consumer is the active one from now on; returns where it begins then."""


def filter_properties(values: Sequence[str], unfiltered: bool = False) -> dict[str, str]:
    """The properties of a subscription to chunks that may hold these filter values (RabbitMQ 3.13).

    `unfiltered` takes chunks with messages that have none, too. Chunks come whole: filter again.
    """
    if isinstance(values, str):
        raise ConfigError("filters", values, "a list of texts")
    found = {f"filter.{number}": value for number, value in enumerate(values)}
    return found | ({"match-unfiltered": "true"} if found and unfiltered else {})


def single_active(name: str, super_stream: str = "") -> dict[str, str]:
    """The properties of one of several consumers of that name, of which one at a time is active (3.11)."""
    wire.reference(name)
    more = {"super-stream": super_stream} if super_stream else {}
    return {"single-active-consumer": "true", "name": name, **more}


class Subscription:
    """Chunks of a stream from an offset on, whole: the first may begin before the offset.

    `window` is a number of chunks; without one, as many as are `window_bytes` by what came so far. `arrived`
    is called in the connection's thread whenever `take` would return, and must not wait. `activated` is for
    `single_active`, and called in a thread of its own; until then, nothing comes.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        offset: Offset,
        *,
        properties: Mapping[str, str] | None = None,
        window: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        arrived: Callable[[], None] | None = None,
        activated: Activated | None = None,
    ) -> None:
        properties = dict(properties or {})
        if any(name.startswith("filter.") for name in properties):
            connection.require(Key.PUBLISH, stream, wire.NEED_FILTERS, 2)
        if "single-active-consumer" in properties:
            connection.require(Key.STREAM_STATS, stream, "a single active consumer needs RabbitMQ 3.11")
        self.connection = connection
        self.stream = stream
        self.active = "single-active-consumer" not in properties
        """True if chunks come at all. Credit for one that is not active is an error to the broker."""
        self._alone = self.active
        self.error: AmqpError | None = None
        """Why no more will come."""
        self._window = window
        self._window_bytes = window_bytes
        self._arrived = arrived
        self._activated = activated
        self._changed = connection.changed
        self._queue: deque[Chunk] = deque()
        self._granted = 1  # chunks that may come
        self._chunks = self._bytes = 0  # all that came
        self._queued_bytes = 0
        self.number = connection.add_subscriber(self._on_frame)
        self._unwatch = connection.watch(stream, self._on_metadata)
        more = wire.pairs(properties) if properties else b""
        # Not with all the credit: RabbitMQ 4.3 takes the first as a limit, and stops at half of it.
        body = bytes((self.number,)) + wire.text(stream) + offset.encode() + (1).to_bytes(2, "big") + more
        try:
            connection.ask(Key.SUBSCRIBE, body, stream=stream)
            self._grant()
        except BaseException:
            self._forget()
            raise

    @property
    def waiting(self) -> int:
        """How many chunks can be taken."""
        return len(self._queue)

    @property
    def granted(self) -> int:
        """How many chunks may still come on the credit that was given."""
        return self._granted

    def take(
        self,
        timeout: float | None = None,
        *,
        enough: int = 0,
        linger: float = 0.0,
        most: int | None = None,
    ) -> list[Chunk]:
        """The chunks that have come, and credit for as many. Empty if none came within `timeout` seconds.

        Once there is one, waits up to `linger` seconds more for `enough` bytes: hundreds of small chunks at
        once cost much less than one by one. Stops after `most` bytes, one chunk at least. Raises what ended
        the subscription once all that came before is taken.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._queue:
                self._check()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return []
                self._changed.wait(left)
            if linger and self._queued_bytes < enough:
                until = time.monotonic() + linger
                while self._granted and self._queued_bytes < enough and self._well():
                    left = until - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
            chunks: list[Chunk] = []
            size = 0
            while self._queue and (most is None or not chunks or size + len(self._queue[0].data) <= most):
                chunks.append(self._queue.popleft())
                size += len(chunks[-1].data)
            self._queued_bytes -= size
        with contextlib.suppress(AmqpError):  # what came is good; the next call says what happened
            self._grant()
        return chunks

    def close(self) -> None:
        """Unsubscribe; what has come and was not taken is dropped."""
        try:
            if self._well():
                self.connection.answer_to(Key.UNSUBSCRIBE, bytes((self.number,)))
        except AmqpError as error:
            log.debug("event=unsubscribe_failed stream=%r reason=%r", self.stream, str(error))
        self._forget()

    def _forget(self) -> None:
        self._unwatch()
        self.connection.remove_subscriber(self.number)
        with self._changed:
            self.error = self.error or StreamError(self.stream, "the subscription was closed")
            self._queue.clear()
            self._changed.notify_all()

    def _well(self) -> bool:
        return self.error is None and not self.connection.closed

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        self.connection.check_open()

    def _grant(self) -> None:
        """Credit up to the window, once it is worth a frame."""
        with self._changed:
            if not self.active:
                return
            window = self._window or self._chunks_in_window()
            more = min(window - self._granted - len(self._queue), 0xFFFF)
            if more <= 0 or (self._granted and more * 4 < window) or not self._well():
                return
            self._granted += more
        body = bytes((self.number,)) + more.to_bytes(2, "big")
        self.connection.write(wire.frame(Key.CREDIT, body))

    def _chunks_in_window(self) -> int:
        if not self._chunks:
            return _BEFORE_ANY
        return max(_LEAST_CHUNKS, min(_MOST_CHUNKS, self._window_bytes * self._chunks // max(1, self._bytes)))

    # --- the reader's thread ---

    def _on_frame(self, frame: Frame) -> None:
        if frame.key == Key.CONSUMER_UPDATE:
            self._on_update(Fields(frame.body))
            return
        try:
            chunk = read_chunk(frame, self.stream) if frame.key == Key.DELIVER else None
        except ChunkError as error:
            self._end(error)
            return
        if chunk is None:  # an answer to credit comes only when it failed
            code = Fields(frame.body).number(2)
            if code == wire.PRECONDITION and not self._alone:
                return  # it crossed with the news that we are not active any more
            self._end(StreamUnavailable(self.stream, f"no credit: {wire.meaning(code)}", code))
            return
        with self._changed:
            if self.error is None:
                self._queue.append(chunk)
                self._granted = max(0, self._granted - 1)
                self._chunks += 1
                self._bytes += len(chunk.data)
                self._queued_bytes += len(chunk.data)
                self._changed.notify_all()
        if self._arrived is not None:
            self._arrived()

    def _on_metadata(self, code: int) -> None:
        self._end(StreamUnavailable(self.stream, "it moved, or was deleted", code))

    def _end(self, error: AmqpError) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
        if self._arrived is not None:
            self._arrived()

    def _on_update(self, fields: Fields) -> None:
        correlation, _, active = fields.number(4), fields.number(1), fields.number(1) == 1
        arguments = (correlation, active)
        threading.Thread(target=self._update, args=arguments, name="leash-stream-update", daemon=True).start()

    def _update(self, correlation: int, active: bool) -> None:
        """In a thread of its own: whoever is asked may ask the broker where to begin."""
        try:
            offset = self._activated(active) if self._activated is not None else wire.NEXT
            if not active:
                self._set_active(False)
            body = correlation.to_bytes(4, "big") + wire.OK.to_bytes(2, "big")
            body += (offset if active else wire.NONE).encode()
            self.connection.write(wire.frame(Key.CONSUMER_UPDATE | wire.ANSWER, body))
            if active:
                self._set_active(True)
                self._grant()
        except Exception as error:
            log.warning("event=activation_failed stream=%r reason=%r", self.stream, str(error))
            self._end(error if isinstance(error, AmqpError) else StreamError(self.stream, str(error)))

    def _set_active(self, active: bool) -> None:
        with self._changed:
            self.active = active
            self._changed.notify_all()
