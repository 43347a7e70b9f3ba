"""How often a failing message is tried, and how long it waits in between."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from leash.errors import ConfigError, Undecodable
from leash.policies.exact_numbers import Number, whole
from leash.policies.retry_budget import RetryBudget
from leash.units import nanoseconds

Errors = type[BaseException] | tuple[type[BaseException], ...]

STEPS, MIDDLE = 5, 2
"""Every different wait is a queue, so jitter has a few steps."""

LONGEST_WAIT = 4_294_967
"""Seconds: a retry queue's `x-message-ttl` is at most 2**32 - 1 ms."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failing message is tried. Every distinct wait needs its own queue on the broker.

    Arguments:
        tries: The number of tries, including the first. Default: 5.
        delay: Seconds before the second try. Default: 2.
        factor: Each wait is this many times as long as the one before. Default: 1.
        cap: The longest wait in seconds, unless `delay` is longer. Default: 3600.
        on: The exceptions that are worth another try. After any other there is none. Default: all.
        give_up_on: Exceptions that are not worth another try, whatever `on` says. Default: none.
        jitter: The spread of the waits, as a fraction of each: 0.1 is 90 to 110 %, by five queues instead
            of one. Default: 0.
        budget: Retries are at most this share of successes, 0.1 for example, and one a second; a message that
            is due beyond that waits for one more delay, uncounted. By queue and process. Default: None, no
            limit.
    """

    tries: int = 5
    delay: float = 2.0
    factor: float = 1.0
    cap: float = 3600.0
    on: Errors = BaseException
    give_up_on: Errors = ()
    jitter: float = 0.0
    budget: Number | None = None

    def __post_init__(self) -> None:
        whole("tries", self.tries, 1)
        nanoseconds("delay", self.delay, LONGEST_WAIT)
        nanoseconds("cap", self.cap, LONGEST_WAIT)
        numeric = isinstance(self.factor, int | float) and not isinstance(self.factor, bool)
        if not numeric or not 1 <= self.factor <= 1000:
            raise ConfigError("factor", self.factor, "a number from 1 to 1000")
        numeric = isinstance(self.jitter, int | float) and not isinstance(self.jitter, bool)
        if not numeric or not 0 <= self.jitter <= 0.5:
            raise ConfigError("jitter", self.jitter, "a number from 0 to 0.5, a part of the wait")
        for name, errors in (("on", self.on), ("give_up_on", self.give_up_on)):
            kinds = errors if isinstance(errors, tuple) else (errors,)
            if not all(isinstance(each, type) and issubclass(each, BaseException) for each in kinds):
                raise ConfigError(name, errors, "an exception, or a tuple of them")
        if self.budget is not None:
            RetryBudget(self.budget)
            if not self.delay:
                raise ConfigError("budget", self.budget, "a delay above 0 with it")

    def wants(self, error: BaseException) -> bool:
        """True if another try may help. A body that cannot be decoded never will be."""
        if isinstance(error, Undecodable):
            return False
        return isinstance(error, self.on) and not isinstance(error, self.give_up_on)

    def wait(self, failures: int, draw: int = MIDDLE) -> int | None:
        """Milliseconds to wait after this many failures, one of `waits`; None: no more tries.

        `draw` is any number: with jitter, it decides which of the five waits it is.
        """
        failures = max(1, failures)  # from a header, which any publisher may write
        if failures >= self.tries:
            return None
        try:
            growth = float(self.factor) ** min(failures - 1, 200)
        except OverflowError:
            growth = sys.float_info.max
        spread = 1 + self.jitter * (draw % STEPS - MIDDLE) / MIDDLE
        return round(1000 * spread * min(self.delay * growth, max(self.cap, self.delay)))

    def waits(self) -> list[int]:
        """Every distinct wait, in milliseconds."""
        found: list[int] = []
        for failures in range(1, min(self.tries, 1000)):
            for draw in range(STEPS):
                wait = self.wait(failures, draw)
                if wait is not None and wait not in found:
                    found.append(wait)
        return found


def checked(retry: Retry | None) -> Retry:
    """An argument named `retry`."""
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError("retry", retry, "a Retry, or None for one try")
    return retry or Retry(tries=1)
