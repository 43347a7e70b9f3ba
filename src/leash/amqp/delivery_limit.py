"""The rule: never let the broker drop a message that no handler began.

A quorum queue counts how often each message is returned, and drops it (or dead-letters it) once that exceeds
its delivery limit, which is 20 by default since RabbitMQ 4.0. A crash and a lost connection count, and up to
4.2 even a nack does, whether or not a handler began with the message. So a message that was returned `danger`
times is rescued: a confirmed copy, whose count starts at 0, takes its place, and only then is it acked. A
crash in between repeats it and never loses it.

Who rescues where:
  the live consumer     into `limbo_queue`, which has no delivery limit, and from which a message is taken
                        only when a worker begins with it. One that is still not settled after a few tries
                        takes processes down: it is parked.
  its ordered lanes     nowhere: a copy would lose its place. The first message of a lane is parked in time.
  Spark's tasks         to the end of its own queue; ordered ones into `limbo_queue`, which is read first.
  browsing, `leash dead`, tenants' feeds
                        to the end of its own queue.

Exceptions to the rule: a limit below `danger` that a policy sets, since clients cannot see policies; a
connection that is lost many times in a row within the milliseconds that a rescue takes; and an alarm that
blocks publishers until a message has been returned too often.
"""

from __future__ import annotations

from typing import Final

from leash.amqp import topology
from leash.amqp.connection import Connection
from leash.amqp.properties import NONE, read_header, with_headers
from leash.amqp.queue_traits import Traits
from leash.amqp.wire import Outgoing

LIMIT: Final = 20
"""The delivery limit of a quorum queue that was declared without one, since RabbitMQ 4.0."""

UNKNOWN: Final = 6
"""The limit that is assumed for a queue that cannot be inspected."""

NACK_IS_FREE: Final = (4, 3)
"""From this version on a nack does not count."""

RESCUED: Final = "x-leash-rescued"
"""A copy's header: how often it was rescued. It was delivered before, whatever its `redelivered` flag says.
"""

COUNTS: Final = ("x-delivery-count", "x-acquired-count")
"""Headers that a quorum queue adds."""

_LIMBO: Final = "leash.limbo."

_REMOVED: Final = dict.fromkeys([*COUNTS, "CC", "BCC"])
"""Headers removed from a copy: CC and BCC would send it to all those queues again."""


def limit_of(traits: Traits | None, version: tuple[int, ...] = (4,)) -> int | None:
    """The delivery limit of a queue, None for no limit, as far as a client can know."""
    if traits is None:
        return UNKNOWN
    limit = traits.arguments.get("x-delivery-limit", LIMIT if version >= (4,) else None)
    if not isinstance(limit, int):
        return None
    return limit if limit >= 0 else None if version >= (4,) else 0  # before 4.0, -1 was the lowest limit


def danger(limit: int | None = LIMIT) -> int:
    """The number of deliveries after which a message is rescued: half the limit, since a rescue may fail."""
    return max(1, min(LIMIT, LIMIT if limit is None else limit) // 2)


def delivery_count(properties: bytes) -> int:
    """How often a message was returned, according to its quorum queue; 0 for any other queue."""
    return _integer(properties, COUNTS[0])


def rescues(properties: bytes) -> int:
    """How often a message was rescued."""
    return _integer(properties, RESCUED)


def copy(target: str, body: bytes, properties: bytes, headers: dict[str, object] | None = None) -> Outgoing:
    """A copy for `target`, whose count starts at 0. May raise what `with_headers` does.

    It has no `user_id`: the broker refuses messages with another user's name. In limbo it has no
    `expiration`: it would vanish there instead of going where its own queue sends expired messages.
    """
    changes = {**_REMOVED, **(headers or {}), RESCUED: rescues(properties) + 1}
    without = ("user_id", "expiration") if target.startswith(_LIMBO) else ("user_id",)
    told = with_headers(properties or NONE, changes, without=without)
    return Outgoing(body, "", target, told, mandatory=True)


def limbo_queue(name: str) -> str:
    """The queue in which a queue's messages wait that were redelivered too often."""
    return _LIMBO + name


def limbo_arguments(version: tuple[int, ...]) -> dict[str, object]:
    """The arguments of a limbo queue, which is a quorum queue: it counts deliveries, but has no limit."""
    return {"x-delivery-limit": -1} if version >= (4,) else {}


def declare_limbo(connection: Connection, name: str) -> topology.QueueState:
    """Make sure that a queue has its limbo."""
    with connection.channel() as channel:
        return topology.declare_queue(
            channel, limbo_queue(name), kind="quorum", arguments=limbo_arguments(connection.version)
        )


def _integer(properties: bytes, name: str) -> int:
    """A whole number in a top-level header."""
    if name.encode() not in properties:  # nearly always, and cheap to check
        return 0
    value = read_header(properties, name)
    return max(0, value) if isinstance(value, int) else 0
