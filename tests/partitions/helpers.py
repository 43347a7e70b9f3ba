"""Publishing keyed, numbered messages, and seeing where they went."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from leash.amqp import Connection, Outgoing, Publisher, connect
from leash.partitions import gates


def weights(count: int, name: str = "orders") -> dict[str, int]:
    """Equal queues."""
    return {f"{name}.{i}": 1 for i in range(count)}


def random_keys(count: int, seed: int = 6) -> list[str]:
    rng = random.Random(seed)
    return [str(rng.randrange(1_000_000)) for _ in range(count)]


def publish(uri: str, exchange: str, keys: Iterable[str]) -> int:
    """One message for each key; its body is its number."""
    with connect(uri) as connection, Publisher(connection) as publisher:
        return publisher.publish(
            Outgoing(b"%d" % number, exchange, key, mandatory=True) for number, key in enumerate(keys)
        )


def drain(connection: Connection, queues: Iterable[str], expect: int) -> dict[str, list[int]]:
    """The numbers that each queue holds, in order, and whatever comes beyond those that are expected."""
    found: dict[str, list[int]] = {}
    with connection.channel() as channel:
        tags = {channel.consume(queue, no_ack=True): queue for queue in queues}
        found = {queue: [] for queue in tags.values()}
        while (batch := channel.deliveries(0.1 if _count(found) >= expect else 5)) is not None:
            found[tags[batch.consumer_tag]] += [
                int(body)
                for body, raw in zip(batch.bodies, batch.properties, strict=True)
                if gates.read(raw) is None
            ]
    return found


def landed(found: Mapping[str, list[int]]) -> dict[int, str]:
    """Number to queue; none may be twice."""
    pairs = [(number, queue) for queue, numbers in found.items() for number in numbers]
    places = dict(pairs)
    assert len(places) == len(pairs), "some messages came twice"
    return places


def _count(found: Mapping[str, list[int]]) -> int:
    return sum(map(len, found.values()))
