"""A budget shared out: whoever asks for little gets it, the others get equal parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leash.policies.window.sharing import Shares, equal_part, share_out

CLAIMS = st.lists(st.integers(0, 10**7), min_size=1, max_size=60)


def test_claims_that_fit_are_granted_and_the_rest_is_for_those_who_grow() -> None:
    shares = share_out(100, [10, 20, 30], growing=2)
    assert shares == Shares(None, 20)
    assert shares.of(10, grows=True) == 30
    assert shares.of(30, grows=False) == 30


def test_claims_that_do_not_fit_are_cut_to_one_level() -> None:
    shares = share_out(100, [10, 200, 3000], growing=3)
    assert [shares.of(claim, True) for claim in (10, 200, 3000)] == [10, 45, 45]


def test_a_budget_that_others_have_overdrawn_leaves_nothing() -> None:
    assert share_out(-5, [1, 2], growing=2).of(2, True) == 0


def test_an_equal_part_is_at_least_one_message() -> None:
    assert equal_part(1000, 10) == 100
    assert equal_part(1000, 10, 30) == 3
    assert equal_part(1000, 10, 300) == 1


@given(total=st.integers(0, 10**8), claims=CLAIMS, growing=st.integers(0, 60))
def test_shares_fit_into_the_budget_and_whoever_is_cut_has_as_much_as_anybody(
    total: int, claims: list[int], growing: int
) -> None:
    grows = [index < growing for index in range(len(claims))]
    shares = share_out(total, claims, sum(grows))
    parts = [shares.of(claim, grow) for claim, grow in zip(claims, grows, strict=True)]
    assert sum(parts) <= total
    for part, claim in zip(parts, claims, strict=True):
        if part < claim:
            assert part == max(parts)  # cut, so nobody has more
            assert total - sum(parts) < len(claims)  # and but for rounding all of it is given away
        elif shares.level is not None:
            assert part == claim


@given(total=st.integers(0, 10**8), more=st.integers(0, 10**6), claims=CLAIMS)
def test_a_larger_budget_takes_nothing_away(total: int, more: int, claims: list[int]) -> None:
    small, large = share_out(total, claims, 0), share_out(total + more, claims, 0)
    assert all(small.of(claim, False) <= large.of(claim, False) for claim in claims)
