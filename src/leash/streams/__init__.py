"""RabbitMQ's stream protocol, columnar in both directions: chunks to Arrow, Arrow to frames.

`connect` and `commands` ask and declare; `Reader` reads, `Publisher` publishes; `Subscription` is what a
reader is made of, for whoever has threads and an order of its own. Needs pyarrow: `pip install
'leash[streams]'`.
"""

from leash.streams.amqp10 import Message, decode, sections
from leash.streams.chunks import Chunk, to_arrow
from leash.streams.commands import (
    create_stream,
    delete_stream,
    metadata,
    partitions,
    query_offset,
    query_sequence,
    route,
    store_offset,
    stream_stats,
)
from leash.streams.connecting import connect, open_leader, open_member, parse
from leash.streams.connection import Connection
from leash.streams.offsets import Bounds, Start, chunk_at, first_and_end, first_kept, offset_of
from leash.streams.publishing import Publisher
from leash.streams.reader import Reader
from leash.streams.subscription import Subscription, filter_properties, single_active
from leash.streams.super_streams import create_super_stream, delete_super_stream, partition_of
from leash.streams.turns import Turns

__all__ = [
    "Bounds",
    "Chunk",
    "Connection",
    "Message",
    "Publisher",
    "Reader",
    "Start",
    "Subscription",
    "Turns",
    "chunk_at",
    "connect",
    "create_stream",
    "create_super_stream",
    "decode",
    "delete_stream",
    "delete_super_stream",
    "filter_properties",
    "first_and_end",
    "first_kept",
    "metadata",
    "offset_of",
    "open_leader",
    "open_member",
    "parse",
    "partition_of",
    "partitions",
    "query_offset",
    "query_sequence",
    "route",
    "sections",
    "single_active",
    "store_offset",
    "stream_stats",
    "to_arrow",
]
