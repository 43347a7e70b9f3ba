"""Super streams: made, deleted and listed. One is a direct exchange, and a stream for each binding key.

RabbitMQ makes them by itself from 3.13 on. Before, the exchange, the streams and the bindings are declared
one after another through AMQP; whoever is interrupted declares them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leash.amqp import Uri, topology
from leash.amqp import connect as connect_amqp
from leash.errors import ConfigError, StreamUnsupported
from leash.streams import codes, wire
from leash.streams.commands import create_stream, delete_stream, partitions
from leash.streams.connection import Connection
from leash.streams.wire import Key

_ORDER = "x-stream-partition-order"


def partition_names(super_stream: str, count: int) -> list[str]:
    """As RabbitMQ's own tools name them: orders-0, orders-1, ..."""
    if count < 1:
        raise ConfigError("partitions", count, "one at least")
    return [f"{super_stream}-{number}" for number in range(count)]


def create_super_stream(
    connection: Connection,
    super_stream: str,
    partitions: int | Sequence[str],
    *,
    keys: Sequence[str] | None = None,
    arguments: Mapping[str, str] | None = None,
    amqp: str | Uri | None = None,
) -> bool:
    """Create a super stream; False if there is one already.

    `partitions` is how many, or their names; `keys` are their binding keys: "0", "1", ... unless given.
    `arguments` are those of `create_stream`. Brokers before 3.13 need `amqp`, an AMQP URI of the same
    virtual host.
    """
    names = partition_names(super_stream, partitions) if isinstance(partitions, int) else list(partitions)
    bindings = [str(number) for number in range(len(names))] if keys is None else list(keys)
    if len(bindings) != len(names):
        raise ConfigError("keys", len(bindings), f"as many as partitions: {len(names)}")
    if connection.can(Key.CREATE_SUPER_STREAM):
        body = (
            wire.text(super_stream) + wire.texts(names) + wire.texts(bindings) + wire.pairs(arguments or {})
        )
        code = connection.answer_to(Key.CREATE_SUPER_STREAM, body).number(2)
        if code not in (codes.OK, codes.EXISTS):
            raise codes.error(code, super_stream)
        return code == codes.OK
    place = _needed(connection, super_stream, amqp)
    made = [create_stream(connection, name, arguments) for name in names]
    with connect_amqp(place, name="leash super stream") as other:
        channel = other.channel()
        exchange = {"x-super-stream": True}
        topology.declare_exchange(channel, super_stream, kind="direct", arguments=exchange)
        for number, (name, key) in enumerate(zip(names, bindings, strict=True)):
            topology.bind_queue(channel, name, super_stream, key, {_ORDER: number})
    return any(made)


def delete_super_stream(connection: Connection, super_stream: str, *, amqp: str | Uri | None = None) -> bool:
    """Delete a super stream, its partitions and all that is in them; False if there is none."""
    if connection.can(Key.DELETE_SUPER_STREAM):
        code = connection.answer_to(Key.DELETE_SUPER_STREAM, wire.text(super_stream)).number(2)
        if code not in (codes.OK, codes.MISSING):
            raise codes.error(code, super_stream)
        return code == codes.OK
    place = _needed(connection, super_stream, amqp)
    deleted = [delete_stream(connection, name) for name in partitions(connection, super_stream)]
    with connect_amqp(place, name="leash super stream") as other:
        topology.delete_exchange(other.channel(), super_stream)
    return any(deleted)


def _needed(connection: Connection, super_stream: str, amqp: str | Uri | None) -> str | Uri:
    if amqp is None:
        said = connection.server.get("version", "?")
        raise StreamUnsupported(
            super_stream, f"RabbitMQ {said} makes super streams through AMQP: give amqp, its AMQP URI"
        )
    return amqp
