"""Whose turn it is: of several readers of one name, one at a time is active (RabbitMQ 3.11).

The broker's news come in a thread of their own, and are served by the thread that reads: what belongs to a
turn is never touched by two threads. The broker waits for the answer, and only then tells the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from leash.errors import AmqpError, StreamError
from leash.streams import wire
from leash.streams.connection import Connection
from leash.streams.subscription import Activated, Subscription, single_active
from leash.streams.wire import Offset


class News(NamedTuple):
    """Whether we are active from now on, and what to answer."""

    active: bool
    answer: Future[Offset]


class Turns:
    """The turns of one reader.

    `begin` says where a turn begins. `end` ends it in good order: the next reader begins when it returns.
    `lost` tells that the connection is gone, so that another one may be active already.
    """

    def __init__(
        self,
        name: str,
        super_stream: str,
        begin: Callable[[Connection], Offset],
        end: Callable[[], object],
        lost: Callable[[], object],
    ) -> None:
        self.properties = single_active(name, super_stream)
        self.begin = begin
        self.end = end
        self.active = False
        self._lost = lost
        self._news: deque[News] = deque()
        self._line = 0
        self._lock = threading.Lock()

    def listen(self) -> Activated:
        """For a new subscription: what the broker calls. News for an older one are no longer good."""
        self.lose()
        line = self._line

        def told(active: bool) -> Offset:
            answer: Future[Offset] = Future()
            with self._lock:
                if line != self._line:
                    raise StreamError("", "the connection is gone")
                self._news.append(News(active, answer))
            return answer.result()

        return told

    def serve(self, subscription: Subscription) -> Offset | None:
        """Serve what the broker said last, if anything; returns where a turn begins, if one does."""
        if not self._news:
            return None
        active, answer = self._news.popleft()
        try:
            if active:
                with suppress(AmqpError):
                    while subscription.take(0.0):
                        pass  # what came in an earlier turn
                begin = self.begin(subscription.connection)
            else:
                self.end()
        except BaseException as error:
            answer.set_exception(error)
            raise
        self.active = active
        answer.set_result(begin if active else wire.NONE)
        return begin if active else None

    def lose(self) -> None:
        """The connection is gone, and all that was said on it."""
        with self._lock:
            self._line += 1
            while self._news:
                self._news.popleft().answer.set_exception(StreamError("", "the connection is gone"))
        if self.active:
            self.active = False
            self._lost()
