"""`hash` on a real broker: every message is fetched, to see which queue it went to."""

from __future__ import annotations

from leash.amqp import Channel, Publisher, connect
from leash.amqp.topology import bind_queue, declare_exchange, declare_queue, state
from leash.amqp.wire import Outgoing
from leash.errors import LabTimeout
from leash.lab import hashing
from leash.lab.figures import Progress, Run
from leash.lab.live import TRANSIENT


def measure(uri: str, progress: Progress) -> Run:
    run = Run()
    keys = hashing.keys()
    ring = hashing.ring()
    with connect(uri, name="lab") as connection:
        channel = connection.channel()
        declare_exchange(channel, "e", kind="x-consistent-hash")
        for name, weight in hashing.WEIGHTS.items():
            declare_queue(channel, name)
            bind_queue(channel, name, "e", str(weight))
        with Publisher(connection) as publisher:
            publisher.publish(Outgoing(b"", "e", key.decode(), TRANSIENT) for key in keys)
        progress(0.5)
        hashing.fill(run, {name: state(channel, name).ready for name in hashing.WEIGHTS})
        misrouted = 0
        for done, name in enumerate(hashing.WEIGHTS):
            found = _keys_in(connection.channel(), name, run.values[f"{name}: messages"])
            misrouted += sum(str(queue) != name for queue in ring.route_many(found))
            progress(0.5 + (done + 1) / 8)
    run.values["misrouted"] = misrouted
    return run


def _keys_in(channel: Channel, queue: str, count: float) -> list[bytes]:
    channel.consume(queue, no_ack=True)
    found: list[bytes] = []
    while len(found) < count:
        batch = channel.deliveries(timeout=20)
        if batch is None:
            raise LabTimeout(f"{len(found)} of {count:g} messages of {queue!r} arrived")
        found += [key.encode() for key in batch.routing_keys]
    return found
