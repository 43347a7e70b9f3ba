"""Checks whether the ring is still in the stored order: a full stop of the broker may have shuffled it.

No request tells, so probes do: short-lived control messages, one for every bucket. Meanwhile a few temporary
queues are bound to the slots, each slot to those queues that stand for the bits of its number; the set of
queues through which a probe arrives is the number of its slot.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from leash.amqp import Channel, Connection, Outgoing, Properties, Publisher, read_header, topology
from leash.errors import TopologyError
from leash.partitions import gates
from leash.partitions.layout import Layout
from leash.policies.ring import HashRing

_PATIENCE = 30.0
# Probes expire at once in queues without a consumer. The broker stops delivering to a consumer whose channel
# has 200 unsent messages, so fewer than that are in flight at a time.
_AT_A_TIME = 100


def actual(connection: Connection, layout: Layout) -> Layout:
    """The layout with its slots in the broker's order."""
    if layout.shape == "direct":
        raise TopologyError(
            f"{layout.name!r} is a direct layout, which cannot be probed: give what "
            f"`rabbitmq-diagnostics consistent_hash_exchange_ring_state {layout.name}` prints"
        )
    if layout.taking is not None or not layout.ready:
        raise TopologyError(f"partitions {layout.name!r} are half-way through a change: apply it first")
    run = secrets.token_hex(4)
    count = len(layout.order)
    with connection.channel() as channel:
        bits = {_listen(channel, layout, _queue(run, bit), bit): bit for bit in range(_bits(count))}
        probes = [_probe(layout, run, bucket, key) for bucket, key in enumerate(_keys(layout))]
        codes = [0] * count
        with Publisher(connection) as publisher:
            for start in range(0, count, _AT_A_TIME):
                publisher.publish(probes[start : start + _AT_A_TIME])
                publisher.publish(
                    Outgoing(b"", "", _queue(run, bit), _told(run, -1)) for bit in bits.values()
                )
                _collect(channel, bits, run, codes)
    order = tuple(code - 1 for code in codes)
    if sorted(order) != sorted(layout.order):
        raise TopologyError(f"the bindings of exchange {layout.name!r} are not those that Leash made")
    return replace(layout, order=order)


def stated(layout: Layout, text: str) -> Layout:
    """A direct layout as that command prints it. (With slots the command itself fails, at least on 3.10.)"""
    ring = HashRing.from_state(text, layout.by, layout.version)
    if layout.shape != "direct" or sorted(ring.bindings) != sorted(layout.weights):
        raise TopologyError(f"that is not the ring of {layout.name!r}: it has other bindings")
    return replace(layout, weights=ring.bindings)


def _bits(count: int) -> int:
    return count.bit_length()


def _listen(channel: Channel, layout: Layout, queue: str, bit: int) -> str:
    """Numbers count from 1, so that every probe reaches at least one queue."""
    limits = {"x-max-length": 10_000}
    topology.declare_queue(channel, queue, durable=False, exclusive=True, auto_delete=True, arguments=limits)
    tag = channel.consume(queue, no_ack=True)
    for slot in layout.order:
        if slot + 1 >> bit & 1:
            topology.bind_queue(channel, queue, layout.slot(slot))
    return tag


def _keys(layout: Layout) -> list[object]:
    """A key for every bucket."""
    buckets = HashRing([(str(n), 1) for n in range(len(layout.order))], layout.by, layout.version)
    by_bucket: dict[int, object] = {}
    start = 0
    while len(by_bucket) < len(layout.order):
        numbers = range(start, start := start + 2000)
        keys: list[object] = list(numbers)
        if layout.by != "property:timestamp":
            keys = [f"probe-{number}" for number in numbers]
        for bucket, key in zip(buckets.indices(keys).tolist(), keys, strict=True):
            by_bucket.setdefault(bucket, key)
    return [by_bucket[bucket] for bucket in range(len(layout.order))]


def _queue(run: str, bit: int) -> str:
    return f"leash.probe.{run}.{bit}"


def _told(run: str, bucket: int) -> Properties:
    """The properties of a probe: bucket -1 is the last one of its batch in that queue."""
    headers = {gates.CONTROL: "probe", "run": run, "bucket": bucket}
    return Properties(headers=headers, delivery_mode=1)  # type: ignore[arg-type]


def _probe(layout: Layout, run: str, bucket: int, key: object) -> Outgoing:
    """A probe: it expires at once in a queue without a consumer, and Leash's consumers ignore it."""
    kind, _, name = layout.by.partition(":")
    properties = _told(run, bucket)
    properties.expiration = "0"
    if kind == "header":
        properties.headers[name] = key  # type: ignore[index,assignment]
    elif kind == "property":
        import datetime

        value = datetime.datetime.fromtimestamp(key, datetime.UTC) if isinstance(key, int) else key
        setattr(properties, name, value)
    return Outgoing(b"", layout.name, str(key) if kind == "routing_key" else "", properties, mandatory=True)


def _collect(channel: Channel, bits: dict[str, int], run: str, codes: list[int]) -> None:
    """Add to the slot code of each bucket until the last message of every queue has arrived.

    An incomplete code may look like another slot's, so only those last messages show that all are complete.
    Live messages are copied here too, and ignored.
    """
    pending = set(bits)
    deadline = time.monotonic() + _PATIENCE
    while pending:
        batch = channel.deliveries(max(0.0, deadline - time.monotonic()))
        if batch is None:
            raise TopologyError(f"the broker delivered no probes for {_PATIENCE:.0f} s; try again")
        for raw in batch.properties:
            if gates.is_control(raw) and read_header(raw, "run") == run:
                bucket = read_header(raw, "bucket")
                if bucket == -1:
                    pending.discard(batch.consumer_tag)
                elif isinstance(bucket, int):
                    codes[bucket] |= 1 << bits[batch.consumer_tag]
