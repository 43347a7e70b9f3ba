"""Connections to the broker, one per process and purpose: Spark forks its Python workers and reuses them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from leash.amqp import Connection, Uri, connect
from leash.amqp.uri import parse
from leash.backoff import Backoff
from leash.errors import AmqpError, AuthenticationError, ConnectError, ConnectionLost, VirtualHostError
from leash.spark.settings import Broker

_PATIENCE = 60.0  # seconds: enough for a broker's restart
_BACKOFF = (0.1, 5.0)

_open: dict[tuple[int, str, str], Connection] = {}
T = TypeVar("T")


def uri_of(broker: Broker, uri: Uri | None = None) -> Uri:
    """The URL, parsed as AMQP unless `uri` is given, with the other options' values in place of its parts."""
    uri = uri or parse(broker.url)
    told: dict[str, Any] = {
        "username": broker.username,
        "password": broker.password,
        "vhost": broker.vhost,
        "cafile": broker.tls_ca_file,
        "certfile": broker.tls_cert_file,
        "keyfile": broker.tls_key_file,
    }
    return replace(uri, **{name: value for name, value in told.items() if value is not None})


def connection(broker: Broker, purpose: str) -> Connection:
    """This process's connection for a purpose, opened again if it was lost."""
    uri = uri_of(broker)
    key = (os.getpid(), purpose, uri.reveal())
    link = _open.get(key)
    if link is None or link.closed:
        lost = link.where if link is not None else ""
        link = _open[key] = connect(uri, name=f"leash spark {purpose}", avoid=lost)
    return link


def patiently(do: Callable[[], T], *also: type[AmqpError], patience: float = _PATIENCE) -> T:
    """Try again while the broker is unavailable, and on the errors in `also`; other errors are raised."""
    passing: tuple[type[AmqpError], ...] = (ConnectError, ConnectionLost, *also)
    backoff, deadline = Backoff(*_BACKOFF), time.monotonic() + patience
    while True:
        try:
            return do()
        except (AuthenticationError, VirtualHostError):
            raise
        except passing:
            pause = backoff.next()
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
