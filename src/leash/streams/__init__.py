"""RabbitMQ's stream protocol, columnar in both directions: chunks to Arrow, Arrow to frames.

`connect` and `commands` ask and declare; `Reader` reads, `Publisher` publishes; `Subscription` is what a
reader is made of, for whoever has threads and an order of its own. Needs pyarrow: `pip install
'leash[streams]'`.

reader.py                   reading from an offset on, as Arrow
subscription.py             chunks as they come, and credit for more
single_active_consumer.py   which of several readers of one name is active
offsets.py                  where reading begins, and how much there is to read
resume_offset.py            where a named consumer goes on
same_stream.py              whether a stream is still the one that was read
gaps.py                     what is missing between chunks
publishing.py               publishing columns, with confirms
backlog.py                  what is not confirmed yet
super_streams.py            made and deleted; which partition a key belongs to
commands.py                 one function for each request
connecting.py               which host, and which node of a cluster
handshake.py                from the first byte to the open virtual host
connection.py               the reader thread, heartbeats, requests
wire.py                     frames to values and back
chunks_to_arrow.py          chunks to columns       messages.py (where each message is)
amqp10.py                   one message at a time
encoding.py                 columns to frames
compression.py              the codecs              crc32c.py (the checksum that snappy needs)
arrow_memory.py             columns made of memory that is there already
"""

from leash.streams.amqp10 import Message, decode, sections
from leash.streams.chunks_to_arrow import Chunk, to_arrow
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
from leash.streams.single_active_consumer import Turns
from leash.streams.subscription import Subscription, filter_properties, single_active
from leash.streams.super_streams import create_super_stream, delete_super_stream, partition_of

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
