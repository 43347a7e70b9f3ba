"""What can be asked about streams, one function for each request."""

from __future__ import annotations

from collections.abc import Mapping

from leash.errors import ConfigError
from leash.streams import wire
from leash.streams.connection import Connection
from leash.streams.wire import Key, Placement


def metadata(connection: Connection, *streams: str) -> dict[str, Placement]:
    """Where streams are: leaders and replicas. One that is missing has code 2, one without leader 6."""
    return wire.read_metadata(connection.answer_to(Key.METADATA, wire.texts(streams)))


def create_stream(connection: Connection, stream: str, arguments: Mapping[str, str] | None = None) -> bool:
    """Create a stream; False if there is one already with these arguments, StreamExists if with others.

    Arguments: `max-length-bytes`, `max-age` ("7D"), `stream-max-segment-size-bytes`, `initial-cluster-size`,
    `queue-leader-locator`, `stream-filter-size-bytes`.
    """
    if not stream:
        raise ConfigError("stream", stream, "a name")
    fields = connection.answer_to(Key.CREATE, wire.text(stream) + wire.pairs(arguments or {}))
    code = fields.number(2)
    if code == wire.PRECONDITION and metadata(connection, stream)[stream].code != wire.MISSING:
        raise wire.error(wire.EXISTS, stream)
    if code not in (wire.OK, wire.EXISTS):
        raise wire.error(code, stream)
    return code == wire.OK


def delete_stream(connection: Connection, stream: str) -> bool:
    """Delete a stream and all that is in it; False if there is none."""
    code = connection.answer_to(Key.DELETE, wire.text(stream)).number(2)
    if code not in (wire.OK, wire.MISSING):
        raise wire.error(code, stream)
    return code == wire.OK


def partitions(connection: Connection, super_stream: str) -> list[str]:
    """The streams of a super stream, in the order that routing goes by. StreamMissing if there is none."""
    return connection.ask(Key.PARTITIONS, wire.text(super_stream), stream=super_stream).texts()


def route(connection: Connection, super_stream: str, routing_key: str) -> list[str]:
    """The streams that a super stream's exchange binds to a key; empty if none is."""
    return connection.ask(
        Key.ROUTE, wire.text(routing_key) + wire.text(super_stream), stream=super_stream
    ).texts()


def store_offset(connection: Connection, reference: str, stream: str, offset: int) -> None:
    """Remember an offset under a name, in the stream itself. There is no answer: ask with `query_offset`."""
    wire.at_offset(offset)
    body = wire.reference(reference) + wire.text(stream) + offset.to_bytes(8, "big")
    connection.write(wire.frame(Key.STORE_OFFSET, body))


def query_offset(connection: Connection, reference: str, stream: str) -> int | None:
    """The offset that was stored under a name; None if none was."""
    fields = connection.answer_to(Key.QUERY_OFFSET, wire.reference(reference) + wire.text(stream))
    code = fields.number(2)
    if code == wire.NO_OFFSET:
        return None
    if code != wire.OK:
        raise wire.error(code, stream)
    return fields.number(8)


def query_sequence(connection: Connection, reference: str, stream: str) -> int:
    """The highest publishing id that a stream's leader has from a publisher of this name; 0 if it knows none.

    Not all of it may be replicated yet, so what was not confirmed can still be lost with the leader. A
    message that is sent again is confirmed only when it is safe, and is not written twice.
    """
    body = wire.reference(reference) + wire.text(stream)
    return connection.ask(Key.QUERY_PUBLISHER_SEQUENCE, body, stream=stream).number(8)


def stream_stats(connection: Connection, stream: str) -> dict[str, int]:
    """`first_chunk_id`, `committed_chunk_id` and, from 4.2 on, `committed_offset`; from 3.11 on.

    These may point at chunks without messages: see `offsets.first_and_end` for what can be read.
    """
    connection.require(Key.STREAM_STATS, stream, "statistics need RabbitMQ 3.11")
    return wire.read_stats(connection.ask(Key.STREAM_STATS, wire.text(stream), stream=stream))
