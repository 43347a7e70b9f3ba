"""Deliveries of a channel that differ only in tags, property values and bodies: each takes a single step.

RabbitMQ sends those of one consumer in runs, often of a dozen, between those of others. So a channel's shape
is remembered from one run to the next, and a run needs no other step, not even for its first message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

from leash.amqp.events import Deliveries

_END = 0xCE


class Shape(NamedTuple):
    """All of a delivery that was checked, but its tag, property values and body."""

    head: bytes
    middle: bytes
    seam: bytes
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    size: int
    consumer_tag: bytes
    redelivered: bool
    exchange: str
    routing_key: str


class Run(NamedTuple):
    """Deliveries of one shape, and where they end."""

    end: int
    tags: list[int]
    properties: list[bytes]
    bodies: list[bytes]


def shape_of(data: bytes, pos: int, header: int, header_end: int, batch: Deliveries) -> Shape:
    """The shape of the delivery at `pos`, the last one in its batch."""
    tag_at = pos + 12 + data[pos + 11]
    head, middle, seam = data[pos:tag_at], data[tag_at + 8 : header + 11], data[header_end : header_end + 4]
    unpack, size = _layout(len(head), len(middle), header_end - header - 19)
    exchange, routing_key = batch.exchanges[-1], batch.routing_keys[-1]
    return Shape(head, middle, seam, unpack, size, head[12:], batch.redelivered[-1], exchange, routing_key)


def run_of(data: bytes, pos: int, shape: Shape, most: int) -> Run | None:
    """The deliveries from `pos` on that have this shape; none, if not all of the first one is here yet. None:
    it has another shape.
    """
    head, middle, seam, unpack, size, *_ = shape
    tags: list[int] = []
    properties: list[bytes] = []
    bodies: list[bytes] = []
    add_tag, add_properties, add_body = tags.append, properties.append, bodies.append
    end = len(data)
    last = end - size
    while pos < last:
        head_, tag, middle_, body_size, property_values, seam_, body_size_ = unpack(data, pos)
        body_at = pos + size
        stop = body_at + body_size
        if (
            head_ != head
            or middle_ != middle
            or seam_ != seam
            or body_size_ != body_size
            or not 0 < body_size <= most
            or (stop < end and data[stop] != _END)
        ):
            return Run(pos, tags, properties, bodies) if tags else None
        if stop >= end:
            break
        add_tag(tag)
        add_properties(property_values)
        add_body(data[body_at:stop])
        pos = stop + 1
    return Run(pos, tags, properties, bodies)


def add(batch: Deliveries, shape: Shape, run: Run) -> None:
    """Add a run to the columns."""
    count = len(run.tags)
    batch.tags += run.tags
    batch.properties += run.properties
    batch.bodies += run.bodies
    batch.redelivered.extend(repeat(shape.redelivered, count))
    batch.exchanges.extend(repeat(shape.exchange, count))
    batch.routing_keys.extend(repeat(shape.routing_key, count))


@lru_cache(1024)
def _layout(head: int, middle: int, values: int) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int]:
    """A delivery up to its body: head, tag, middle, body size, properties, frame ends, body size."""
    layout = struct.Struct(f">{head}sQ{middle}sQ{values}s4sI")
    return layout.unpack_from, layout.size
