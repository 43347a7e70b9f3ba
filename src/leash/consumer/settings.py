"""What a user asks for: queues and retries, checked before anything is consumed. Seconds here, ns inside."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from leash.errors import ConfigError
from leash.flow import Lane
from leash.policies.exact import Number, per_second, whole
from leash.policies.shed import Mode
from leash.policies.window.credit import MOST

SECOND = 1_000_000_000
FIXED_WINDOW = 16
"""For single-active and exclusive consumers: cancelling to resize would hand the queue over."""

OnExhausted = Literal["park", "reject", "discard"]


def nanoseconds(argument: str, seconds: float) -> int:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not isfinite(seconds)
        or seconds < 0
    ):
        raise ConfigError(argument, seconds, "seconds, from 0 on")
    return round(seconds * SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    tier: int = 0
    rate: Number | None = None
    """Messages a second."""
    burst: int | None = None
    window: int | Literal["auto"] = "auto"
    shed: Mode = "shrink"
    """What a standing delay may do: observe, shrink the window, return messages, drop them."""
    target: float = 0.005
    interval: float = 0.1
    deadline: float | None = None
    ordered: bool = False
    """One message at a time and in order, for single-active queues; retries wait in place."""
    exclusive: bool = False
    kind: Literal["classic", "quorum"] = "classic"
    """The type that its retry and dead queues get; should be its own."""


@dataclass(frozen=True, slots=True)
class Queue(_Limits):
    """A queue to consume. `quantum` is its share: so many messages (or units of cost) a round."""

    name: str
    quantum: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name.encode()) <= 255:
            raise ConfigError("name", self.name, "a queue's name, of 1 to 255 bytes")
        whole("quantum", self.quantum, 1)
        whole("tier", self.tier, 0)
        if self.rate is not None:
            per_second("rate", self.rate)
        elif self.burst is not None:
            raise ConfigError("burst", self.burst, f"a rate with it, for queue {self.name!r}")
        if self.burst is not None:
            whole("burst", self.burst, 1)
        if self.window != "auto":
            whole("window", self.window, 1, MOST)
        if self.shed not in get_args(Mode):
            raise ConfigError("shed", self.shed, f"one of {', '.join(get_args(Mode))}")
        if self.shed == "drop" and self.deadline is None:
            raise ConfigError("deadline", None, "seconds: dropping loses messages, so it needs a deadline")
        if self.kind not in ("classic", "quorum"):
            raise ConfigError("kind", self.kind, "classic or quorum")
        nanoseconds("deadline", self.deadline or 0)
        if nanoseconds("target", self.target) > nanoseconds("interval", self.interval):
            raise ConfigError("target", self.target, f"at most the interval, {self.interval:g} s")

    @property
    def sole(self) -> bool:
        return self.ordered or self.exclusive

    def lane(self, least: int = 1) -> Lane:
        """The lane that Flow makes of it; `least` is the window that a batch handler needs."""
        window: int | None = None if self.window == "auto" else self.window
        if window is None and self.sole:
            window = FIXED_WINDOW
        return Lane(
            self.name,
            self.quantum,
            self.tier,
            self.rate,
            1 if self.burst is None else self.burst,
            window,
            self.shed,
            max(1, nanoseconds("target", self.target)),
            max(1, nanoseconds("interval", self.interval)),
            None if self.deadline is None else max(1, nanoseconds("deadline", self.deadline)),
            None,
            self.ordered,
            self.sole,
            least,
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """Try a failing message `tries` times in all, `delay` seconds apart.

    With a `factor` above 1 each wait is that much longer than the one before, up to `cap` seconds. Every
    different wait is a queue of its own on the broker.
    """

    tries: int = 5
    delay: float = 2.0
    factor: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        whole("tries", self.tries, 1)
        nanoseconds("delay", self.delay)
        nanoseconds("cap", self.cap)
        if not isinstance(self.factor, int | float) or not 1 <= self.factor <= 1000:
            raise ConfigError("factor", self.factor, "a number from 1 to 1000")

    def wait(self, failures: int) -> int | None:
        """Milliseconds to wait after so many failures; None: no more tries."""
        if failures >= self.tries:
            return None
        grown = self.delay * float(self.factor) ** min(failures - 1, 200)
        return round(1000 * min(grown, max(self.cap, self.delay)))

    def waits(self) -> list[int]:
        """Every different wait."""
        found: list[int] = []
        for failures in range(1, min(self.tries, 1000)):
            wait = self.wait(failures)
            if wait is not None and wait not in found:
                found.append(wait)
        return found
