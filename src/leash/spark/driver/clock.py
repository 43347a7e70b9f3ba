"""The driver's clock."""

from __future__ import annotations

import time
from collections.abc import Callable


def forward_clock() -> Callable[[], int]:
    """Wall time, so that token states are valid after a restart, but it never goes back."""
    wall, steady = time.time_ns(), time.monotonic_ns()
    return lambda: wall + time.monotonic_ns() - steady
