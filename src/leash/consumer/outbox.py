"""Frames on their way to the socket, in the order in which they were decided.

The engine's lock guards `add` and `claim`. The thread that claims writes without the lock and then looks
again, so that a frame that was added meanwhile is not left behind.
"""

from __future__ import annotations

from threading import Lock

from leash.amqp.connection import Connection
from leash.errors import AmqpError


class Outbox:
    """The outbox of one connection."""

    __slots__ = ("_busy", "_connection", "_lock", "_parts", "_unwritten")

    def __init__(self, connection: Connection, lock: Lock, unwritten: list[Outbox] | None = None) -> None:
        self._connection = connection
        self._lock = lock
        self._unwritten: list[Outbox] = [] if unwritten is None else unwritten
        self._parts: list[bytes] = []
        self._busy = False

    def add(self, data: bytes) -> None:
        if not self._parts:
            self._unwritten.append(self)
        self._parts.append(data)

    def claim(self) -> bytes | None:
        """What to write, if no thread is writing."""
        if self._busy or not self._parts:
            return None
        self._busy = True
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def write(self, data: bytes | None) -> None:
        """Write what was claimed, and what was added meanwhile."""
        while data is not None:
            try:
                self._connection.write(data)
            except (AmqpError, TimeoutError):
                return  # the lost connection is reported elsewhere, and nothing can be settled any more
            self._busy = False
            if not self._parts:
                return
            with self._lock:
                data = self.claim()


Claims = list[tuple[Outbox, bytes]]


def claim_all(unwritten: list[Outbox]) -> Claims | None:
    """What to write to each connection; a thread that is already writing takes it along. Under the lock."""
    if not unwritten:
        return None
    claims = [(outbox, data) for outbox in unwritten if (data := outbox.claim()) is not None]
    unwritten.clear()
    return claims or None


def write_all(claims: Claims) -> None:
    for outbox, data in claims:
        outbox.write(data)
