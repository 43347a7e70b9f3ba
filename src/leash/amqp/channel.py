"""A channel: requests and replies, consumers, settling.

Replies are matched by method, not by order: after `cancel, qos, consume` sent together, qos-ok comes first.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pamqp import commands
from pamqp.base import Frame as Method

from leash.amqp import wire
from leash.errors import AmqpError, ChannelError, ConfigError, ConnectionLost, ReplyTimeout
from leash.logfmt import logger

if TYPE_CHECKING:
    from leash.amqp.connection import Connection

log = logger("leash.amqp")

REPLY_TIMEOUT = 60.0  # seconds; heartbeats end a dead connection earlier, this is for a hung broker
_SILENCE = 1024  # bytes: less than this in that time is only heartbeats, with no messages ahead of the answer

_tags = itertools.count(1)
_Consume, _Get = wire.unchecked(commands.Basic.Consume), wire.unchecked(commands.Basic.Get)


class _Consumer:
    __slots__ = ("deliver", "on_cancel")

    def __init__(
        self, deliver: Callable[[wire.Deliveries], None], on_cancel: Callable[[str], None] | None
    ) -> None:
        self.deliver = deliver
        self.on_cancel = on_cancel


class Reply:
    """A reply that is on its way."""

    def __init__(self, channel: Channel, request: str, answer: queue.SimpleQueue[Any]) -> None:
        self.channel = channel
        self._request = request
        self._answer = answer
        self._got: Any = None

    def here(self, timeout: float = 0.0) -> bool:
        """True if it has arrived, waiting up to `timeout`. If not, it may arrive later."""
        if self._got is None:
            with contextlib.suppress(queue.Empty):
                self._got = self._answer.get(timeout=timeout) if timeout > 0 else self._answer.get_nowait()
        return self._got is not None

    def __call__(self, timeout: float, patient: bool = False) -> Any:
        """Wait for it; if `patient`, for longer while other data arrives. Raises the error that it carries,
        or ReplyTimeout, after which the channel is unusable.
        """
        while not self.here():
            connection = self.channel.connection
            heard = connection.received
            if not self.here(timeout) and (not patient or connection.received - heard <= _SILENCE):
                error = ReplyTimeout(f"{connection.where}: no answer to {self._request} in {timeout:g} s")
                self.channel.lost(error)  # a late answer would be taken for the next request's
                raise error
        if isinstance(self._got, AmqpError):
            raise _again(self._got) from self._got
        return self._got


class Channel:
    """A channel of a connection; `Connection.channel` opens one."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.error: AmqpError | None = None
        self.on_confirm: Callable[[wire.Confirm], None] | None = None
        self.on_return: Callable[[wire.ContentEvent], None] | None = None
        self.on_lost: Callable[[AmqpError], None] | None = None
        """Called once, in the reader's thread, when the channel ends and we did not close it."""
        self._lock = threading.Lock()  # held only briefly: the reader takes it
        self._calling = (
            threading.Lock()
        )  # held while a request is sent, so that waiters are in the order of requests
        self._waiting: list[tuple[tuple[type[Method], ...], queue.SimpleQueue[Any]]] = []
        self._consumers: dict[str, _Consumer] = {}
        self._arrived: queue.SimpleQueue[wire.Deliveries | None] = queue.SimpleQueue()

    def __repr__(self) -> str:
        return f"<Channel {self.number} of {self.connection!r}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if it can no longer be used."""
        return self.error is not None

    def open(self, wait: bool = True) -> None:
        """Open it; called by `Connection.channel`."""
        answer = self.ask(commands.Channel.Open(), commands.Channel.OpenOk)
        if wait:
            answer(REPLY_TIMEOUT)

    def close(self) -> None:
        """Close; unsettled messages return to their places in the queue. A second call does nothing."""
        if self.closed:
            return
        # A broker under an alarm reads nothing from a connection that published, so it cannot answer.
        awake = self.connection.blocked is None
        try:
            answer = self.ask(commands.Channel.Close(200, "bye", 0, 0), commands.Channel.CloseOk)
            answer(REPLY_TIMEOUT if awake else 1.0, patient=awake)
        except (ConnectionLost, ReplyTimeout):
            return  # its number stays in use: the broker may not have closed it
        except ChannelError:
            pass
        self._end(ChannelError(200, "the channel is closed"))
        self.connection.release(self)

    # --- consuming ---

    def qos(self, prefetch: int) -> None:
        """Set how many unacked messages each consumer started from now on may hold; 0 is no limit."""
        if not 0 <= prefetch <= 65535:
            raise ConfigError("prefetch", prefetch, "a whole number from 0 (no limit) to 65535")
        self.call(commands.Basic.Qos(0, prefetch, False), commands.Basic.QosOk)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        exclusive: bool = False,
        no_ack: bool = False,
        arguments: Mapping[str, Any] | None = None,
        deliver: Callable[[wire.Deliveries], None] | None = None,
        on_cancel: Callable[[str], None] | None = None,
    ) -> str:
        """Start a consumer and return its tag.

        `deliver` is called in the reader's thread and must not wait; without it, ask `deliveries`.
        `on_cancel` is called there too, when the broker ends the consumer (its queue was deleted or moved).
        """
        tag = self.expect_consumer(tag, deliver, on_cancel)
        start = _Consume(0, queue, tag, False, no_ack, exclusive, False, dict(arguments or {}))
        try:
            self.call(start, commands.Basic.ConsumeOk)
        except AmqpError:
            self._consumers.pop(tag, None)
            raise
        return tag

    def expect_consumer(
        self,
        tag: str,
        deliver: Callable[[wire.Deliveries], None] | None,
        on_cancel: Callable[[str], None] | None = None,
    ) -> str:
        """Prepare for a consumer's messages before it is started: they may arrive at once."""
        tag = tag or f"leash-{self.number}-{next(_tags)}"
        self._consumers[tag] = _Consumer(deliver or self._arrived.put, on_cancel)
        return tag

    def cancel(self, tag: str) -> None:
        """End a consumer. When this returns, everything that the broker sent to it has arrived."""
        self.call(commands.Basic.Cancel(tag, False), commands.Basic.CancelOk)
        self._consumers.pop(tag, None)

    def deliveries(self, timeout: float | None = None) -> wire.Deliveries | None:
        """The next batch for consumers without a `deliver`; None if nothing arrived in time."""
        try:
            batch = self._arrived.get(timeout=timeout)
        except queue.Empty:
            batch = None
        if batch is None:
            self._check()
        return batch

    def ack(self, tag: int, multiple: bool = False) -> None:
        """Settle a message, or with `multiple` all up to it, as done."""
        self.write(wire.ack(self.number, tag, multiple))

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> None:
        """Return a message to the queue, or with `requeue=False` dead-letter or drop it."""
        self.write(wire.nack(self.number, tag, multiple, requeue))

    def reject(self, tag: int, requeue: bool = True) -> None:
        """Settle a message as failed; counts towards a quorum queue's delivery limit."""
        self.write(wire.reject(self.number, tag, requeue))

    def get(self, queue: str) -> wire.ContentEvent | None:
        """Fetch one message, or None. Slow by AMQP's design: for tools, not for consuming."""
        reply = self.call(_Get(0, queue, False), commands.Basic.GetOk, commands.Basic.GetEmpty)
        return reply if isinstance(reply, wire.ContentEvent) else None

    # --- requests ---

    def write(self, data: bytes, deadline: float | None = None) -> None:
        """Send encoded frames of this channel."""
        self._check()
        self.connection.write(data, deadline)

    def call(self, request: Method, *replies: type[Method], timeout: float = REPLY_TIMEOUT) -> Any:
        """Send a method and wait for one of its replies; for longer than `timeout` while data arrives."""
        return self.ask(request, *replies)(timeout, patient=True)

    def mark(self) -> Callable[[], bool]:
        """Ask for a round trip; the returned function says whether the answer has arrived.

        If so, everything that the broker sent on this channel before has been delivered here. Later consumers
        have a prefetch count of 1.
        """
        reply = self.ask(commands.Basic.Qos(0, 1, False), commands.Basic.QosOk)
        heard, since = self.connection.received, time.monotonic()

        def here() -> bool:
            nonlocal heard, since
            if self.connection.received - heard > _SILENCE:
                heard, since = self.connection.received, time.monotonic()
            if not reply.here() and time.monotonic() - since <= REPLY_TIMEOUT:
                return False
            reply(0)
            return True

        return here

    def ask(self, request: Method, *replies: type[Method]) -> Reply:
        """Send a method; call the result to wait for its reply. Several can be in flight."""
        if self.connection.in_reader:
            raise RuntimeError(f"{request.name} would make the reader's thread wait for itself")
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting = (replies, answer)
        data = wire.method(self.number, request)
        with self._calling:
            with self._lock:
                self._check()
                self._waiting.append(waiting)
            try:
                self.connection.write(data)
            except BaseException:
                self._forget(waiting)
                raise
        return Reply(self, request.name, answer)

    def _forget(self, waiting: tuple[tuple[type[Method], ...], queue.SimpleQueue[Any]]) -> None:
        with self._lock:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _check(self) -> None:
        if self.error is not None:
            raise _again(self.error) from self.error

    # --- the reader's thread ---

    def on_event(self, event: wire.Event) -> None:
        """Handle an event for this channel."""
        if isinstance(event, wire.Deliveries):
            consumer = self._consumers.get(event.consumer_tag)
            if consumer is not None:
                consumer.deliver(event)
        elif isinstance(event, wire.Confirm):
            if self.on_confirm is not None:
                self.on_confirm(event)
        elif isinstance(event, wire.ContentEvent) and isinstance(event.method, commands.Basic.Return):
            if self.on_return is not None:
                self.on_return(event)
        else:
            self._on_method(event)

    def _on_method(self, event: wire.MethodEvent | wire.ContentEvent) -> None:
        method = event.method
        if isinstance(method, commands.Channel.Close):
            self.lost(ChannelError.of(method.reply_code or 0, method.reply_text))  # before its number is free
            self.connection.answer(wire.method(self.number, commands.Channel.CloseOk()), self)
        elif isinstance(method, commands.Basic.Cancel):
            tag = method.consumer_tag or ""
            consumer = self._consumers.pop(tag, None)
            if consumer is not None and consumer.on_cancel is not None:
                consumer.on_cancel(tag)
        else:
            with self._lock:
                for waiting in self._waiting:
                    if isinstance(method, waiting[0]):
                        self._waiting.remove(waiting)
                        break
                else:
                    if isinstance(method, commands.Basic.CancelOk):  # everything sent to it has arrived
                        self._consumers.pop(method.consumer_tag or "", None)
                    return
            waiting[1].put(method if isinstance(event, wire.MethodEvent) else event)

    def lost(self, error: AmqpError, asked: bool = False) -> None:
        """The channel or its connection ended; `asked`: we closed it."""
        if self._end(error) and self.on_lost is not None and not asked:
            self.on_lost(error)

    def _end(self, error: AmqpError) -> bool:
        with self._lock:
            if self.error is not None:
                return False
            self.error = error
            waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            answer.put(error)
        self._arrived.put(None)
        return True


def _again(error: AmqpError) -> AmqpError:
    """A copy of an error to raise: several threads may report one loss."""
    if isinstance(error, ChannelError | ReplyTimeout):
        return copy.copy(error)
    return ConnectionLost(str(error))
