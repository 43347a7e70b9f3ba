"""An AMQP 0-9-1 client, fast for deliveries and publishes: the only code that touches a socket."""

from leash.amqp.channel import Channel
from leash.amqp.connection import Connection, connect
from leash.amqp.properties import (
    Properties,
    decode_properties,
    encode_properties,
    read_header,
    read_property,
    salvage_properties,
    with_headers,
)
from leash.amqp.publish import Publisher
from leash.amqp.topology import QueueState
from leash.amqp.uri import Uri, redact
from leash.amqp.wire import Deliveries, Outgoing

__all__ = [
    "Channel",
    "Connection",
    "Deliveries",
    "Outgoing",
    "Properties",
    "Publisher",
    "QueueState",
    "Uri",
    "connect",
    "decode_properties",
    "encode_properties",
    "read_header",
    "read_property",
    "redact",
    "salvage_properties",
    "with_headers",
]
