"""Bytes in, events out.

The law: the events depend on the bytes alone, never on how they were split. A delivery is three frames
(method, header, body), and when all three lie in one buffer they go straight into columns; those that look
like others of their channel go faster still (delivery_shape.py); everything else takes the frame-by-frame
path. All three give the same columns. pamqp decodes everything but deliveries and confirms.
"""

from __future__ import annotations

import struct
from collections.abc import Container

from pamqp import frame as pamqp_frame
from pamqp.base import Frame as Method
from pamqp.commands import Basic

from leash.amqp.delivery_shape import Shape, add, run_of, shape_of
from leash.amqp.events import Confirm, ContentEvent, Deliveries, Event, MethodEvent
from leash.errors import ProtocolError

FRAME_MAX = 131072  # what RabbitMQ offers by default
MAX_BODY = 512 * 1024 * 1024  # RabbitMQ's hard limit for a message

_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END = 0xCE
_DELIVER = 0x003C003C
_ACK, _NACK = 0x003C0050, 0x003C0078
_frame_head = struct.Struct(">BHI").unpack_from
_method_head = struct.Struct(">BHII").unpack_from
_tag_flag = struct.Struct(">QB").unpack_from
_content_head = struct.Struct(">BHIHHQ").unpack_from
_ADDRESSES = 4096  # how many (exchange, routing key) pairs are remembered decoded


class _Content:
    """The part received so far of a method with content, on one channel."""

    __slots__ = ("have", "method", "parts", "properties", "size")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.properties: bytes | None = None
        self.size = 0
        self.have = 0
        self.parts: list[bytes] = []


class Decoder:
    """Bytes in, events out.

    A message on a channel that is not in `channels` is an error: it would never be taken, and its parts would
    stay here. A message's properties may exceed the agreed frame size: a broker adds its counts and
    dead-letter records to them, and sends them in one frame, however large it gets.
    """

    def __init__(self, frame_max: int = FRAME_MAX, channels: Container[int] = range(1, 65536)) -> None:
        self.frame_max = frame_max
        self._channels = channels
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 8
        self._contents: dict[int, _Content] = {}
        self._addresses: dict[bytes, tuple[str, str]] = {}
        self._shapes: dict[int, Shape] = {}  # by channel: what its next delivery probably looks like

    @property
    def waiting(self) -> bool:
        """True if the last bytes were part of a frame, or of a message of several frames."""
        return self._have > 0 or bool(self._contents)

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. After a ProtocolError the decoder is unusable."""
        self._have += len(data)
        if self._chunks or self._have < self._need:
            self._chunks.append(data)
            if self._have < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        try:
            return self._decode(data)
        except (IndexError, struct.error) as error:
            raise ProtocolError("a frame is shorter than the contents that it announces") from error

    def _decode(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        filling: dict[int, Deliveries] = {}
        addresses, shapes = self._addresses, self._shapes
        frame_max, channels = self.frame_max, self._channels
        end = len(data)
        pos = 0
        need = 8
        last_key: tuple[int, bytes] | None = None
        alike = True  # until a message differs from the one before it: then comparing costs too much
        while end - pos >= 8:
            kind, channel, size = _frame_head(data, pos)
            stop = pos + 7 + size
            too_large = size > frame_max and (kind != _HEADER or size > 2 * frame_max)
            if too_large or kind not in (_METHOD, _HEADER, _BODY, _HEARTBEAT):
                raise _bad_frame(data, pos, kind, size, frame_max)
            if stop >= end:
                need = stop + 1 - pos
                break
            if data[stop] != _END:
                raise ProtocolError(f"frame end is {data[stop]:#04x}, not 0xce")

            if kind == _METHOD and size > 4 and _method_head(data, pos)[3] == _DELIVER:
                if channel in self._contents:
                    raise ProtocolError(
                        f"basic.deliver in the middle of another message on channel {channel}"
                    )
                shape = shapes.get(channel)
                if shape is not None:
                    run = run_of(data, pos, shape, frame_max)
                    if run is None or channel not in channels:
                        del shapes[channel]
                        alike = False
                    elif run.tags:
                        add(_batch(events, filling, channel, shape.consumer_tag), shape, run)
                        pos, last_key = run.end, None
                        continue
                # The whole message is in this buffer: no state, no frame objects.
                at = stop + 1
                if end - at >= 22:
                    kind2, channel2, size2, class_id, _, body_size = _content_head(data, at)
                    head_end = at + 7 + size2
                    body_at = head_end + 1
                    body_stop = body_at + 7 + body_size if body_size else head_end
                    if (
                        body_stop < end
                        and kind2 == _HEADER
                        and channel2 == channel
                        and class_id == 60
                        and 14 <= size2 <= frame_max
                        and data[head_end] == _END
                        and (
                            not body_size
                            or (
                                data[body_stop] == _END
                                and body_size <= frame_max
                                and _frame_head(data, body_at) == (_BODY, channel, body_size)
                            )
                        )
                    ):
                        tag_end = pos + 12 + data[pos + 11]
                        key = (channel, data[pos + 12 : tag_end])
                        again = key == last_key
                        if not again:
                            if channel not in channels:
                                raise _not_open(channel)
                            batch = _batch(events, filling, *key)
                            last_key = key
                        delivery_tag, redelivered = _tag_flag(data, tag_end)
                        raw = data[tag_end + 9 : stop]
                        address = addresses.get(raw)
                        if address is None:
                            address = self._address(raw)
                        batch.tags.append(delivery_tag)
                        batch.redelivered.append(redelivered != 0)
                        batch.exchanges.append(address[0])
                        batch.routing_keys.append(address[1])
                        batch.properties.append(data[at + 19 : head_end])
                        batch.bodies.append(data[body_at + 7 : body_stop] if body_size else b"")
                        if again and alike and body_size:
                            shapes[channel] = shape_of(data, pos, at, head_end, batch)
                        pos = body_stop + 1
                        continue

            last_key = None
            if kind != _HEARTBEAT:
                self._frame(kind, channel, data[pos + 7 : stop], events, filling)
            elif size:
                raise ProtocolError("a heartbeat with a payload")
            pos = stop + 1
        self._need = need
        self._have = end - pos
        if pos < end:
            self._chunks.append(data[pos:])
        return events

    def _frame(
        self, kind: int, channel: int, payload: bytes, events: list[Event], filling: dict[int, Deliveries]
    ) -> None:
        """Decode one frame, the general way."""
        content = self._contents.get(channel)
        if kind == _METHOD:
            if content is not None:
                raise ProtocolError(f"a method in the middle of a message on channel {channel}")
            index = int.from_bytes(payload[:4], "big")
            if index in _CONTENT_METHODS:
                if channel not in self._channels:
                    raise _not_open(channel)
                self._contents[channel] = _Content(payload)
                return
            filling.pop(channel, None)  # deliveries after this method form a new batch
            if index in (_ACK, _NACK):
                tag, flags = _tag_flag(payload, 4)
                events.append(Confirm(channel, tag, bool(flags & 1), index == _ACK))
            else:
                events.append(MethodEvent(channel, _method(payload)))
            return
        if content is None:
            raise ProtocolError(f"a content frame without its method on channel {channel}")
        if kind == _HEADER:
            if content.properties is not None or len(payload) < 14 or payload[:2] != b"\x00\x3c":
                raise ProtocolError("a content header that is not of the class basic")
            content.size = int.from_bytes(payload[4:12], "big")
            if content.size > MAX_BODY:
                raise ProtocolError(f"a message of {content.size} bytes; RabbitMQ allows {MAX_BODY}")
            content.properties = payload[12:]
        else:
            if content.properties is None or not payload or content.have + len(payload) > content.size:
                raise ProtocolError("a body frame that its header did not announce")
            content.parts.append(payload)
            content.have += len(payload)
        if content.have == content.size:
            del self._contents[channel]
            self._complete(channel, content, events, filling)

    def _complete(
        self, channel: int, content: _Content, events: list[Event], filling: dict[int, Deliveries]
    ) -> None:
        payload = content.method
        body = b"".join(content.parts)
        assert content.properties is not None
        if int.from_bytes(payload[:4], "big") != _DELIVER:
            filling.pop(channel, None)
            events.append(ContentEvent(channel, _method(payload), content.properties, body))
            return
        tag_end = 5 + payload[4]
        batch = _batch(events, filling, channel, payload[5:tag_end])
        delivery_tag, redelivered = _tag_flag(payload, tag_end)
        exchange, routing_key = self._address(payload[tag_end + 9 :])
        batch.tags.append(delivery_tag)
        batch.redelivered.append(redelivered != 0)
        batch.exchanges.append(exchange)
        batch.routing_keys.append(routing_key)
        batch.properties.append(content.properties)
        batch.bodies.append(body)

    def _address(self, raw: bytes) -> tuple[str, str]:
        known = self._addresses.get(raw)
        if known is not None:
            return known
        at = 1 + raw[0]
        if len(raw) != at + 1 + raw[at]:
            raise ProtocolError("basic.deliver with a malformed exchange or routing key")
        address = (
            raw[1:at].decode("utf-8", "surrogateescape"),
            raw[at + 1 :].decode("utf-8", "surrogateescape"),
        )
        if len(self._addresses) >= _ADDRESSES:
            self._addresses.clear()
        self._addresses[raw] = address
        return address


_CONTENT_METHODS = (_DELIVER, Basic.Return.index, Basic.GetOk.index)


def _batch(
    events: list[Event], filling: dict[int, Deliveries], channel: int, consumer_tag: bytes
) -> Deliveries:
    """The columns for this consumer's next message."""
    name = consumer_tag.decode("utf-8", "surrogateescape")
    batch = filling.get(channel)
    if batch is None or batch.consumer_tag != name:
        batch = filling[channel] = Deliveries(channel, name)
        events.append(batch)
    return batch


def _method(payload: bytes) -> Method:
    try:
        method = pamqp_frame._unmarshal_method_frame(payload)
    except Exception as error:  # pamqp raises several kinds on malformed input
        raise ProtocolError(f"malformed method: {type(error).__name__}") from error
    return method


def _not_open(channel: int) -> ProtocolError:
    return ProtocolError(f"a message on channel {channel}, which is not open")


def _bad_frame(data: bytes, pos: int, kind: int, size: int, frame_max: int) -> ProtocolError:
    if data[pos : pos + 4] == b"AMQP":
        version = ".".join(str(octet) for octet in data[pos + 5 : pos + 8])
        return ProtocolError(f"the broker asks for AMQP {version}; this client speaks 0-9-1")
    if kind not in (_METHOD, _HEADER, _BODY, _HEARTBEAT):
        return ProtocolError(f"{kind} is not a frame type: this is not AMQP 0-9-1")
    return ProtocolError(f"a frame of {size} bytes; {frame_max} were agreed")
