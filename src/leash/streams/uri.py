"""Where the stream port is.

rabbitmq-stream[+tls]://user:password@host[:5552]/virtual-host, with the options of an AMQP URI. An amqp[s]://
URI works too: its hosts, on the stream port.
"""

from __future__ import annotations

from dataclasses import replace

from leash.amqp import uri as amqp
from leash.amqp.uri import Scheme, Uri
from leash.errors import ConfigError

STREAM = (Scheme("rabbitmq-stream", 5552, False), Scheme("rabbitmq-stream+tls", 5551, True))


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
