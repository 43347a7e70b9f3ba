"""Is the ring still in the order that is remembered? A full stop of the broker may have shuffled it.

No request tells, so probes do: short-lived control messages, one for every bucket. For that moment a few
queues of our own are bound to the slots as well, slot n to those queues that its number in binary says; the
set of queues that a probe comes by is the number of its slot.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from leash.amqp import Channel, Connection, Outgoing, Properties, Publisher, decode_properties, topology
from leash.errors import TopologyError
from leash.partitions import control
from leash.partitions.layout import Layout
from leash.policies.ring import HashRing

_PATIENCE = 10.0


def actual(connection: Connection, layout: Layout) -> Layout:
    """The layout with its slots in the order that the broker has them in."""
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
        bits = {_listen(channel, layout, f"leash.probe.{run}.{bit}", bit): bit for bit in range(_bits(count))}
        with Publisher(connection) as publisher:
            publisher.publish(_probe(layout, run, bucket, key) for bucket, key in enumerate(_keys(layout)))
        codes = _collect(channel, bits, run, count)
    order = tuple(code - 1 for code in codes)
    if sorted(order) != sorted(layout.order):
        raise TopologyError(f"the bindings of exchange {layout.name!r} are not those that Leash made")
    return replace(layout, order=order)


def stated(layout: Layout, text: str) -> Layout:
    """A direct layout as that command shows it. (For slots the command itself fails, on 3.10 at least.)"""
    ring = HashRing.from_state(text, layout.by, layout.version)
    if layout.shape != "direct" or sorted(ring.bindings) != sorted(layout.weights):
        raise TopologyError(f"that is not the ring of {layout.name!r}: it has other bindings")
    return replace(layout, weights=ring.bindings)


def _bits(count: int) -> int:
    return count.bit_length()


def _listen(channel: Channel, layout: Layout, queue: str, bit: int) -> str:
    """Numbers count from 1, so that every probe comes by at least one queue."""
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
    found: dict[int, object] = {}
    start = 0
    while len(found) < len(layout.order):
        numbers = range(start, start := start + 2000)
        keys: list[object] = list(numbers)
        if layout.by != "property:timestamp":
            keys = [f"probe-{number}" for number in numbers]
        for bucket, key in zip(buckets.indices(keys).tolist(), keys, strict=True):
            found.setdefault(bucket, key)
    return [found[bucket] for bucket in range(len(layout.order))]


def _probe(layout: Layout, run: str, bucket: int, key: object) -> Outgoing:
    """Gone at once from a queue that nobody consumes; Leash's consumers pass over it."""
    kind, _, name = layout.by.partition(":")
    headers: dict[str, object] = {control.CONTROL: "probe", "run": run, "bucket": bucket}
    told = Properties(headers=headers, expiration="0")  # type: ignore[arg-type]
    if kind == "header":
        headers[name] = key
    elif kind == "property":
        import datetime

        value = datetime.datetime.fromtimestamp(key, datetime.UTC) if isinstance(key, int) else key
        setattr(told, name, value)
    return Outgoing(b"", layout.name, str(key) if kind == "routing_key" else "", told, mandatory=True)


def _collect(channel: Channel, bits: dict[str, int], run: str, count: int) -> list[int]:
    """The slot code of every bucket; live messages are copied here too, and passed over."""
    codes = [0] * count
    deadline = time.monotonic() + _PATIENCE
    while (batch := channel.deliveries(0.5)) is not None and time.monotonic() < deadline:
        for raw in batch.properties:
            if control.is_control(raw):
                headers = decode_properties(raw).headers or {}
                bucket = headers.get("bucket")
                if headers.get("run") == run and isinstance(bucket, int):
                    codes[bucket] |= 1 << bits[batch.consumer_tag]
    return codes
