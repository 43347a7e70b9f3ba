"""How much credit keeps the workers busy: the formulas, without state.

A message that is acked now is replaced one round trip later. So c workers with service time S need c
messages in work and c * R / S in flight; with less, workers idle; with more, messages wait. Times are whole
numbers of one unit, which is ns if a rate is involved.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isqrt

from leash.errors import ConfigError
from leash.policies.exact_numbers import Number, fraction, per_second, whole
from leash.units import SECOND

MOST = 65535
"""prefetch-count is a 16-bit field, and 0 would mean no limit at all."""

SPREAD = 2
"""How many standard deviations of the work in one round trip are held ready."""


def prefetch_window(
    round_trip: int,
    service: int,
    workers: int = 1,
    ack_batch: int = 1,
    cv: Number = 0,
    rate: Number | None = None,
    burst: int = 1,
) -> int:
    """The least window that keeps `workers` busy on a queue that never runs dry.

    `cv` is the standard deviation of the service time over its mean. With a `rate` (per second), tokens set
    the pace if they are slower than the workers, and a whole `burst` is held ready.
    """
    allowed = "a number of at least 0"
    variation = fraction("cv", cv, allowed)
    if variation < 0:
        raise ConfigError("cv", cv, allowed)
    return model(
        whole("round_trip", round_trip, 0),
        whole("service", service, 0),
        whole("workers", workers, 1),
        whole("ack_batch", ack_batch, 1),
        variation * variation,
        None if rate is None else per_second("rate", rate),
        whole("burst", burst, 1),
    )


def model(
    round_trip: int,
    service: int,
    workers: int,
    ack_batch: int,
    cv2: Fraction,
    rate: Fraction | None,
    burst: int,
) -> int:
    """`prefetch_window` for checked arguments, and with the square of cv."""
    service = max(1, service)
    pace = Fraction(service, workers)
    if rate is not None and SECOND / rate > pace:
        pace = SECOND / rate
        cv2 = Fraction(0)
    on_their_way = round_trip / pace
    # In work: c messages, or as many as the tokens admit during one service time, but at least one.
    in_work = max(service / pace, Fraction(1))
    least = ceil_with_root(in_work + on_their_way, SPREAD * SPREAD * cv2 * on_their_way)
    held_ready = burst - 1 if rate is not None else 0
    return clamp(least + held_ready + ack_batch - 1)


def lane_window(
    quantum: int,
    quanta: int,
    round_trip: int,
    service: int,
    workers: int = 1,
    ack_batch: int = 1,
    percent: int = 100,
) -> int:
    """The least window for one lane of a fair pool. `quanta` is the sum over all lanes of its tier, which has
    `percent` of the pool.

    Its share of the pool's credit is enough on average; a whole turn, or as much of it as fits into one round
    trip, keeps it from running dry in mid-turn.
    """
    whole("quantum", quantum, 1)
    whole("quanta", quanta, quantum)
    service = max(1, whole("service", service, 0))
    cycle = whole("round_trip", round_trip, 0) + service
    pool = Fraction(whole("workers", workers, 1) * cycle, service)
    share = ceil(pool * quantum * percent / (100 * quanta))
    return clamp(max(share, min(quantum, ceil(pool))) + whole("ack_batch", ack_batch, 1) - 1)


def clamp(window: int) -> int:
    return min(MOST, max(1, window))


def ceil_with_root(number: Fraction, square: Fraction) -> int:
    """The least whole number that is at least number + sqrt(square), found without a float."""
    least = number.numerator // number.denominator + isqrt(square.numerator // square.denominator)
    while (rest := least - number) < 0 or rest * rest < square:
        least += 1
    return least


def utilisation(window: int, round_trip: int, service: int) -> float:
    """The share of its time that one worker is busy, for a fixed service time."""
    service = max(1, service)
    return min(1.0, window * service / (round_trip + service))


def standing_wait(window: int, round_trip: int, service: int, workers: int = 1) -> int:
    """How long each message waits in the local buffer, for a fixed service time."""
    return max(0, (window - workers) * service // workers - round_trip)
