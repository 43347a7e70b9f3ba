"""The retry budget: retries are at most a share of successes, and what fails alone still gets its tries."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.policies.retry_budget import SAVED, RetryBudget
from leash.units import MS, SECOND


def test_ten_successes_pay_for_a_retry() -> None:
    budget = RetryBudget(0.1)
    assert budget.take(0)  # the free one of this second
    assert not budget.take(1)
    budget.succeeded(9)
    assert not budget.take(2)
    budget.succeeded()
    assert budget.take(3)
    assert not budget.take(4)


def test_one_a_second_is_free() -> None:
    budget = RetryBudget(0.1)
    assert sum(budget.take(ms * MS) for ms in range(0, 10_000, 10)) == 10


def test_a_quiet_day_saves_up_no_flood() -> None:
    budget = RetryBudget("1/3")
    budget.succeeded(1_000_000)
    assert sum(budget.take(0) for _ in range(1000)) == SAVED + 1


@given(
    st.sampled_from([0.1, "1/3", 0.25, 1]),
    st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=400),
)
def test_retries_never_exceed_the_share(share: float | str, calls: list[tuple[int, bool]]) -> None:
    budget = RetryBudget(share)
    now = successes = retries = 0
    for passes, good in calls:
        now += passes * MS
        if good:
            budget.succeeded()
            successes += 1
        else:
            retries += budget.take(now)
        assert retries <= Fraction(str(share)) * successes + now // SECOND + 1


@pytest.mark.parametrize("share", [0, -1, 1.5, "much", True, None])
def test_a_wrong_share_is_refused(share: object) -> None:
    with pytest.raises(ConfigError, match="budget"):
        RetryBudget(share)  # type: ignore[arg-type]
