"""A query's reports to the fleet, one per batch: sent by a thread, dropped if they cannot be sent."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from typing import Any

from leash.amqp.broadcast import STATS, VERSION, Broadcast
from leash.logfmt import logger
from leash.spark import connections
from leash.spark.settings import SourceSettings

log = logger(__name__)


class Reports:
    """The reports of one query. Its thread starts with the first batch."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(self, run: str, report: dict[str, Any]) -> None:
        """Report a batch. Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="leash-reporter", daemon=True)
            self._thread.start()
        name = self._settings.staging_location.rstrip("/").rpartition("/")[2]
        who = {"v": VERSION, "kind": "spark", "id": run, "name": name}
        self._waiting.put(who | {"host": socket.gethostname(), "pid": os.getpid()} | report)

    def stop(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        broadcast = Broadcast(connections.uri_of(self._settings.broker), "leash spark stats")
        while (report := self._waiting.get()) is not None:
            try:
                broadcast.send(STATS, json.dumps(report, separators=(",", ":")).encode())
            except Exception:  # whatever it is, the query goes on as if nothing were
                log.exception("event=report_failed")
        broadcast.close()
