"""The credit formulas, with the published numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.policies import TokenBucket, Window, prefetch_window
from leash.policies.window.credit import ceil_with_root, lane_window, standing_wait, utilisation
from tests.policies.windowsim import MS, SECOND, Simulation, always


def test_the_window_is_the_round_trip_and_the_service_over_the_service() -> None:
    assert prefetch_window(100 * MS, 4 * MS) == 26
    assert prefetch_window(200 * MS, 4 * MS) == 51
    assert prefetch_window(100 * MS, 40 * MS) == 4
    assert prefetch_window(0, 4 * MS) == 1


def test_several_workers_and_batched_acks_need_more() -> None:
    assert prefetch_window(100 * MS, 40 * MS, workers=8) == 28
    assert prefetch_window(100 * MS, 4 * MS, ack_batch=5) == 30
    assert prefetch_window(0, 4 * MS, workers=3, ack_batch=4) == 6


def test_variable_service_times_need_two_standard_deviations_more() -> None:
    assert prefetch_window(100 * MS, 4 * MS, cv=1) == 1 + 25 + 2 * 5
    assert prefetch_window(100 * MS, 4 * MS, cv=0.5) == 31
    assert prefetch_window(100 * MS, 4 * MS, cv=0.1) == 27
    assert prefetch_window(100 * MS, 4 * MS, cv=Fraction(1, 10)) == 27
    assert prefetch_window(0, 4 * MS, cv=3) == 1


def test_a_rate_limited_lane_needs_the_tokens_pace_and_a_burst() -> None:
    assert prefetch_window(100 * MS, 4 * MS, rate=50) == 6
    assert prefetch_window(100 * MS, 4 * MS, rate=50, burst=100) == 105
    assert prefetch_window(100 * MS, 4 * MS, workers=2, rate=50, cv=1) == 6
    # A rate that the workers do not reach changes nothing.
    assert prefetch_window(100 * MS, 4 * MS, rate=250) == prefetch_window(100 * MS, 4 * MS)
    assert prefetch_window(100 * MS, 40 * MS, workers=8, rate=1000) == 28


def test_work_that_outlasts_a_token_holds_several_credits_at_once() -> None:
    window = prefetch_window(2 * MS, 100 * MS, workers=8, rate=50)
    assert window == 6  # 5 in work at any time: 50 a second for 0.1 s each

    def messages(credit: int) -> int:
        idle = Window(8, workers=8)
        sim = Simulation(idle, always(100 * MS), always(MS), bucket=TokenBucket(50, 1), tuned=False)
        sim.limit = credit
        return len(sim.run(10 * SECOND).busy)

    assert messages(window) == 500
    assert messages(window - 2) < 400


def test_windows_fit_into_the_wire_and_no_service_counts_as_a_nanosecond() -> None:
    assert prefetch_window(SECOND, 1) == 65535
    assert prefetch_window(SECOND, 0) == 65535
    assert prefetch_window(5, 0) == 6
    assert prefetch_window(0, 0) == 1
    assert prefetch_window(0, 1, rate=1, burst=10**6) == 65535


@settings(deadline=None)
@given(st.integers(0, 10**10), st.integers(1, 10**10))
def test_no_smaller_window_keeps_one_worker_busy(round_trip: int, service: int) -> None:
    window = prefetch_window(round_trip, service)
    if window < 65535:
        assert window * service >= round_trip + service
        assert (window - 1) * service < round_trip + service
        assert utilisation(window, round_trip, service) == 1
        assert standing_wait(window, round_trip, service) < service


@settings(deadline=None)
@given(st.fractions(0, 10**6), st.fractions(0, 10**9))
def test_the_root_is_rounded_up_exactly(number: Fraction, square: Fraction) -> None:
    least = ceil_with_root(number, square)
    assert least >= number
    assert (least - number) ** 2 >= square
    assert least - 1 < number or (least - 1 - number) ** 2 < square


def test_utilisation_and_wait_are_the_published_ones() -> None:
    assert utilisation(1, 100, 4) == pytest.approx(0.0385, abs=5e-5)
    assert (utilisation(26, 100, 4), standing_wait(26, 100, 4)) == (1, 0)
    assert (utilisation(51, 100, 4), standing_wait(51, 100, 4)) == (1, 100)
    assert utilisation(26, 200, 4) == pytest.approx(0.51, abs=5e-4)
    assert utilisation(51, 200, 4) == 1
    assert [standing_wait(window, 100, 40) for window in (26, 51, 4)] == [900, 1900, 20]
    assert utilisation(4, 100, 40) == 1
    assert utilisation(1, 0, 0) == 1


@pytest.mark.parametrize(
    ("window", "round_trip", "service"), [(1, 100, 4), (26, 200, 4), (51, 100, 4), (26, 100, 40)]
)
def test_the_formulas_are_what_a_simulated_broker_does(window: int, round_trip: int, service: int) -> None:
    sim = Simulation(Window(window), always(service * MS), always(round_trip * MS // 2), tuned=False)
    run = sim.run(30 * SECOND)
    cycle = max(window * service, round_trip + service) * MS
    end = 2 * SECOND + 20 * SECOND // cycle * cycle
    assert run.utilisation(2 * SECOND, end) == pytest.approx(utilisation(window, round_trip, service))
    assert set(run.waits_from(5 * SECOND)) == {standing_wait(window, round_trip, service) * MS}


def test_a_lane_needs_its_share_and_enough_for_a_turn() -> None:
    quanta = list(range(4, 44, 4))
    windows = [lane_window(quantum, sum(quanta), 100 * MS, 4 * MS) for quantum in quanta]
    assert windows == [4, 8, 12, 16, 20, 24, 26, 26, 26, 26]
    # A lane that is nearly alone needs nearly what the pool does, however short its turns are.
    assert lane_window(9, 10, 100 * MS, 4 * MS) == 24
    assert lane_window(1, 2, 100 * MS, 4 * MS, workers=4, ack_batch=3) == 54
    assert lane_window(5, 5, 100 * MS, 4 * MS) == prefetch_window(100 * MS, 4 * MS)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("round_trip", -1),
        ("service", 1.5),
        ("workers", 0),
        ("ack_batch", 0),
        ("cv", -0.1),
        ("cv", "wide"),
        ("rate", 0),
        ("rate", -3),
        ("burst", 0),
    ],
)
def test_bad_arguments_are_named(argument: str, value: object) -> None:
    arguments: dict[str, object] = {"round_trip": 1, "service": 1, argument: value}
    with pytest.raises(ConfigError, match=f"^{argument}="):
        prefetch_window(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "value"),
    [("quantum", 0), ("quanta", 1), ("round_trip", -1), ("service", -1), ("workers", 0), ("ack_batch", 0)],
)
def test_bad_arguments_of_a_lane_are_named(argument: str, value: int) -> None:
    arguments = {"quantum": 2, "quanta": 3, "round_trip": 1, "service": 1, argument: value}
    with pytest.raises(ConfigError, match=f"^{argument}="):
        lane_window(**arguments)
