"""Methods and messages in, bytes out."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from pamqp import frame as pamqp_frame
from pamqp.base import Frame as Method

from leash.amqp.decoding import FRAME_MAX
from leash.amqp.properties import PERSISTENT, Properties, encode_safe, short_string
from leash.errors import ConfigError

M = TypeVar("M", bound=Method)

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_ACK, _NACK, _REJECT = 0x003C0050, 0x003C0078, 0x003C005A
_ADDRESSES = 4096  # how many encoded basic.publish methods are remembered


class Outgoing(NamedTuple):
    """A message to publish. It is persistent, unless its properties say `delivery_mode=1` or are bytes, and
    mandatory: one that finds no queue comes back.
    """

    body: bytes
    exchange: str = ""
    routing_key: str = ""
    properties: Properties | bytes | None = None
    mandatory: bool = True


_pack_frame = struct.Struct(">BHI").pack
_pack_content = struct.Struct(">BHIHHQ").pack
_pack_settle = struct.Struct(">BHIIQBB").pack


def unchecked(kind: type[M]) -> type[M]:
    """A method class without pamqp's limits on names: RabbitMQ allows any UTF-8 of up to 255 bytes."""
    return type(kind.__name__, (kind,), {"validate": lambda _: None})


def method(channel: int, value: Method) -> bytes:
    """Encode a method without content."""
    try:
        return pamqp_frame.marshal(value, channel)
    except (TypeError, ValueError, struct.error) as error:
        raise ConfigError(value.name, _shown(value), f"arguments that AMQP can carry ({error})") from error


def ack(channel: int, tag: int, multiple: bool = False) -> bytes:
    """Encode basic.ack."""
    return _pack_settle(_METHOD, channel, 13, _ACK, tag, multiple, _END)


def nack(channel: int, tag: int, multiple: bool = False, requeue: bool = True) -> bytes:
    """Encode basic.nack."""
    return _pack_settle(_METHOD, channel, 13, _NACK, tag, multiple | requeue << 1, _END)


def reject(channel: int, tag: int, requeue: bool = True) -> bytes:
    """Encode basic.reject."""
    return _pack_settle(_METHOD, channel, 13, _REJECT, tag, requeue, _END)


class PublishEncoder:
    """Messages in, one channel's bytes out; parts that repeat from message to message are encoded once."""

    def __init__(self, channel: int, frame_max: int = FRAME_MAX) -> None:
        self._channel = channel
        self._piece = frame_max - 8
        self._methods: dict[tuple[str, str, bool], bytes] = {}

    def encode(
        self,
        messages: Iterable[tuple[bytes, str, str, Properties | bytes | None, bool]],
        out: list[bytes],
    ) -> None:
        """Append the pieces of every message to `out`."""
        channel, piece = self._channel, self._piece
        methods = self._methods
        add = out.append
        for body, exchange, routing_key, properties, mandatory in messages:
            head = methods.get((exchange, routing_key, mandatory))
            if head is None:
                head = self._method(exchange, routing_key, mandatory)
            if properties is None:
                props = PERSISTENT
            else:
                props = properties if isinstance(properties, bytes) else encode_safe(properties)
            if len(props) > piece - 12:
                raise ConfigError(
                    "properties", f"{len(props)} bytes", f"at most {piece - 12} bytes: they go in one frame"
                )
            size = len(body)
            add(head)
            add(_pack_content(_HEADER, channel, 12 + len(props), 60, 0, size))
            add(props)
            if size <= piece:
                if size:
                    add(b"\xce" + _pack_frame(_BODY, channel, size))
                    add(body)
            else:
                for at in range(0, size, piece):
                    part = body[at : at + piece]
                    add(b"\xce" + _pack_frame(_BODY, channel, len(part)))
                    add(part)
            add(b"\xce")

    def _method(self, exchange: str, routing_key: str, mandatory: bool) -> bytes:
        payload = b"".join(
            [
                b"\x00\x3c\x00\x28\x00\x00",
                short_string("exchange", exchange),
                short_string("routing_key", routing_key),
                b"\x01" if mandatory else b"\x00",
            ]
        )
        encoded = _pack_frame(_METHOD, self._channel, len(payload)) + payload + b"\xce"
        if len(self._methods) >= _ADDRESSES:
            self._methods.clear()
        self._methods[exchange, routing_key, mandatory] = encoded
        return encoded


def _shown(value: Method) -> str:
    """The method's arguments for an error, without those that may hold a secret."""
    return ", ".join(f"{name}={got!r}" for name, got in value if name not in ("response", "arguments"))
