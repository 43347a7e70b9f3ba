"""Looks at queues: how many messages are ready, and how long an answer takes.

A queue that does not answer, for example because its node is frozen, delays nothing: it is not asked again
until it answers.
"""

from __future__ import annotations

import time
from collections import deque

from pamqp import commands

from leash.amqp import Channel, Connection, wire
from leash.amqp.channel import Reply
from leash.consumer.engine import Engine

FIRST, LATER = 10.0, 1.0
"""Seconds to wait for answers: before consuming, and while consuming."""
_ROUND_TRIPS = 5  # the minimum of this many: one slow answer does not count

_Declare = wire.unchecked(commands.Queue.Declare)


class Looks:
    """Looks on a channel of their own; all that are due go together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._trips: deque[int] = deque(maxlen=_ROUND_TRIPS)
        self._silent: dict[str, tuple[Channel, Reply]] = {}

    def connected(self, connection: Connection) -> None:
        """Start afresh with a new connection."""
        self._connection, self._channel = connection, None
        self._trips.clear()
        self._silent.clear()

    def first(self, names: list[str]) -> None:
        """Look at queues before they are consumed."""
        self._ask(names, FIRST)

    def at(self, names: list[str]) -> None:
        """Look at queues when Flow asks for it."""
        self._hear()
        consumed = self._engine.links
        try:
            self._ask([name for name in names if name in consumed and name not in self._silent], LATER)
        finally:
            with self._engine.lock:
                for name in names:
                    self._engine.flow.not_probed(name)

    def _hear(self) -> None:
        """Queues that answered late may be asked again."""
        for name, (channel, reply) in list(self._silent.items()):
            if reply.here():
                del self._silent[name]
                if not any(channel is other for other, _ in self._silent.values()):
                    channel.close()

    def _ask(self, names: list[str], patience: float) -> None:
        assert self._connection is not None
        if self._channel is None or self._channel.closed:
            self._channel = self._connection.channel()
        begin, until = self._engine.clock.now(), time.monotonic() + patience
        with self._connection.together():
            replies = [
                (name, self._channel.ask(_Declare(0, name, True), commands.Queue.DeclareOk)) for name in names
            ]
        for index, (name, reply) in enumerate(replies):
            if not reply.here(until - time.monotonic()):
                self._silent |= {late: (self._channel, reply) for late, reply in replies[index:]}
                self._channel = None
                return
            answer = reply(0)
            now = self._engine.clock.now()
            if index == 0:
                self._trips.append(now - begin)
            ready, consumers = answer.message_count, answer.consumer_count
            with self._engine.lock:
                least, most = min(self._trips), max(self._trips)
                self._engine.flow.probed(now, name, ready, consumers, least, most)
                self._engine.check()
