"""Messages of a stream as the engine has them: the properties of AMQP 1.0 become those of AMQP 0-9-1.

RabbitMQ translates them in the same way when it delivers from a stream to an AMQP 0-9-1 consumer. A message
without a creation time gets the time at which the broker wrote its chunk.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from leash.amqp.properties import NONE, Properties, encode_properties
from leash.amqp.wire import Deliveries
from leash.errors import ConfigError
from leash.streams import Message, decode

COLUMNS = ("value", "offset", "timestamp", "message")
"""Of the batches that are read."""

_TIMESTAMP = b"\x00\x40"  # the flag of the one property that there is
_DATA = 0x75
_BARE = (5, 8)  # bytes around a body in one data section
_EXCHANGE, _KEY, _TYPE = "x-exchange", "x-routing-key", "x-basic-type"
_SHORT = 255


class Spare:
    """Messages that were read and not delivered yet, in their order."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._at = 0
        self.clear()

    def clear(self) -> None:
        self._held, self._at = Deliveries(0, ""), 0

    def __len__(self) -> int:
        return len(self._held) - self._at

    def add(self, batch: Any) -> None:
        """The rows of a pyarrow.RecordBatch."""
        left, begin = self._held, self._at
        held, self._at = Deliveries(0, ""), 0
        for name in ("tags", "exchanges", "routing_keys", "properties", "bodies"):
            setattr(held, name, getattr(left, name)[begin:])
        bodies, offsets = batch.column("value").to_pylist(), batch.column("offset").to_pylist()
        milliseconds = batch.column("timestamp").cast("int64").to_numpy() // 1000
        messages = batch.column("message").to_pylist()
        held.tags += offsets
        held.bodies += bodies
        known: dict[int, bytes] = {}
        for body, message, stamp in zip(bodies, messages, milliseconds.tolist(), strict=True):
            exchange, key = "", self._stream
            around = len(message) - len(body)
            if not around or (around in _BARE and message[2] == _DATA):
                properties = known.get(stamp)
                if properties is None:
                    properties = known[stamp] = _stamped(stamp)
            else:
                properties, exchange, key = _translated(message, stamp, exchange, key)
            held.properties.append(properties)
            held.exchanges.append(exchange)
            held.routing_keys.append(key)
        self._held = held

    def take(self, most: int) -> Deliveries:
        """The next ones."""
        batch, begin = Deliveries(0, ""), self._at
        self._at = end = min(len(self._held), begin + most)
        for name in ("tags", "exchanges", "routing_keys", "properties", "bodies"):
            setattr(batch, name, getattr(self._held, name)[begin:end])
        batch.redelivered = [False] * len(batch.tags)
        return batch


def _stamped(milliseconds: int) -> bytes:
    return _TIMESTAMP + struct.pack(">Q", max(0, milliseconds) // 1000)


def _translated(raw: bytes, stamp: int, exchange: str, key: str) -> tuple[bytes, str, str]:
    """Properties, exchange and routing key; what AMQP 0-9-1 cannot carry is left out."""
    try:
        message = decode(raw)
    except ValueError:
        return _stamped(stamp), exchange, key
    notes = message.annotations
    exchange, key = str(notes.get(_EXCHANGE, exchange)), str(notes.get(_KEY, key))
    try:
        return encode_properties(properties_of(message, stamp)), exchange, key
    except ConfigError:  # a header that cannot be encoded: the others are worth more than none
        return _salvaged(message, stamp), exchange, key


def properties_of(message: Message, stamp: int) -> Properties:
    """The properties of AMQP 0-9-1 of a message in a chunk of this time, in milliseconds since 1970."""
    given, header, notes = message.properties, message.header, message.annotations
    written = datetime.fromtimestamp(max(0, stamp) // 1000, UTC)
    created = given.get("creation_time")
    ttl, durable = header.get("ttl"), header.get("durable")
    return Properties(
        content_type=_text(given.get("content_type")),
        content_encoding=_text(given.get("content_encoding")),
        headers={name: value for name, value in message.application_properties.items() if name} or None,
        delivery_mode=None if durable is None else 2 if durable else 1,
        priority=header.get("priority"),
        correlation_id=_text(given.get("correlation_id")),
        reply_to=_text(given.get("reply_to")),
        expiration=None if ttl is None else str(ttl),
        message_id=_text(given.get("message_id")),
        timestamp=created if isinstance(created, datetime) else written,
        message_type=_text(notes.get(_TYPE)),
        user_id=_text(given.get("user_id")),
        app_id=_text(given.get("group_id")),
    )


def _salvaged(message: Message, stamp: int) -> bytes:
    kept: dict[str, Any] = {}
    for name, value in message.application_properties.items():
        try:
            encode_properties(Properties(headers={name: value}))
        except ConfigError:
            continue
        kept[name] = value
    try:
        return encode_properties(properties_of(message._replace(application_properties=kept), stamp))
    except ConfigError:
        return _stamped(stamp) if stamp else NONE


def _text(value: object) -> str | None:
    """A property that has up to 255 bytes of text in AMQP 0-9-1."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    shown = str(value) if isinstance(value, str | int | UUID) else None
    fits = shown is not None and len(shown.encode("utf-8", "surrogateescape")) <= _SHORT
    return shown if fits else None
