"""A budget's arguments, checked: its terms, the numbers on which all processes that name it agree."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from leash.errors import ConfigError
from leash.fleet.budgets.rate_to_tokens import MOST_TOKENS, Shape, shape_of
from leash.policies.exact_numbers import Number, fraction, whole
from leash.units import nanoseconds

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_RATE = "a number above 0 and up to 1000000000, such as 50, 0.5 or '1/3'"
_MOST = 1_000_000_000
LONGEST = 4_000_000
"""The longest time in seconds for which a broker sets a token aside (it counts ms in 32 bits)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one budget; `leash.fleet.Budget` explains the arguments."""

    name: str
    _: KW_ONLY
    rate: Number | None = None
    burst: int | None = None
    per: Number = 1
    cost: str = "count"
    at_once: int | None = None
    lease: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError("name", self.name, "a budget's name: 1 to 200 letters, digits, '.', '_' or '-'")
        if (self.rate is None) == (self.at_once is None):
            raise ConfigError(
                "rate", self.rate, f"budget {self.name!r} needs a rate, or at_once, and not both"
            )
        if self.at_once is not None:
            whole("at_once", self.at_once, 1, MOST_TOKENS)
            if self.burst is not None:
                raise ConfigError("burst", self.burst, f"a rate with it, for budget {self.name!r}")
        if self.burst is not None:
            whole("burst", self.burst, 1, _MOST)
        if not 10_000_000 <= nanoseconds("lease", self.lease) <= 60_000_000_000:
            raise ConfigError("lease", self.lease, "seconds, from 0.01 to 60")
        if self.cost != "count" and not (
            isinstance(self.cost, str) and self.cost.startswith("header:") and len(self.cost) > len("header:")
        ):
            raise ConfigError("cost", self.cost, "count or header:<name>")
        if self.shape.period > LONGEST * 1000:
            raise ConfigError(
                "burst", self.burst, f"a burst that the rate fills within {LONGEST} seconds, about 46 days"
            )

    @property
    def per_second(self) -> Fraction | None:
        """The rate in permits per second."""
        if self.rate is None:
            return None
        rate, per = fraction("rate", self.rate, _RATE), fraction("per", self.per, "seconds, above 0")
        if not 0 < rate <= _MOST:
            raise ConfigError("rate", self.rate, _RATE)
        if not 0 < per <= LONGEST:
            raise ConfigError("per", self.per, f"seconds, above 0 and up to {LONGEST}")
        if rate / per > _MOST:
            raise ConfigError("rate", self.rate, f"at most {_MOST} per second")
        return rate / per

    @property
    def size(self) -> int:
        """The burst, or `at_once`."""
        if self.at_once is not None:
            return self.at_once
        rate = self.per_second
        assert rate is not None
        return max(1, ceil(rate)) if self.burst is None else self.burst

    @property
    def shape(self) -> Shape:
        """Its tokens."""
        return shape_of(self.per_second, self.size)

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers on which all processes must agree, as plain JSON."""
        rate = self.per_second
        if rate is None:
            return {"at_once": self.size}
        return {"rate": str(rate), "burst": self.size, "lease": self.lease}


def spoken(numbers: dict[str, Any]) -> str:
    """The numbers of a budget in words."""
    if "at_once" in numbers:
        return f"at_once={numbers['at_once']}"
    return f"rate={numbers['rate']} per second, burst={numbers['burst']}, lease={numbers['lease']:g}"
