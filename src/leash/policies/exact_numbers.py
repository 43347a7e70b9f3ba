"""Exact numbers: a whole number stays whole, a decimal becomes the fraction that it is written as."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from operator import index

from leash.errors import ConfigError

Number = int | float | str | Fraction | Decimal

_NUMBERS = (int, float, str, Fraction, Decimal)


def whole(argument: str, value: int, least: int, most: int | None = None) -> int:
    """A whole number within bounds; any integer type (numpy's too), but neither a bool nor 3.0."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(argument, value, f"a whole number {bounds}")
    return number


def fraction(argument: str, value: Number, allowed: str) -> Fraction:
    """The exact value: a float counts as it prints, so 0.1 is 1/10 and not the nearest binary number."""
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise ConfigError(argument, value, allowed)
    try:
        return Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise ConfigError(argument, value, allowed) from None


def per_second(argument: str, value: Number) -> Fraction:
    """A rate; above one per nanosecond the clock could not tell two admissions apart."""
    allowed = "a number per second, above 0 and up to 1000000000, such as 50, 0.5 or '1/3'"
    rate = fraction(argument, value, allowed)
    if not 0 < rate <= 1_000_000_000:
        raise ConfigError(argument, value, allowed)
    return rate
