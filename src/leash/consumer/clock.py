"""The clock of a consumer; `leash.testing` replaces it with virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    now: Callable[[], int]
    """Monotonic time in ns."""
    wall: Callable[[], float]
    """Seconds since 1970, like a message's timestamp."""


SYSTEM = Clock(time.monotonic_ns, time.time)
