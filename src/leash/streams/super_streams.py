"""Super streams: made and deleted, and which partition a key belongs to.

A super stream is a direct exchange, and a stream for each binding key. RabbitMQ makes them by itself from
3.13 on. Before, the exchange, the streams and the bindings are declared one after another through AMQP;
whoever is interrupted declares them again.

Routing is exactly that of the Java client: murmur3 of 32 bits, seed 104729, over the key's UTF-8; unsigned
modulo the number of partitions, in the order of `commands.partitions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leash.amqp import Uri, topology
from leash.amqp import connect as connect_amqp
from leash.errors import ConfigError, StreamUnsupported
from leash.streams import wire
from leash.streams.arrow_memory import pa
from leash.streams.commands import create_stream, delete_stream, partitions
from leash.streams.connection import Connection
from leash.streams.wire import Key

_ORDER = "x-stream-partition-order"
SEED = 104729

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)

Hashes = NDArray[np.uint32]


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
        if code not in (wire.OK, wire.EXISTS):
            raise wire.error(code, super_stream)
        return code == wire.OK
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
        if code not in (wire.OK, wire.MISSING):
            raise wire.error(code, super_stream)
        return code == wire.OK
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


# --- routing ---


def partition_of(keys: Any, count: int) -> NDArray[np.int64]:
    """The place of each key's partition among `count`. `keys` is a column of text, or a list."""
    if count < 1:
        raise ConfigError("partitions", count, "one at least")
    return (murmur3(keys) % np.uint32(count)).astype(np.int64)


def murmur3(keys: Any, seed: int = SEED) -> Hashes:
    """The hash of each key."""
    column = _column(keys)
    edges = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    data = column.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    padded = np.concatenate([raw, np.zeros(4, np.uint8)])
    starts, sizes = edges[:-1], np.diff(edges)
    hashes = np.full(len(column), seed, np.uint32)
    # Shorter keys drop out as the blocks go on: those that are left stand together at the end of `order`.
    order = np.argsort(sizes, kind="stable")
    blocks = sizes[order] // 4
    for number in range(int(blocks[-1]) if len(blocks) else 0):
        live = order[np.searchsorted(blocks, number, side="right") :]
        mixed = hashes[live] ^ _scrambled(_word(padded, starts[live] + 4 * number))
        hashes[live] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    rest = sizes % 4
    tail = _word(padded, starts + sizes - rest) & _MASK[rest]
    hashes ^= np.where(rest > 0, _scrambled(tail), np.uint32(0))
    return _finished(hashes ^ sizes.astype(np.uint32))


_MASK = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def _word(data: NDArray[np.uint8], at: NDArray[np.int64]) -> Hashes:
    word = data[at].astype(np.uint32)
    for place in (1, 2, 3):
        word |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
    return word


def _rotated(word: Hashes, by: int) -> Hashes:
    return word << np.uint32(by) | word >> np.uint32(32 - by)


def _scrambled(word: Hashes) -> Hashes:
    return _rotated(word * _C1, 15) * _C2


def _finished(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)


def _column(keys: Any) -> Any:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    elif not isinstance(keys, pa.Array):
        keys = pa.array(keys, pa.large_string() if _texts(keys) else pa.large_binary())
    if keys.null_count:
        raise ConfigError(
            "keys", f"{keys.null_count} nulls", "no nulls: a message without a key has no partition"
        )
    return keys.cast(pa.large_binary())


def _texts(keys: Sequence[Any]) -> bool:
    return len(keys) > 0 and isinstance(keys[0], str)
