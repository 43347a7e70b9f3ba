"""Parses the values of options. Every function raises ValueError on text that it cannot read."""

from __future__ import annotations

import json
import re
from datetime import datetime
from fractions import Fraction

from leash.units import SECOND

_TIME = {"ms": SECOND // 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86400 * SECOND}
_WORDS = ("earliest", "latest")
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


def names(text: str) -> tuple[str, ...]:
    """`emea,apac`: one at least, none empty."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ValueError(text)
    return found


def moment(text: str) -> int:
    """A time with its zone, or milliseconds since 1970; in these."""
    if text.strip().isdecimal():
        return int(text)
    at = datetime.fromisoformat(text.strip())
    if at.tzinfo is None:
        raise ValueError(text)
    return round(at.timestamp() * 1000)


def offsets(text: str) -> str | dict[str, int | str]:
    """`earliest`, `latest`, or what each of some streams has: one of these words, or an offset."""
    word = text.strip().lower()
    if word in _WORDS:
        return word
    table = json.loads(text)
    if not isinstance(table, dict) or not all(map(_is_offset, table.values())):
        raise ValueError(text)
    return table


def _is_offset(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return whole or value in _WORDS


def _split(text: str) -> tuple[Fraction, str]:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        raise ValueError(text)
    return Fraction(match[1]), match[2].lower()
