"""Getting a connection to the first host that lets us in."""

from __future__ import annotations

import time

from leash.amqp.transport import open_transport, tls_context
from leash.amqp.uri import Uri
from leash.errors import AuthenticationError, ConnectError, VirtualHostError
from leash.streams.connection import Connection
from leash.streams.uri import parse
from leash.streams.wire import Member


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
    limit = place.timeout if timeout is None else timeout
    context = None
    if place.tls:
        context = tls_context(place.cafile, place.certfile, place.keyfile, place.verify)
    failures: list[ConnectError] = []
    for host, port in sorted(place.hosts, key=lambda at: str(Member(*at)) == avoid):
        deadline = time.monotonic() + limit
        try:
            transport = open_transport(host, port, limit, context, place.server_name)
            try:
                return Connection(place, transport, str(Member(host, port)), name, heartbeat, deadline)
            except BaseException:
                transport.close()
                raise
        except (AuthenticationError, VirtualHostError):
            raise
        except ConnectError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else ConnectError
    raise kind("; ".join(str(failure) for failure in failures))
