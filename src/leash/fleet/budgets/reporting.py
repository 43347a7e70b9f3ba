"""What code outside a consumer takes from a budget, reported to the fleet once a second.

The same law as for consumers: a separate thread and connection, and never a reason to fail or to wait. Code
that has a budget open for less than a second reports nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from leash.amqp.broadcast import STATS, VERSION, Broadcast
from leash.amqp.uri import Uri
from leash.logfmt import logger

log = logger("leash.fleet")

_EVERY = 1.0


class TillReports:
    """The reports of one open budget. `told` gives its numbers, by the budget's name."""

    def __init__(self, uri: Uri, name: str, told: Callable[[], dict[str, Any]]) -> None:
        self._told = told
        self._who = {
            "v": VERSION,
            "kind": "budget",
            "id": secrets.token_hex(6),
            "name": name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._broadcast = Broadcast(uri, f"{name} stats")
        self._began = time.monotonic()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leash-reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread ends by itself."""
        self._left.set()

    def _run(self) -> None:
        while not self._left.wait(_EVERY):
            try:
                report = {"seconds": round(time.monotonic() - self._began, 3), "budgets": self._told()}
                self._broadcast.send(STATS, json.dumps(self._who | report, separators=(",", ":")).encode())
            except Exception:  # whatever it is, the caller must not notice
                log.exception("event=report_failed")
        self._broadcast.close()
