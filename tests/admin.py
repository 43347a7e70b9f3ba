"""What an administrator does to a broker: alarms, users, limits and policies.

`rabbitmqctl` would take two seconds of CPU for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote

from leash.amqp.uri import Uri, parse
from leash.broker import Broker


def block(broker: Broker) -> None:
    """Raise a memory alarm: publishers are blocked."""
    broker.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.0000001).")


def unblock(broker: Broker) -> None:
    broker.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.6).")


@contextmanager
def memory_alarm(broker: Broker) -> Iterator[None]:
    block(broker)
    try:
        yield
    finally:
        unblock(broker)


def add_user(broker: Broker, uri: str, configure: str, write: str = ".*") -> Uri:
    """A user for this virtual host, with these rights; again, to change them."""
    place = parse(uri)
    name = quote(place.vhost, safe="")
    broker.management.ask("PUT", f"/api/users/{name}", {"password": "secret", "tags": ""})
    rights = {"configure": configure, "write": write, "read": ".*"}
    broker.management.ask("PUT", f"/api/permissions/{name}/{name}", rights)
    return replace(place, username=place.vhost, password="secret")


def remove_user(broker: Broker, uri: str) -> None:
    """Remove the user of this virtual host."""
    broker.management.ask("DELETE", f"/api/users/{quote(parse(uri).vhost, safe='')}")


def limit(broker: Broker, uri: str, what: str, value: int | None) -> None:
    """Limit a virtual host (`max-queues`, `max-connections`); None: no longer."""
    path = f"/api/vhost-limits/{quote(parse(uri).vhost, safe='')}/{what}"
    if value is None:
        broker.management.ask("DELETE", path)
    else:
        broker.management.ask("PUT", path, {"value": value})


def set_policy(broker: Broker, uri: str, **definition: object) -> None:
    """For all queues of a virtual host; underscores stand for hyphens."""
    path = f"/api/policies/{quote(parse(uri).vhost, safe='')}/everything"
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    broker.management.ask("PUT", path, {"pattern": ".*", "definition": named, "apply-to": "queues"})
