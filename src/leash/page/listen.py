"""The page's sources of reports: a virtual host's exchange, or one consumer of this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from leash.amqp.broadcast import CONTROL, STATS, Broadcast
from leash.amqp.uri import Uri
from leash.consumer.consumer import Consumer
from leash.consumer.reporting import EVERY, VERSION, Reporter, identity, report
from leash.errors import ConfigError

Heard = Callable[[float, Any], None]


class Exchange:
    """Reads `leash.stats` by an exclusive queue, and sends requests to `leash.control`."""

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
        except ValueError:
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
    """Looks at a consumer of this process once a second; needs no permission of the broker's."""

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
        while not self._left.wait(EVERY):
            try:
                self._heard(time.time(), self._who | report(self._consumer.stats()))
            except ConfigError:  # not started yet
                continue

    def ask(self, request: dict[str, Any]) -> bool:
        """Do it here."""
        self._reporter.act(json.dumps({"v": VERSION, **request, "to": None}).encode())
        return True

    def close(self) -> None:
        self._left.set()
        self._thread.join(5)
