"""Heavy hitters: nobody who is heavy is missed, and nobody is said to be heavier than he is."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from leash.policies.heavy_hitters import HeavyHitters


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=400), st.integers(1, 12))
def test_the_weights_are_sure_and_no_heavy_key_is_missed(stream: list[tuple[int, int]], places: int) -> None:
    heavy, true = HeavyHitters[int](places), Counter[int]()
    for key, weight in stream:
        heavy.add(0, key, weight)
        true[key] += weight
    told = dict(heavy.top(0))
    assert len(told) <= places
    assert all(weight <= true[key] for key, weight in told.items())
    total = sum(true.values())
    assert heavy.total == total
    assert {key for key, weight in true.items() if weight * places > total} <= told.keys()


def test_the_heaviest_comes_first() -> None:
    heavy = HeavyHitters[str](3)
    for key, weight in (("a", 1), ("b", 5), ("c", 3), ("b", 1)):
        heavy.add(0, key, weight)
    assert heavy.top(0) == [("b", 6), ("c", 3), ("a", 1)]


def test_the_past_counts_half_after_each_half_life() -> None:
    heavy = HeavyHitters[str](3, half_life=10)
    heavy.add(0, "old", 8)
    heavy.add(9, "old", 8)
    heavy.add(10, "new", 6)
    assert heavy.top(10) == [("old", 8), ("new", 6)]
    assert heavy.top(29) == [("old", 4), ("new", 3)]
    assert heavy.total == 7
    assert heavy.top(10**18)[0].weight < 1e-9
