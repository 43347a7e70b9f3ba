"""Time inside Leash is whole nanoseconds; users give seconds."""

from __future__ import annotations

from leash.errors import ConfigError

MS = 1_000_000
SECOND = 1_000_000_000

LONGEST = 1_000_000_000
"""Seconds: threads refuse to wait for much longer than that."""


def nanoseconds(argument: str, seconds: float, most: int = LONGEST) -> int:
    """What an argument in seconds means; ConfigError if it makes no sense."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= most  # nor is NaN
    ):
        raise ConfigError(argument, seconds, f"seconds, from 0 to {most}")
    return round(seconds * SECOND)
