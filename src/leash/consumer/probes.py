"""Looks at queues: how many messages are ready, and how long an answer takes.

A queue that does not answer, as may happen when its node is frozen, holds up nothing: it is left alone until
it does.
"""

from __future__ import annotations

import time
from collections import deque

from pamqp import commands

from leash.amqp import Channel, Connection, wire
from leash.amqp.channel import Reply
from leash.consumer.engine import Engine

FIRST, LATER = 10.0, 1.0
"""Seconds to wait for answers: before anything is consumed, and while there are other things to do."""
_ROUND_TRIPS = 5  # the least of so many: one slow answer is not a longer way

_Declare = wire.unchecked(commands.Queue.Declare)


class Looks:
    """On a channel of their own, all that are due in one go."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._trips: deque[int] = deque(maxlen=_ROUND_TRIPS)
        self._silent: dict[str, tuple[Channel, Reply]] = {}

    def connected(self, connection: Connection) -> None:
        """All begins anew."""
        self._connection, self._channel = connection, None
        self._trips.clear()
        self._silent.clear()

    def first(self, names: list[str]) -> None:
        """Before they are consumed."""
        self._ask(names, FIRST)

    def at(self, names: list[str]) -> None:
        """When Flow wants to know."""
        self._hear()
        consumed = self._engine.links
        try:
            self._ask([name for name in names if name in consumed and name not in self._silent], LATER)
        finally:
            with self._engine.lock:
                for name in names:
                    self._engine.flow.not_probed(name)

    def _hear(self) -> None:
        """Whoever answered at last may be asked again."""
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
