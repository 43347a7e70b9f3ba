"""Time inside Leash is whole nanoseconds; users give seconds."""

from __future__ import annotations

from leash.errors import ConfigError

MS = 1_000_000
SECOND = 1_000_000_000

LONGEST = 1_000_000_000
"""Seconds: threads cannot wait for much longer."""


def nanoseconds(argument: str, seconds: float, most: int = LONGEST) -> int:
    """An argument in seconds as nanoseconds; ConfigError if it is out of range."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= most  # False for NaN too
    ):
        raise ConfigError(argument, seconds, f"seconds, from 0 to {most}")
    return round(seconds * SECOND)
