"""Asks the broker about the queues before anything is consumed from them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from leash.amqp.connection import Connection
from leash.amqp.traits import Traits, traits
from leash.consumer.settings import Queue
from leash.errors import ConfigError

_AT_ONCE = 8
"""Queues inspected at a time: each takes a few round trips."""


def inspect(connection: Connection, queues: Iterable[Queue]) -> dict[str, Traits | None]:
    """The traits of each queue, None where this user may not ask. NotFound if one is missing."""
    specs = {queue.name: queue for queue in queues}
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(specs)))) as pool:
        inspected = dict(zip(specs, pool.map(lambda name: traits(connection, name), specs), strict=True))
    for name, queue_traits in inspected.items():
        if (error := refused(specs[name], queue_traits)) is not None:
            raise error
    return inspected


def refused(spec: Queue, queue_traits: Traits | None) -> ConfigError | None:
    """Why a queue cannot be consumed as configured; None: it can, as far as is known."""
    kind = None if queue_traits is None else queue_traits.kind
    if kind == "stream":
        what = "a queue: this is a stream, which keeps its messages and would be read from its end only"
        return ConfigError("queues", spec.name, what)
    if kind == "quorum" and spec.exclusive:
        what = f"False for {spec.name!r}: on a quorum queue it excludes nobody; see x-single-active-consumer"
        return ConfigError("exclusive", True, what)
    return None
