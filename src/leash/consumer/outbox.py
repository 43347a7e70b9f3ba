"""Frames on their way to the socket, in the order in which they were decided.

The engine's lock guards `add` and `claim`. The thread that claims writes without the lock and then looks
again, so that a frame that was added meanwhile is not left behind.
"""

from __future__ import annotations

import time
from threading import Lock

from leash.amqp.connection import Connection
from leash.errors import AmqpError

_LOOK, _PATIENCE = 0.0005, 10.0  # seconds


class Outbox:
    """The outbox of one connection."""

    __slots__ = ("_busy", "_claimed", "_connection", "_lock", "_parts", "_unwritten", "_written", "added")

    def __init__(self, connection: Connection, lock: Lock, unwritten: list[Outbox] | None = None) -> None:
        self._connection = connection
        self._lock = lock
        self._unwritten: list[Outbox] = [] if unwritten is None else unwritten
        self._parts: list[bytes] = []
        self._busy = False
        self.added = 0
        """How many parts there were, ever."""
        self._claimed = self._written = 0  # of these

    def add(self, data: bytes) -> None:
        """Add frames of one channel."""
        if not self._parts:
            self._unwritten.append(self)
        self._parts.append(data)
        self.added += 1

    def forget(self, channel: int) -> None:
        """Drop the frames of a channel that ended: another may have its number then. Under the lock."""
        if self._parts:
            number = channel.to_bytes(2, "big")  # in a frame, it follows the type
            self._parts = [part for part in self._parts if part[1:3] != number]

    def claim(self) -> bytes | None:
        """What to write, if no thread is writing."""
        if self._busy or not self._parts:
            return None
        self._busy = True
        self._claimed = self.added
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
            self._written = self._claimed
            self._busy = False
            if not self._parts:
                return
            with self._lock:
                data = self.claim()

    def wait(self, added: int) -> bool:
        """Wait for the thread that writes the first `added` parts. False: the connection is lost, or the
        socket takes nothing.
        """
        deadline = time.monotonic() + _PATIENCE
        while self._written < added and (self._busy or self._parts):
            if self._connection.closed or time.monotonic() > deadline:
                return False
            time.sleep(_LOOK)
        return True


Claim = tuple[Outbox, bytes]


def claim_one(unwritten: list[Outbox]) -> Claim | None:
    """What to write to one connection; where a thread is writing, it takes that along. Under the lock."""
    while unwritten:
        outbox = unwritten.pop()
        if (data := outbox.claim()) is not None:
            return outbox, data
    return None


def write_all(claim: Claim | None, unwritten: list[Outbox], lock: Lock) -> None:
    """Write, one connection after the other. Each is claimed when it is its turn: while one takes nothing,
    another thread may write to the others.
    """
    while claim is not None:
        outbox, data = claim
        outbox.write(data)
        if not unwritten:
            return
        with lock:
            claim = claim_one(unwritten)
