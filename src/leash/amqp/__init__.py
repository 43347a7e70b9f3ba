"""An AMQP 0-9-1 client, fast for deliveries and publishes: the only code that touches a socket.

connection.py       opened, read, kept alive by heartbeats  handshake.py (until it is open)
channel.py          requests and replies, consumers, acks
publish.py          bulk publishing, with confirms
topology.py         queues, exchanges, bindings
queue_traits.py     a queue's type and arguments
delivery_limit.py   the broker drops nothing that no handler began
last_acks.py        acks applied before their channel ends
locks.py            a lock that ends with its holder's connection
broadcast.py        reports and requests to all processes
uri.py              URIs                                    hosts.py (one host after another)
transport.py        the socket
wire.py             frames without I/O
decoding.py         bytes to events                         events.py (the events)
delivery_shape.py   runs of deliveries that are alike
encoding.py         methods and messages to bytes
properties.py       a message's properties                  tables.py (values of headers)
"""

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
