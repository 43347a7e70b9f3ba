"""Log lines that are noted under the engine's lock, and written later without it."""

from __future__ import annotations

from collections import deque

from leash.logfmt import logger

log = logger("leash.consumer")


class Notes:
    """The last thousand of them."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str, dict[str, object]]] = deque(maxlen=1000)

    def add(self, level: int, event: str, **fields: object) -> None:
        """Note a log line; `emit` writes it."""
        self._lines.append((level, event, fields))

    def emit(self) -> None:
        """Write the lines that were noted. Not under the lock."""
        while self._lines:
            level, event, fields = self._lines.popleft()
            log.log(level, f"event={event}" + "".join(f" {name}=%r" for name in fields), *fields.values())
