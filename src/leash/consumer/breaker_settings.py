"""When a lane slows down because what its handler calls is down."""

from __future__ import annotations

from dataclasses import dataclass

from leash.errors import ConfigError
from leash.policies.breaker import Circuit
from leash.policies.exact_numbers import whole
from leash.units import MS, nanoseconds


@dataclass(frozen=True, slots=True)
class Breaker:
    """Slows a queue to single probes while its handler fails again and again; see docs/consumer.md.

    Arguments:
        failures: It opens when this many messages in a row failed for the first time, and closes after as
            many successes. Default: 5.
        probe: The longest time between two probes, in seconds. The first one comes after a tenth of a
            second, and each failure doubles the wait. Default: 1.
        patience: For this many seconds after it opened, failures do not count as tries. Default: 3600.
    """

    failures: int = 5
    probe: float = 1.0
    patience: float = 3600.0

    def __post_init__(self) -> None:
        whole("failures", self.failures, 1)
        if not nanoseconds("probe", self.probe):
            raise ConfigError("probe", self.probe, "more than 0 seconds")
        nanoseconds("patience", self.patience)

    def circuit(self) -> Circuit:
        return Circuit(
            self.failures,
            first=100 * MS,
            longest=nanoseconds("probe", self.probe),
            patience=nanoseconds("patience", self.patience),
        )


def checked_breaker(breaker: Breaker | None) -> Breaker | None:
    if breaker is not None and not isinstance(breaker, Breaker):
        raise ConfigError("breaker", breaker, "a Breaker, or None for none")
    return breaker
