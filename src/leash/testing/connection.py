"""A connection to the broker in memory: the client's own frames in, answers out, without a socket.

The client above it is the real one (Channel, Publisher, Link), so it sends what a broker would get.
Each answer is given before `write` returns; deliveries follow later, by the broker's pump.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pamqp import commands
from pamqp import frame as pamqp_frame
from pamqp.base import Frame as Method
from pamqp.commands import Basic, Queue

from leash.amqp import wire
from leash.amqp.channel import Channel
from leash.amqp.connection import Connection
from leash.amqp.uri import Uri
from leash.errors import ChannelError, ConnectionLost, NotFound
from leash.testing.broker import Holder, MemoryBroker

_head = struct.Struct(">BHI").unpack_from
_METHOD, _HEADER = 1, 2
_DeclareOk = wire.unchecked(Queue.DeclareOk)
_GetOk, _Return = wire.unchecked(Basic.GetOk), wire.unchecked(Basic.Return)


class _Session:
    """The broker's side of one channel."""

    def __init__(self) -> None:
        self.holder = Holder()
        self.confirming = False
        self.published = 0
        self.coming: Basic.Publish | None = None
        self.properties = b""
        self.missing = 0
        self.body: list[bytes] = []


class MemoryConnection(Connection):
    """A connection to a broker in memory."""

    has_reader = False

    def __init__(self, broker: MemoryBroker, uri: Uri) -> None:
        self.uri = uri
        self.where = "memory"
        self.server = {"product": "leash.testing"}
        self.frame_max = wire.FRAME_MAX
        self.blocked = None
        self.error = None
        self.changed = threading.Condition()
        self.received = 0
        self.after_read = lambda: None
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._free = deque()
        self._released = threading.Condition(self._lock)
        self._highest = 0
        self.channel_max = 2047
        self._broker = broker
        self._sessions: dict[int, _Session] = {}

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    @property
    def in_reader(self) -> bool:
        return False

    def close(self, timeout: float = 5.0) -> None:  # noqa: ARG002
        """Return unsettled messages to their queues."""
        if self.error is None:
            self.error = ConnectionLost("memory: closed")
            for session in self._sessions.values():
                self._broker.close(session.holder)
            for channel in list(self._channels.values()):
                channel.lost(self.error, asked=True)

    def abort(self) -> None:
        self.close()

    def answer(self, data: bytes, closed: Channel | None = None) -> None:  # noqa: ARG002
        """Ignore an answer: it is always close-ok, for which nothing waits here."""
        if closed is not None:
            self.release(closed)

    def write(self, data: bytes, deadline: float | None = None) -> None:  # noqa: ARG002
        self.check_open()
        at = 0
        while at < len(data):
            kind, number, size = _head(data, at)
            frame = data[at : at + size + 8]
            at += size + 8
            if kind == _METHOD:
                method = pamqp_frame.unmarshal(frame)[2]
                assert isinstance(method, Method)
                self._take(number, method)
            else:
                self._on_content(number, kind, frame[7:-1])

    # --- what the broker does with it ---

    def _take(self, number: int, method: Method) -> None:
        if isinstance(method, commands.Channel.Open):
            self._sessions[number] = _Session()
            self._reply(number, commands.Channel.OpenOk())
            return
        session = self._sessions.get(number)
        if session is None or isinstance(method, commands.Channel.CloseOk):
            return
        try:
            reply = _ANSWERS[type(method)](self, number, session, method)
        except ChannelError as error:
            self._broker.close(self._sessions.pop(number).holder)
            reply = commands.Channel.Close(error.code, error.text, 0, 0)
        if reply is not None:
            self._reply(number, reply)

    def _reply(self, number: int, method: Method) -> None:
        self._channels[number].on_event(wire.MethodEvent(number, method))

    def _close_channel(self, number: int, session: _Session, _: Any) -> Method:
        del self._sessions[number]
        self._broker.close(session.holder)
        return commands.Channel.CloseOk()

    def _declare(self, _: int, __: _Session, asked: Any) -> Method:
        if asked.passive:
            queue = self._broker.queue(asked.queue)
        else:
            queue = self._broker.declare(asked.queue, asked.arguments or {})
        return _DeclareOk(queue.name, len(queue.ready), len(queue.subscribers))

    def _purge(self, _: int, __: _Session, asked: Any) -> Method:
        ready = self._broker.queue(asked.queue).ready
        count = len(ready)
        ready.clear()
        return Queue.PurgeOk(count)

    def _qos(self, _: int, session: _Session, asked: Any) -> Method:
        session.holder.prefetch = asked.prefetch_count
        return Basic.QosOk()

    def _consume(self, number: int, session: _Session, asked: Any) -> Method | None:
        channel = self._channels[number]
        deliver: Callable[[wire.Deliveries], None] = channel.on_event
        self._broker.subscribe(session.holder, asked.consumer_tag, asked.queue, deliver)
        return None if asked.nowait else Basic.ConsumeOk(asked.consumer_tag)

    def _cancel(self, _: int, session: _Session, asked: Any) -> Method | None:
        self._broker.unsubscribe(session.holder, asked.consumer_tag)
        return None if asked.nowait else Basic.CancelOk(asked.consumer_tag)

    def _get(self, number: int, session: _Session, asked: Any) -> Method | None:
        found = self._broker.get(session.holder, asked.queue)
        if found is None:
            return Basic.GetEmpty()
        tag, message, left = found
        ok = _GetOk(tag, message.redelivered, message.exchange, message.routing_key, left)
        content = wire.ContentEvent(number, ok, message.raw_properties, message.body)
        self._channels[number].on_event(content)
        return None

    def _settle(self, _: int, session: _Session, said: Any) -> None:
        requeue = None if isinstance(said, Basic.Ack) else bool(said.requeue)
        tags = [said.delivery_tag]
        if getattr(said, "multiple", False):
            tags = [tag for tag in session.holder.unsettled if tag <= said.delivery_tag]
        for tag in tags:
            self._broker.settle(session.holder, tag, requeue=requeue)

    def _confirm(self, _: int, session: _Session, __: Any) -> Method:
        session.confirming = True
        return commands.Confirm.SelectOk()

    def _publish(self, _: int, session: _Session, method: Any) -> None:
        if method.exchange:
            raise NotFound(404, f"NOT_FOUND - no exchange '{method.exchange}' in memory")
        session.coming, session.body = method, []

    def _on_content(self, number: int, kind: int, payload: bytes) -> None:
        session = self._sessions.get(number)
        if session is None or session.coming is None:
            return
        if kind == _HEADER:
            session.missing = int.from_bytes(payload[4:12], "big")
            session.properties = payload[12:]
        else:
            session.missing -= len(payload)
            session.body.append(payload)
        if not session.missing:
            self._published(number, session, session.coming, b"".join(session.body))

    def _published(self, number: int, session: _Session, method: Basic.Publish, body: bytes) -> None:
        session.coming = None
        channel, key = self._channels[number], method.routing_key or ""
        if key in self._broker.queues:
            self._broker.publish(key, body, "", key, session.properties)
        elif method.mandatory:
            back = _Return(312, "NO_ROUTE", "", key)
            channel.on_event(wire.ContentEvent(number, back, session.properties, body))
        if session.confirming:
            session.published += 1
            channel.on_event(wire.Confirm(number, session.published, False, True))


_Answer = Callable[[MemoryConnection, int, _Session, Any], Method | None]
_ANSWERS: dict[type[Method], _Answer] = {
    commands.Channel.Close: MemoryConnection._close_channel,
    Queue.Declare: MemoryConnection._declare,
    Queue.Purge: MemoryConnection._purge,
    Basic.Qos: MemoryConnection._qos,
    Basic.Consume: MemoryConnection._consume,
    Basic.Cancel: MemoryConnection._cancel,
    Basic.Get: MemoryConnection._get,
    Basic.Ack: MemoryConnection._settle,
    Basic.Nack: MemoryConnection._settle,
    Basic.Reject: MemoryConnection._settle,
    Basic.Publish: MemoryConnection._publish,
    commands.Confirm.Select: MemoryConnection._confirm,
}
