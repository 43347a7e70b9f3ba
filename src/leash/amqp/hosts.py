"""The hosts of a URI, one after the other, until one accepts us: for AMQP and for the stream protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from leash.amqp.transport import Transport, open_transport, tls_context
from leash.amqp.uri import Uri
from leash.errors import AuthenticationError, ConnectError, VirtualHostError

T = TypeVar("T")


def first_host(
    place: Uri, timeout: float | None, avoid: str, log_in: Callable[[Transport, str, float], T]
) -> T:
    """What `log_in` makes of a transport, where it leads and a deadline, for the first host that works.

    Each host has `timeout` seconds. Refused credentials or a missing virtual host end the search, because
    every node of a cluster would answer the same. `avoid` is tried last.
    """
    limit = place.timeout if timeout is None else timeout
    context = None
    if place.tls:
        context = tls_context(place.cafile, place.certfile, place.keyfile, place.verify)
    failures: list[ConnectError] = []
    hosts = {f"{host}:{port}": (host, port) for host, port in place.hosts}
    for where in sorted(hosts, key=lambda where: where == avoid):
        deadline = time.monotonic() + limit
        try:
            transport = open_transport(*hosts[where], limit, context, place.server_name)
            try:
                return log_in(transport, where, deadline)
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
