"""Parses the values of options. Every function raises ValueError on text that it cannot read."""

from __future__ import annotations

import re
from fractions import Fraction

from leash.units import SECOND

_TIME = {"ms": SECOND // 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86400 * SECOND}
_TIME_WORDS = {
    "millisecond": "ms",
    "milliseconds": "ms",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "min": "m",
    "minute": "m",
    "minutes": "m",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
}
_SIZE = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def count(text: str) -> int:
    """A whole number of at least 1; underscores may group digits."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def duration(text: str) -> int:
    """`250ms`, `5s` or `10 minutes`, in nanoseconds. A number without a unit is refused as ambiguous."""
    number, unit = _split(text)
    unit = _TIME_WORDS.get(unit, unit)
    if unit not in _TIME or number <= 0:
        raise ValueError(text)
    return int(number * _TIME[unit])


def size(text: str) -> int:
    """`4096`, `64m` or `1g`, in bytes."""
    number, unit = _split(text)
    if unit not in _SIZE or number * _SIZE[unit] < 1:
        raise ValueError(text)
    return int(number * _SIZE[unit])


def rate(text: str) -> Fraction:
    """Messages per second, `500` or `0.5`, exactly."""
    value = Fraction(text.strip())
    if value <= 0:
        raise ValueError(text)
    return value


def flag(text: str) -> bool:
    """`true` or `false`, in any case."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _split(text: str) -> tuple[Fraction, str]:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        raise ValueError(text)
    return Fraction(match[1]), match[2].lower()
