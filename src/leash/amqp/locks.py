"""A lock that ends with its holder's connection, whatever happens: an exclusive queue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from leash.amqp import topology
from leash.amqp.connection import Connection
from leash.errors import NotFound, ResourceLocked

_EVERY = 0.1  # seconds


@contextmanager
def exclusively(connection: Connection, lock: str, patience: float) -> Iterator[bool]:
    """Hold the lock; yields False if another process holds it for all of `patience` seconds.

    The lock of a holder that died stays until the broker has noticed.
    """
    deadline = time.monotonic() + patience
    while not _locked(connection, lock):
        if time.monotonic() >= deadline:
            yield False
            return
        time.sleep(_EVERY)
    try:
        yield True
    finally:
        if not connection.closed:
            with connection.channel() as channel:
                topology.delete_queue(channel, lock)


def _locked(connection: Connection, lock: str) -> bool:
    try:
        with connection.channel() as channel:
            topology.declare_queue(channel, lock, durable=False, exclusive=True)
    except (ResourceLocked, NotFound):  # not found: its node is gone, and the other nodes clean up
        return False
    return True
