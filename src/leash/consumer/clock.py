"""Where a consumer takes the time from; `leash.testing` puts virtual time in its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    now: Callable[[], int]
    """Ns that never go back."""
    wall: Callable[[], float]
    """Seconds since 1970, as in a message's timestamp."""


SYSTEM = Clock(time.monotonic_ns, time.time)
