"""The bucket in whole numbers: admission times, the bound on intervals, debts, hierarchy, checkpoints."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy import int64

from leash.errors import ConfigError
from leash.policies import TokenBucket
from leash.policies.tokens import take_all, wait_all

SECOND = 1_000_000_000

rates = st.fractions(min_value=Fraction(1, 1000), max_value=10_000, max_denominator=1000)
bursts = st.integers(1, 50)
steps = st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=40)


def admissions(bucket: TokenBucket, count: int, start: int = 0) -> list[int]:
    """When `count` messages go out that are always waiting."""
    now, times = start, []
    for _ in range(count):
        now += bucket.wait(now)
        assert bucket.take(now)
        times.append(now)
    return times


def test_rate_3_burst_1_admits_at_exact_times() -> None:
    assert admissions(TokenBucket(3, 1), 4) == [0, 333_333_334, 666_666_667, 1_000_000_000]


def test_rounding_never_drifts_over_a_hundred_thousand_seconds() -> None:
    assert admissions(TokenBucket(3, 1), 300_001)[-1] == 10**14


def test_rate_1_burst_5_admits_five_at_once_then_one_a_second() -> None:
    times = admissions(TokenBucket(1, 5), 15)
    assert times == [0] * 5 + [n * SECOND for n in range(1, 11)]
    assert TokenBucket(1, 5).available(0) == 5


@settings(deadline=None)
@given(rates, bursts)
def test_admission_n_is_the_exact_time_rounded_up(rate: Fraction, burst: int) -> None:
    expected = [0] * burst + [-(-n * SECOND * rate.denominator // rate.numerator) for n in range(1, 30)]
    assert admissions(TokenBucket(rate, burst), burst + 29) == expected


@settings(deadline=None)
@given(rates, bursts, steps, st.data())
def test_asking_in_between_changes_nothing(
    rate: Fraction, burst: int, gaps: list[int], data: st.DataObject
) -> None:
    quiet, asked = TokenBucket(rate, burst), TokenBucket(rate, burst)
    now = 0
    for gap in gaps:
        for moment in sorted(data.draw(st.lists(st.integers(0, gap), max_size=3))):
            asked.wait(now + moment, 7)
            asked.level(now + moment)
            asked.available(now + moment)
        now += gap
        cost = data.draw(st.integers(0, 2 * burst))
        assert quiet.wait(now, cost) == asked.wait(now, cost)
        assert quiet.take(now, cost) == asked.take(now, cost)
        assert quiet.state() == asked.state()


@settings(deadline=None)
@given(rates, bursts, steps)
def test_no_interval_ever_gets_more_than_the_burst_and_the_rate(
    rate: Fraction, burst: int, gaps: list[int]
) -> None:
    bucket = TokenBucket(rate, burst)
    taken: list[int] = []
    now = 0
    for gap in gaps:
        now += gap
        while len(taken) < 300 and bucket.take(now):
            taken.append(now)
    for first, begin in enumerate(taken):
        for last in range(first, len(taken)):
            count, span = last - first + 1, taken[last] - begin
            assert count <= burst + rate * (span + 1) / SECOND


@settings(deadline=None)
@given(rates, bursts, st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_a_cost_above_the_burst_waits_for_a_full_bucket_and_leaves_a_debt(
    rate: Fraction, burst: int, costs: list[int]
) -> None:
    bucket, now, spent = TokenBucket(rate, burst), 0, 0
    for cost in costs:
        now += bucket.wait(now, cost)
        assert bucket.take(now, cost)
        spent += cost
        # Beyond the last one's overshoot, all that was spent had been earned.
        assert spent - max(0, cost - burst) <= burst + rate * Fraction(now + 1, SECOND)
        assert bucket.wait(now, cost) <= (max(costs) + burst) * SECOND / rate + 1


def test_a_debt_delays_what_follows() -> None:
    bucket = TokenBucket(10, 5)
    assert bucket.take(0, 25)
    assert bucket.level(0) == -20.0
    assert bucket.available(0) == 0
    assert bucket.wait(0) == 2_100_000_000
    assert bucket.wait(0, 0) == 2_000_000_000
    assert not bucket.take(2_099_999_999)
    assert bucket.take(2_100_000_000)


def test_a_cost_from_numpy_is_as_exact_as_any() -> None:
    bucket, total = TokenBucket("1/7", 10**9), TokenBucket(1, 10**9)
    cost = int64(10**8)
    assert bucket.take(0, cost)  # type: ignore[arg-type]
    assert take_all(0, (bucket, total), cost)  # type: ignore[arg-type]
    bucket.refund(0, cost)  # type: ignore[arg-type]
    assert bucket.available(0) == 9 * 10**8
    assert type(bucket.state()["level"]) is int


def test_wait_is_the_first_nanosecond_that_succeeds() -> None:
    bucket = TokenBucket("1/3", 2)
    assert bucket.take(0, 2)
    wait = bucket.wait(0, 2)
    assert wait == 6 * SECOND
    assert not bucket.take(wait - 1, 2)
    assert bucket.take(wait, 2)


def test_a_clock_that_goes_back_earns_nothing_twice() -> None:
    bucket = TokenBucket(1, 1)
    assert bucket.take(5 * SECOND)
    assert not bucket.take(0)
    assert bucket.wait(0) == SECOND
    assert not bucket.take(6 * SECOND - 1)
    assert bucket.take(6 * SECOND)


def test_a_bucket_first_asked_late_is_full_and_no_fuller() -> None:
    assert TokenBucket(1, 5).available(10**18) == 5
    assert admissions(TokenBucket(3, 1), 2, start=10**18) == [10**18, 10**18 + 333_333_334]


def test_rates_are_taken_as_they_read() -> None:
    assert TokenBucket(0.1, 1).rate == Fraction(1, 10)
    assert TokenBucket("1/3", 1).rate == Fraction(1, 3)
    assert TokenBucket("0.25", 1).rate == Fraction(1, 4)
    assert TokenBucket(Decimal("0.7"), 1).rate == Fraction(7, 10)
    assert TokenBucket(1e-05, 1).rate == Fraction(1, 100_000)
    assert TokenBucket(50, 1).rate == 50


def test_a_new_rate_neither_gives_nor_takes_tokens() -> None:
    bucket = TokenBucket(2, 10)
    assert bucket.take(0, 10)
    bucket.set_rate(SECOND, 5)
    assert bucket.level(SECOND) == 2.0
    assert bucket.level(2 * SECOND) == 7.0
    bucket.set_rate(2 * SECOND, "1/2", burst=20)
    assert bucket.level(2 * SECOND) == 7.0
    assert bucket.level(4 * SECOND) == 8.0
    assert (bucket.rate, bucket.burst) == (Fraction(1, 2), 20)


def test_a_smaller_burst_keeps_no_more_than_it_holds_and_a_larger_one_fills_in_time() -> None:
    bucket = TokenBucket(1, 10)
    bucket.set_rate(0, 1, burst=4)
    assert bucket.available(0) == 4
    bucket.set_rate(0, 1, burst=10)
    assert bucket.available(0) == 4
    assert bucket.available(6 * SECOND) == 10


@settings(deadline=None)
@given(rates, rates, bursts, steps)
def test_changing_the_rate_there_and_back_costs_less_than_a_billionth_of_a_token(
    rate: Fraction, other: Fraction, burst: int, gaps: list[int]
) -> None:
    plain, changed = TokenBucket(rate, burst), TokenBucket(rate, burst)
    now = 0
    for gap in gaps:
        now += gap
        plain.take(now, burst)
        changed.take(now, burst)
        changed.set_rate(now, other)
        changed.set_rate(now, rate)
    now += SECOND
    tolerance = len(gaps) * 2e-9 + 1e-9 * float(rate)
    assert plain.level(now) - tolerance <= changed.level(now) <= plain.level(now) + 1e-9


def test_a_refund_gives_back_but_never_above_the_cap() -> None:
    bucket = TokenBucket(1, 100)
    assert bucket.take(0, 80)
    bucket.refund(0, 30)
    assert bucket.available(0) == 50
    bucket.refund(0, 1000)
    assert bucket.available(0) == 100
    assert bucket.take(0, 100)
    assert not bucket.take(0)


def test_state_goes_through_json_and_comes_back_at_the_same_admissions() -> None:
    saved = TokenBucket("7/3", 4)
    admissions(saved, 9)
    state = json.loads(json.dumps(saved.state()))
    fresh = TokenBucket("7/3", 4)
    fresh.restore(10 * SECOND, state)
    assert admissions(fresh, 20, 10 * SECOND) == admissions(saved, 20, 10 * SECOND)


def test_a_restored_bucket_earns_the_time_away_but_nothing_from_a_clock_that_started_anew() -> None:
    saved = TokenBucket(1, 10)
    saved.take(100 * SECOND, 10)
    later, rebooted = TokenBucket(1, 10), TokenBucket(1, 10)
    later.restore(103 * SECOND, saved.state())
    assert later.available(103 * SECOND) == 3
    rebooted.restore(2 * SECOND, saved.state())
    assert rebooted.available(2 * SECOND) == 0
    assert rebooted.available(4 * SECOND) == 2


def test_a_state_from_another_rate_and_burst_keeps_its_tokens() -> None:
    saved = TokenBucket("1/7", 10)
    saved.take(0, 4)
    fresh = TokenBucket(3, 5)
    fresh.restore(0, saved.state())
    assert fresh.available(0) == 5
    fresh = TokenBucket(3, 50)
    fresh.restore(0, saved.state())
    assert fresh.available(0) == 6


def test_a_state_saved_before_the_first_use_is_a_full_bucket() -> None:
    fresh = TokenBucket(1, 3)
    fresh.restore(SECOND, TokenBucket(1, 3).state())
    assert fresh.available(SECOND) == 3


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, SECOND), st.integers(0, 8)), min_size=1, max_size=40))
def test_a_hierarchy_takes_all_or_nothing(moves: list[tuple[int, int]]) -> None:
    lane, total = TokenBucket(5, 3), TokenBucket("7/2", 6)
    now = 0
    for gap, cost in moves:
        now += gap
        before = lane.level(now), total.level(now)
        wait = wait_all(now, [lane, None, total], cost)
        assert wait == max(lane.wait(now, cost), total.wait(now, cost))
        if take_all(now, (lane, None, total), cost):
            assert wait == 0
            assert (lane.level(now), total.level(now)) == pytest.approx((before[0] - cost, before[1] - cost))
        else:
            assert wait > 0
            assert (lane.level(now), total.level(now)) == before


def test_without_buckets_everything_goes() -> None:
    assert take_all(0, [None, None])
    assert wait_all(0, []) == 0


def test_long_run_throughput_of_a_lane_under_a_total_is_the_slower_of_both() -> None:
    lane, total = TokenBucket(50, 100), TokenBucket(30, 1)
    times: list[int] = []
    now = 0
    while len(times) < 400:
        now += wait_all(now, (lane, total))
        assert take_all(now, (lane, total))
        times.append(now)
    assert all(later - earlier >= 33_333_333 for earlier, later in pairwise(times))
    assert times[-1] == 13_300_000_000


@pytest.mark.parametrize("rate", [0, -1, "fast", float("nan"), float("inf"), "1/0", True, None, "2e9", b"1"])
def test_a_bad_rate_is_named(rate: object) -> None:
    with pytest.raises(ConfigError, match=r"^rate="):
        TokenBucket(rate, 1)  # type: ignore[arg-type]
    bucket = TokenBucket(1, 1)
    with pytest.raises(ConfigError, match=r"^rate="):
        bucket.set_rate(0, rate)  # type: ignore[arg-type]
    assert bucket.rate == 1


@pytest.mark.parametrize("burst", [0, -1, 1.5, 2.0, "3", True, None])
def test_a_bad_burst_is_named(burst: object) -> None:
    with pytest.raises(ConfigError, match=r"^burst="):
        TokenBucket(1, burst)  # type: ignore[arg-type]


@pytest.mark.parametrize("cost", [-1, 0.5, "1", True])
def test_a_bad_cost_is_named(cost: object) -> None:
    bucket = TokenBucket(1, 1)
    with pytest.raises(ConfigError, match=r"^cost="):
        bucket.take(0, cost)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^cost="):
        bucket.wait(0, cost)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^tokens="):
        bucket.refund(0, cost)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "state", [{}, {"level": 1, "unit": 0, "last": 0}, {"level": 1.5, "unit": 1, "last": 0}]
)
def test_a_bad_state_is_named_and_changes_nothing(state: dict[str, int | None]) -> None:
    bucket = TokenBucket(1, 2)
    with pytest.raises(ConfigError, match=r"^state="):
        bucket.restore(0, state)
    assert bucket.available(0) == 2
