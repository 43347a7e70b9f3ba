"""What a user asks for: queues and retries, checked before anything is consumed. Seconds here, ns inside."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from leash.errors import ConfigError
from leash.flow import Lane
from leash.policies.exact import Number, per_second, whole
from leash.policies.shed import Mode
from leash.policies.window.credit import MOST

SECOND = 1_000_000_000
FIXED_WINDOW = 16
"""For single-active and exclusive consumers: cancelling to resize would hand the queue over."""

LONGEST = 1_000_000_000
"""Seconds: threads refuse to wait for much longer than that."""
LONGEST_WAIT = 4_294_967
"""Seconds: a retry queue's `x-message-ttl` is at most 2**32 - 1 ms."""

OnExhausted = Literal["park", "reject", "discard"]


def nanoseconds(argument: str, seconds: float, most: int = LONGEST) -> int:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= most  # nor is NaN
    ):
        raise ConfigError(argument, seconds, f"seconds, from 0 to {most}")
    return round(seconds * SECOND)


def text(argument: str, value: str, allowed: str, least: int = 1, most: int | None = None) -> str:
    """A string of so many bytes; half a surrogate pair has none."""
    try:
        size = len(value.encode())
    except (AttributeError, UnicodeEncodeError):
        size = -1
    if not isinstance(value, str) or size < least or (most is not None and size > most):
        raise ConfigError(argument, value, allowed)
    return value


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
        text("name", self.name, "a queue's name, of 1 to 255 bytes", most=255)
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
        for argument, value in (("ordered", self.ordered), ("exclusive", self.exclusive)):
            if not isinstance(value, bool):
                raise ConfigError(argument, value, "True or False")
        if self.deadline is not None:
            nanoseconds("deadline", self.deadline)
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
        nanoseconds("delay", self.delay, LONGEST_WAIT)
        nanoseconds("cap", self.cap, LONGEST_WAIT)
        numeric = isinstance(self.factor, int | float) and not isinstance(self.factor, bool)
        if not numeric or not 1 <= self.factor <= 1000:
            raise ConfigError("factor", self.factor, "a number from 1 to 1000")

    def wait(self, failures: int) -> int | None:
        """Milliseconds to wait after so many failures, one of `waits`; None: no more tries."""
        failures = max(1, failures)  # it comes from a header, which anybody may write
        if failures >= self.tries:
            return None
        try:
            growth = float(self.factor) ** min(failures - 1, 200)
        except OverflowError:
            growth = sys.float_info.max
        return round(1000 * min(self.delay * growth, max(self.cap, self.delay)))

    def waits(self) -> list[int]:
        """Every different wait."""
        found: list[int] = []
        for failures in range(1, min(self.tries, 1000)):
            wait = self.wait(failures)
            if wait is not None and wait not in found:
                found.append(wait)
        return found


def queues_of(asked: object) -> list[Queue]:
    """What a consumer is asked to consume: names, or queues with settings."""
    allowed = "a list of names and Queues"
    if isinstance(asked, str | bytes | Mapping):  # they can be iterated over, but not as was meant
        raise ConfigError("queues", asked, allowed)
    try:
        found = list(asked)  # type: ignore[call-overload]
    except TypeError:
        raise ConfigError("queues", asked, allowed) from None
    for queue in found:
        if not isinstance(queue, str | Queue):
            raise ConfigError("queues", queue, allowed)
    return [Queue(queue) if isinstance(queue, str) else queue for queue in found]
