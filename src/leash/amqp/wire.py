"""AMQP 0-9-1 between bytes and events, without I/O: decoding.py one way, encoding.py the other."""

from __future__ import annotations

from leash.amqp.decoding import FRAME_MAX, MAX_BODY, Decoder
from leash.amqp.encoding import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    Outgoing,
    PublishEncoder,
    ack,
    method,
    nack,
    reject,
    unchecked,
)
from leash.amqp.events import Confirm, ContentEvent, Deliveries, Event, MethodEvent

__all__ = [
    "FRAME_MAX",
    "HEARTBEAT",
    "MAX_BODY",
    "PROTOCOL_HEADER",
    "Confirm",
    "ContentEvent",
    "Decoder",
    "Deliveries",
    "Event",
    "MethodEvent",
    "Outgoing",
    "PublishEncoder",
    "ack",
    "method",
    "nack",
    "reject",
    "unchecked",
]
