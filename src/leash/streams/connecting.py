"""Connections: where the stream port is, the first host that lets us in, and the node that is the right one.

rabbitmq-stream[+tls]://user:password@host[:5552]/virtual-host, with the options of an AMQP URI. An amqp[s]://
URI works too: its hosts, on the stream port.

Publishing needs a stream's leader; reading works on any member, and a replica is preferred. Any node can tell
where they are. One that is not well says that a stream is not available: then the next host is asked.

Behind a load balancer, or in Kubernetes, the host that a node calls itself cannot be reached from outside.
With `load_balancer` we stay with the hosts of the URI, and connect again until the node behind them fits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from leash.amqp import uri as amqp
from leash.amqp.hosts import first_host
from leash.amqp.uri import Scheme, Uri
from leash.backoff import Backoff
from leash.errors import (
    AmqpError,
    AuthenticationError,
    ChunkError,
    ConfigError,
    ConnectError,
    DataLost,
    PublishError,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnsupported,
    TlsError,
    VirtualHostError,
)
from leash.logfmt import logger
from leash.streams import wire
from leash.streams.commands import metadata
from leash.streams.connection import Connection
from leash.streams.wire import Member, Placement

STREAM = (Scheme("rabbitmq-stream", 5552, False), Scheme("rabbitmq-stream+tls", 5551, True))
_SEARCH_SECONDS = 30.0

FATAL = (
    *(ConfigError, PublishError, AuthenticationError, VirtualHostError, TlsError),
    *(StreamMissing, StreamRefused, StreamUnsupported, DataLost, ChunkError),
)
"""What trying again does not mend."""

log = logger("leash.streams")

T = TypeVar("T")


def parse(uri: str | Uri, port: int | None = None) -> Uri:
    """Check and take apart a URI. `port` is the stream port of all hosts of an amqp[s]:// URI, 5552 (5551
    with TLS) unless given; a rabbitmq-stream:// URI has its ports in itself.
    """
    if port is not None and not 0 < port < 65536:
        raise ConfigError("port", port, "a port, from 1 to 65535")
    if isinstance(uri, Uri):
        place = uri
    elif isinstance(uri, str) and uri.startswith(tuple(f"{each.name}://" for each in amqp.AMQP)):
        place = amqp.parse(uri)
    else:
        place = amqp.parse(uri, STREAM)
    if place.scheme:
        return place
    plain, tls = STREAM
    scheme = tls if place.tls else plain
    hosts = tuple((host, port or scheme.port) for host, _ in place.hosts)
    return replace(place, hosts=hosts, scheme=scheme.name)


def connect(
    uri: str | Uri,
    *,
    name: str = "",
    heartbeat: int | None = None,
    timeout: float | None = None,
    avoid: str = "",
) -> Connection:
    """Connect to the first host that lets us in. `name` shows in the management UI.

    Each host has `timeout` seconds for all of the handshake. One that is down is passed over; refused
    credentials or a missing virtual host end the search. `avoid` is the `where` of a connection that was
    lost, or did not fit: that host is tried last.
    """
    place = parse(uri)
    return first_host(
        place,
        timeout,
        avoid,
        lambda transport, where, deadline: Connection(place, transport, where, name, heartbeat, deadline),
    )


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
    if found.code != wire.OK:
        raise wire.error(found.code, stream)
    return found


def _open(
    uri: str | Uri, stream: str, leader: bool, load_balancer: bool, name: str, avoid: str
) -> Connection:
    place = parse(uri)
    seed, wanted = _ask(place, stream, leader, name, avoid)
    try:
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
    return _behind(place, wanted, stream, name)


def _ask(place: Uri, stream: str, leader: bool, name: str, avoid: str) -> tuple[Connection, list[Member]]:
    """A connection to a node that knows where a stream is, and the nodes that will do."""
    while True:
        seed = connect(place, name=name, avoid=avoid)
        try:
            return seed, _wanted(placement(seed, stream), leader, stream)
        except BaseException as error:
            seed.close()
            others = tuple(host for host in place.hosts if "{}:{}".format(*host) != seed.where)
            if not others or not isinstance(error, StreamUnavailable):
                raise
            place = replace(place, hosts=others)


def _wanted(found: Placement, leader: bool, stream: str) -> list[Member]:
    """The nodes that will do, the best first."""
    if leader:
        if found.leader is None:
            raise StreamUnavailable(stream, "has no leader", wire.UNAVAILABLE)
        return [found.leader]
    members = random.sample(found.replicas, len(found.replicas))
    members += [found.leader] if found.leader else []
    if not members:
        raise StreamUnavailable(stream, "has no member that runs", wire.UNAVAILABLE)
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


def _behind(place: Uri, wanted: list[Member], stream: str, name: str) -> Connection:
    """Connect again and again until the node behind the given hosts is one that will do."""
    deadline = time.monotonic() + _SEARCH_SECONDS
    backoff = Backoff(0.01, 1.0)
    seen = set()
    while time.monotonic() < deadline:
        hosts = tuple(random.sample(place.hosts, len(place.hosts)))  # each may have other nodes behind it
        opened = connect(replace(place, hosts=hosts), name=name)
        if _fits(opened, wanted):
            return opened
        seen.add(str(opened.itself))
        opened.close()
        time.sleep(backoff.next())
    raise StreamUnavailable(
        stream,
        f"its nodes are {', '.join(map(str, wanted))}, and behind the load balancer came only "
        f"{', '.join(sorted(seen))} within {_SEARCH_SECONDS:.0f} s",
    )


class Link:
    """A connection to a member of one stream, opened when it is needed, and again when it is lost."""

    def __init__(self, uri: str | Uri, stream: str, load_balancer: bool, name: str, patience: float) -> None:
        self.connection: Connection | None = None
        self.where = ""
        """The host of the last connection."""
        self._uri = parse(uri)
        self._stream = stream
        self._load_balancer = load_balancer
        self._name = name
        self._patience = patience
        self._said = ""

    def use(self, do: Callable[[Connection], T]) -> T:
        """What `do` returns. It is called again, on another connection, until it succeeds or `patience`
        seconds are over; then its error is raised.
        """
        deadline = time.monotonic() + self._patience
        backoff = Backoff(0.05, 2.0)
        while True:
            try:
                if self.connection is None or self.connection.closed:
                    self.connection = self._open()
                return do(self.connection)
            except FATAL:
                raise
            except AmqpError as error:
                self.drop(error)
                wait = backoff.next()
                if time.monotonic() + wait > deadline:
                    raise
                time.sleep(wait)

    def at_leader(self, do: Callable[[Connection], T]) -> T:
        """The same, on a connection to the leader, which is closed then."""

        def there(_: Connection) -> T:
            leader = open_leader(self._uri, self._stream, load_balancer=self._load_balancer, name=self._name)
            with leader:
                return do(leader)

        return self.use(there)

    def drop(self, error: AmqpError) -> None:
        """Leave this connection for its error."""
        if self.connection is not None or str(error) != self._said:  # not for each of many attempts
            self._said = str(error)
            log.warning("event=stream_lost stream=%r host=%r reason=%r", self._stream, self.where, self._said)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> Connection:
        opened = open_member(
            self._uri, self._stream, load_balancer=self._load_balancer, name=self._name, avoid=self.where
        )
        self.where = opened.where
        return opened
