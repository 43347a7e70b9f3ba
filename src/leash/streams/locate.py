"""Connections to the right node: publishing needs a stream's leader, reading any member, rather a replica.

Behind a load balancer, or in Kubernetes, the host that a node calls itself cannot be reached from outside.
Then `load_balancer` stays with the hosts of the URI, and connects again until the node behind them fits.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import ConnectError, StreamUnavailable
from leash.streams import codes
from leash.streams.commands import metadata
from leash.streams.connecting import connect
from leash.streams.connection import Connection
from leash.streams.uri import parse
from leash.streams.wire import Member, Placement

_SEARCH_SECONDS = 30.0


def open_leader(
    uri: str | Uri, stream: str, *, load_balancer: bool = False, name: str = "", avoid: str = ""
) -> Connection:
    """A connection to the node that leads a stream. StreamMissing or StreamUnavailable if there is none."""
    return _open(uri, stream, True, load_balancer, name, avoid)


def open_member(
    uri: str | Uri, stream: str, *, load_balancer: bool = False, name: str = "", avoid: str = ""
) -> Connection:
    """A connection to a node that has a stream: a replica that can be reached, or else the leader."""
    return _open(uri, stream, False, load_balancer, name, avoid)


def placement(connection: Connection, stream: str) -> Placement:
    """Where a stream is; StreamMissing or StreamUnavailable if nowhere."""
    found = metadata(connection, stream)[stream]
    if found.code != codes.OK:
        raise codes.error(found.code, stream)
    return found


def _open(
    uri: str | Uri, stream: str, leader: bool, load_balancer: bool, name: str, avoid: str
) -> Connection:
    place = parse(uri)
    seed = connect(place, name=name, avoid=avoid)
    try:
        wanted = _wanted(placement(seed, stream), leader, stream)
        best = wanted[:-1] or wanted  # any replica, if there is one
        if _fits(seed, wanted if load_balancer else best):
            return seed
        if not load_balancer:
            opened = _at_one_of(seed, place, wanted, name)
            if opened is not seed:
                seed.close()
            return opened
    except BaseException:
        seed.close()
        raise
    seed.close()
    return _behind(place, wanted, stream, name, seed.where)


def _wanted(found: Placement, leader: bool, stream: str) -> list[Member]:
    """The nodes that will do, the best first."""
    if leader:
        if found.leader is None:
            raise StreamUnavailable(stream, "has no leader", codes.UNAVAILABLE)
        return [found.leader]
    members = random.sample(found.replicas, len(found.replicas))
    members += [found.leader] if found.leader else []
    if not members:
        raise StreamUnavailable(stream, "has no member that runs", codes.UNAVAILABLE)
    return members


def _fits(connection: Connection, wanted: list[Member]) -> bool:
    return connection.itself in wanted


def _at_one_of(seed: Connection, place: Uri, wanted: list[Member], name: str) -> Connection:
    failures = []
    for member in wanted:
        if seed.itself == member:
            return seed
        try:
            return connect(replace(place, hosts=((member.host, member.port),)), name=name)
        except ConnectError as error:
            failures.append(str(error))
    raise ConnectError(
        f"{'; '.join(failures)}: so {seed.where} calls the nodes of this stream; if only {seed.where} can be "
        "reached from here, as behind a load balancer, set load_balancer"
    )


def _behind(place: Uri, wanted: list[Member], stream: str, name: str, last: str) -> Connection:
    """Connect again and again until the node behind the given hosts is one that will do."""
    deadline = time.monotonic() + _SEARCH_SECONDS
    backoff = Backoff(0.01, 1.0)
    seen = set()
    while time.monotonic() < deadline:
        opened = connect(place, name=name, avoid=last)
        if _fits(opened, wanted):
            return opened
        seen.add(str(opened.itself))
        last = opened.where
        opened.close()
        time.sleep(backoff.next())
    raise StreamUnavailable(
        stream,
        f"its nodes are {', '.join(map(str, wanted))}, and behind the load balancer came only "
        f"{', '.join(sorted(seen))} within {_SEARCH_SECONDS:.0f} s",
    )
