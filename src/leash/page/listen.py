"""The page's sources of reports: a virtual host's exchange, or one consumer of this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from leash.amqp.broadcast import CONTROL, STATS, VERSION, Broadcast
from leash.amqp.uri import Uri
from leash.consumer.consumer import Consumer
from leash.consumer.reporting import EVERY, Reporter, alive, identity, pace, report
from leash.errors import ConfigError

Heard = Callable[[float, Any], None]


class Exchange:
    """Reads `leash.stats` by an exclusive queue, and sends requests to `leash.control`."""

    thrifty = False
    """True if the page shares its process with a consumer, which must not suffer."""

    def __init__(self, uri: str | Uri, heard: Heard) -> None:
        self._heard = heard
        self._broadcast = Broadcast(uri, "leash page", STATS, self._hear)
        self._sending = threading.Lock()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be heard."""
        with self._sending:
            self._broadcast.ready()
            return self._broadcast.trouble

    def _hear(self, body: bytes) -> None:
        try:
            told = json.loads(body)
        except (ValueError, RecursionError):
            told = None
        self._heard(time.time(), told)

    def ask(self, request: dict[str, Any]) -> bool:
        """Send a request to all processes; those that it is meant for obey."""
        with self._sending:
            return self._broadcast.send(CONTROL, json.dumps({"v": VERSION, **request}).encode())

    def close(self) -> None:
        with self._sending:
            self._broadcast.close()


class Own:
    """Looks at a consumer of this process once a second, or less often where that would cost too much; needs
    no permission of the broker's.
    """

    thrifty = True

    def __init__(self, consumer: Consumer, heard: Heard) -> None:
        self._consumer = consumer
        self._heard = heard
        self._who = identity(consumer)
        self._reporter = Reporter(consumer)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leash-page-look", daemon=True)
        self._thread.start()

    trouble: str | None = None

    def _run(self) -> None:
        due = 0.0
        while not self._left.wait(EVERY):
            if time.monotonic() < due:
                self._heard(time.time(), alive(self._who))
                continue
            began = time.thread_time()
            try:
                self._heard(time.time(), self._who | report(self._consumer.stats()))
            except ConfigError:  # not started yet
                continue
            due = time.monotonic() + pace(time.thread_time() - began) - EVERY / 2

    def ask(self, request: dict[str, Any]) -> bool:
        """Do it here."""
        self._reporter.act(json.dumps({"v": VERSION, **request, "to": None}).encode())
        return True

    def close(self) -> None:
        self._left.set()
        self._thread.join(5)
