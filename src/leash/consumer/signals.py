"""SIGINT and SIGTERM: the first signal drains, a second one leaves at once.

They are only noted here: `Consumer.run` acts on them, and so does `leash consume --processes`.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, Self


class Signals:
    """Notes signals while it is open. Only the main thread gets any; in another thread, use `stop`."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.started = False
        """True once there is a session to leave: before, a second signal ends the process here."""
        self._before: list[tuple[int, Any]] = []

    @property
    def urgent(self) -> bool:
        """True after a second signal."""
        return len(self.numbers) > 1

    @property
    def status(self) -> int:
        """The exit status, as a shell gives it for a program that a signal ended."""
        return 128 + self.numbers[-1]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before.append((number, signal.signal(number, self.note)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before:
            signal.signal(number, before)

    def note(self, number: int, _: FrameType | None) -> None:
        """Called by the interpreter, in the main thread."""
        self.numbers.append(number)  # nothing else: the interrupted code may hold any lock
        if self.urgent and not self.started:
            sys.exit(self.status)
