"""Asks the broker about the queues before anything is consumed from them."""

from __future__ import annotations

from collections.abc import Iterable

from leash.amqp.connection import Connection
from leash.amqp.queue_traits import Traits, traits, traits_of
from leash.amqp.topology import declare_default, declare_queue
from leash.consumer.settings import Queue
from leash.consumer.stream_settings import StreamQueue
from leash.errors import ConfigError, NotFound


def inspect(connection: Connection, queues: Iterable[Queue]) -> dict[str, Traits | None]:
    """The traits of each queue, None where this user may not ask. NotFound if one is missing."""
    specs = {queue.name: queue for queue in queues}
    found: dict[str, Traits | None] = {}
    for name, told in traits_of(connection, specs).items():
        found[name] = look(connection, specs[name]) if isinstance(told, NotFound) else told
    for name, spec in specs.items():
        if (error := refused(spec, found[name])) is not None:
            raise error
    return found


def look(connection: Connection, spec: Queue) -> Traits | None:
    """The traits of one queue, which is created if it is missing and that was asked for."""
    try:
        return traits(connection, spec.name)
    except NotFound as error:
        if isinstance(spec, StreamQueue):
            hint = f"Leash declares no streams; create it, for example with `leash stream create {spec.name}`"
            raise NotFound(error.code, f"{error.text}: {hint}") from error
        if spec.declare is False:
            hint = f"Leash declares no queues; create it, or say Queue({spec.name!r}, declare=True)"
            raise NotFound(error.code, f"{error.text}: {hint}") from error
    with connection.channel() as channel:
        if spec.declare is True:
            declare_default(channel, spec.name)
        else:
            declare_queue(channel, spec.name, kind=spec.declare)
    return traits(connection, spec.name)


def refused(spec: Queue, told: Traits | None) -> ConfigError | None:
    """Why a queue cannot be consumed as asked; None: it can, as far as one may know."""
    kind = None if told is None else told.kind
    if isinstance(spec, StreamQueue):
        if kind in (None, "stream"):
            return None
        return ConfigError("streams", spec.name, f"a stream: this is a {kind} queue; name it in `queues`")
    if kind == "stream":
        what = "a queue: this is a stream, which keeps its messages; name it in `streams`"
        return ConfigError("queues", spec.name, what)
    if kind == "quorum" and spec.exclusive:
        what = f"False for {spec.name!r}: on a quorum queue it excludes nobody; see x-single-active-consumer"
        return ConfigError("exclusive", True, what)
    if spec.ordered and told is not None and told.overtakes:
        what = f"False for {spec.name!r}: with x-delayed-retry-type its messages overtake one that comes back"
        return ConfigError("ordered", True, what)
    return None
