"""Stores a layout: in the stream `<name>.layout` on the broker itself.

AMQP cannot list bindings. So every change is recorded there before it is made and again when it is done; the
next process after a crash reads how far it may have got. Consumers record there that a queue has passed a
marker, and wait there for others to pass. Reading does not remove records, so all processes can read them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from leash.amqp import (
    Channel,
    Connection,
    Deliveries,
    Outgoing,
    Properties,
    Publisher,
    connect,
    decode_properties,
    topology,
)
from leash.amqp.locks import exclusively
from leash.errors import (
    AccessRefused,
    ChannelError,
    ConnectionLost,
    NotFound,
    PreconditionFailed,
    TopologyError,
)
from leash.partitions.layout import Layout

_ARGUMENTS = {"x-stream-max-segment-size-bytes": 1_000_000, "x-max-length-bytes": 20_000_000}
_PREFETCH = 1000
_PATIENCE = 30.0
"""Seconds: a stream has no leader for a while after its broker starts."""

_EMPTY = 5.0
"""Seconds: a stream that delivers nothing for this long is empty. (Only a crash leaves an empty one.)"""

PATIENCE = 10.0
"""Seconds: a lock outlives its holder until the broker notices its end."""

Pass = tuple[int, str]
"""A queue has passed its marker of a move."""
Batch = tuple[str, int]
"""The Spark run and batch that passed it."""


class Memory(NamedTuple):
    """Everything that is stored."""

    layout: Layout | None
    passed: dict[Pass, Batch | None]
    awaited: tuple[Pass, ...] = ()
    """The passes that gates wait for."""


def stream(name: str) -> str:
    """The stream that stores the layout of partitions."""
    return f"{name}.layout"


def recall(connection: Connection, name: str) -> Memory:
    """Everything that is stored; nothing for partitions that Leash did not make.

    Read on a separate connection: RabbitMQ 4.3 closes a connection that reads a stream too soon after a
    start, and with this one a lock may be lost.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with connect(connection.uri, name=f"leash layout {name}") as reading:
                return _fold(_records(reading, name), connection.version)
        except ConnectionLost as error:
            if "INTERNAL_ERROR" not in str(error) or time.monotonic() > deadline:
                raise
        except PreconditionFailed as error:
            if "running replica" not in error.text:  # which it has again soon
                what = f"queue {stream(name)!r} exists and is not a Leash stream"
                raise TopologyError(f"{what}: choose another name, or delete it") from error
            if time.monotonic() > deadline:
                raise
        except ChannelError as error:
            # RabbitMQ also says "not found" of an existing stream whose leader is not up yet.
            if isinstance(error, NotFound) and "home node" not in error.text:
                return Memory(None, {})
            if isinstance(error, AccessRefused) or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def need(connection: Connection, name: str) -> Layout:
    """The layout, or an error that says how to get one."""
    layout = recall(connection, name).layout
    if layout is None:
        raise TopologyError(f"partitions {name!r} do not exist: create them with `leash ring apply {name}`")
    return layout


def begin(channel: Channel, name: str) -> None:
    """Declare the stream."""
    topology.declare_queue(channel, stream(name), kind="stream", arguments=_ARGUMENTS)


def remember(publisher: Publisher, layout: Layout) -> Layout:
    """Store a layout; confirmed when this returns."""
    _write(publisher, layout.name, {"what": "layout", **layout.to_json()})
    return layout


def passed(publisher: Publisher, name: str, move: int, queue: str, batch: Batch | None = None) -> None:
    """Record that everything ahead of a queue's marker is settled."""
    _write(publisher, name, {"what": "passed", "move": move, "queue": queue, "batch": batch})


def read_pass(body: bytes) -> tuple[Pass, Batch | None] | None:
    """The pass in a record, or None."""
    record = json.loads(body)
    if record["what"] != "passed":
        return None
    batch = record["batch"]
    return (record["move"], record["queue"]), None if batch is None else (batch[0], batch[1])


@contextmanager
def alone(connection: Connection, name: str, patience: float | None = None) -> Iterator[None]:
    """Hold the lock for changes to these partitions; it ends with the connection, whatever happens."""
    with exclusively(connection, f"{name}.lock", PATIENCE if patience is None else patience) as got:
        if not got:
            raise TopologyError(
                f"partitions {name!r} are being changed by another process: try again when that is done"
            )
        yield


def tail(channel: Channel, name: str, deliver: Callable[[Deliveries], None] | None, start: object) -> str:
    """Consume the stream from an offset, `first`, `last` or `next`; more arrives only after acks."""
    channel.qos(_PREFETCH)
    return channel.consume(stream(name), arguments={"x-stream-offset": start}, deliver=deliver)


def _write(publisher: Publisher, name: str, record: dict[str, Any]) -> None:
    body = json.dumps(record, separators=(",", ":")).encode()
    publisher.publish(
        [Outgoing(body, "", stream(name), Properties(content_type="application/json"), mandatory=True)]
    )


def _records(connection: Connection, name: str) -> list[bytes]:
    """All records up to the one that is the last now."""
    with connection.channel() as ahead:
        tail(ahead, name, None, "last")
        newest = ahead.deliveries(_EMPTY)
        if newest is None:
            return []
        end = _offsets(newest)[-1]
    found: list[bytes] = []
    with connection.channel() as channel:
        tail(channel, name, None, "first")
        while True:
            batch = channel.deliveries(10.0)
            if batch is None:
                raise TopologyError(f"the stream {stream(name)!r} stopped short of its record {end}")
            channel.ack(batch.tags[-1], multiple=True)
            found += map(bytes, batch.bodies)
            if _offsets(batch)[-1] >= end:
                return found


def _offsets(batch: Deliveries) -> list[int]:
    found: list[Any] = [(decode_properties(raw).headers or {})["x-stream-offset"] for raw in batch.properties]
    return found


def _fold(records: list[bytes], version: tuple[int, ...]) -> Memory:
    layout: Layout | None = None
    passes: dict[Pass, Batch | None] = {}
    expected: dict[Pass, None] = {}
    for body in records:
        found = read_pass(body)
        if found is not None:
            passes.setdefault(*found)  # the first counts: a copy of a marker adds nothing
            continue
        record = json.loads(body)
        if record["what"] == "layout":
            layout = Layout.from_json(record, version)
            if layout.taking is not None and layout.ordered:
                expected |= dict.fromkeys((layout.taking.number, source) for source in layout.sources)
    return Memory(layout, passes, tuple(each for each in expected if each not in passes))
