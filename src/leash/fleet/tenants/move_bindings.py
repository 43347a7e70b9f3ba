"""Moves what is bound to a queue to an exchange: every message takes the old way or the new one, once.

AMQP cannot replace a binding in one step. So a fanout exchange stands in between for a moment:

    source -> queue
    source -> queue, source -> between -> queue      a message that finds a queue twice is put there once
    source -> between -> queue
    source -> between                                the step that counts: what finds no queue in `between`
                                                     goes to its alternate exchange, the new one
    source -> between, source -> exchange            an exchange that is found twice routes once
    source -> exchange

Every step may be done twice, so whoever comes after a crash begins again.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from leash.amqp import Connection, topology
from leash.management import Management

_KINDS = ("direct", "fanout", "topic", "headers")
"""Exchanges for which a binding more changes nothing about the others."""


class Binding(NamedTuple):
    """From an exchange, by a routing key and arguments."""

    source: str
    key: str
    arguments: dict[str, Any]


def rewire(
    connection: Connection, management: Management, queue: str, exchange: str
) -> tuple[list[Binding], list[Binding]]:
    """Bind `exchange` instead of `queue`. Returns the bindings that were moved, and those that stay: a
    binding of another kind of exchange is part of how it routes.
    """
    between = f"{exchange}.adopt.{queue}"
    here = f"/api/{{}}/{quote(connection.uri.vhost, safe='')}"
    kinds = {each["name"]: each["type"] for each in management.ask("GET", here.format("exchanges"))}
    found = _bindings(management, f"{here.format('queues')}/{quote(queue, safe='')}/bindings")
    if between in kinds:
        path = f"{here.format('exchanges')}/{quote(between, safe='')}/bindings/destination"
        found += _bindings(management, path)
    bound = [each for each in found if each.source not in ("", between)]
    moved = [each for each in bound if kinds.get(each.source) in _KINDS]
    if moved or between in kinds:
        with connection.channel() as channel:
            topology.declare_exchange(
                channel, between, kind="fanout", arguments={"alternate-exchange": exchange}
            )
            topology.bind_queue(channel, queue, between)
            for source, key, arguments in moved:
                topology.bind_exchange(channel, between, source, key, arguments)
                topology.unbind_queue(channel, queue, source, key, arguments)
            topology.unbind_queue(channel, queue, between)
            for source, key, arguments in moved:
                topology.bind_exchange(channel, exchange, source, key, arguments)
                topology.unbind_exchange(channel, between, source, key, arguments)
            topology.delete_exchange(channel, between)
    return moved, [each for each in bound if each not in moved]


def _bindings(management: Management, path: str) -> list[Binding]:
    told = management.ask("GET", path)
    return [Binding(each["source"], each["routing_key"], each["arguments"] or {}) for each in told]
