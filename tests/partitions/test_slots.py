"""Who owns which slot: exact shares, and no slot moves that could stay."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.partitions.owners import assign, counts, moves

WEIGHTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9), min_size=1)


def test_equal_queues_share_the_slots_evenly() -> None:
    assert Counter(assign(dict.fromkeys("abcd", 1), 120)) == dict.fromkeys("abcd", 30)


def test_weights_are_slot_counts() -> None:
    assert Counter(assign({"a": 1, "b": 1, "c": 2, "d": 2}, 120)) == {"a": 20, "b": 20, "c": 40, "d": 40}


def test_growing_takes_slots_for_the_new_queue_only() -> None:
    before = assign(dict.fromkeys("abcd", 1), 64)
    after = assign(dict.fromkeys("abcde", 1), 64, before)
    taken = moves(before, after)
    assert list(taken) == ["e"]
    assert len(taken["e"]) in (12, 13)


def test_shrinking_hands_out_the_slots_of_the_queue_that_goes_only() -> None:
    before = assign(dict.fromkeys("abcde", 1), 120)
    after = assign(dict.fromkeys("abcd", 1), 120, before)
    assert {before[slot] for taken in moves(before, after).values() for slot in taken} == {"e"}


def test_a_queue_that_would_get_no_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match="no slot of 10 is left for 'small': use more slots"):
        assign({"big": 100, "small": 1}, 10)


@given(WEIGHTS, WEIGHTS, st.integers(80, 200))
def test_every_share_is_exact_but_for_rounding_and_nothing_moves_in_vain(
    first: dict[str, int], second: dict[str, int], slots: int
) -> None:
    before = assign(first, slots)
    after = assign(second, slots, before)
    held = Counter(after)
    for queue, weight in second.items():
        exact = slots * weight / sum(second.values())
        assert exact - 1 < held[queue] < exact + 1
    had = Counter(before)
    least = sum(max(0, held[queue] - had[queue]) for queue in second)
    assert sum(map(len, moves(before, after).values())) == least
    assert counts(second, slots, after) == dict(held)


@given(WEIGHTS, st.integers(80, 200))
def test_asking_for_the_same_again_moves_nothing(asked: dict[str, int], slots: int) -> None:
    owners = assign(asked, slots)
    assert assign(asked, slots, owners) == owners


@given(WEIGHTS, st.integers(1, 9), st.integers(80, 200))
def test_a_new_queue_makes_no_old_one_grow(asked: dict[str, int], weight: int, slots: int) -> None:
    before = assign(asked, slots)
    after = assign({**asked, "new": weight}, slots, before)
    assert set(moves(before, after)) <= {"new"}
