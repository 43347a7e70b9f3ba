"""Quiet first: a lane that wakes up goes ahead, once in a round, and nobody gets less for it."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from leash.policies import DeficitRoundRobin


def served(rounds: DeficitRoundRobin, count: int) -> list[str]:
    return [ticket.lane for _ in range(count) if (ticket := rounds.pick()) is not None]


def test_a_lane_that_wakes_up_is_next() -> None:
    for quiet_first, after in ((True, 0), (False, 2)):
        rounds = DeficitRoundRobin(dict.fromkeys("abcq", 1), quiet_first=quiet_first)
        for lane in "abc":
            rounds.offer(lane, 100)
        served(rounds, 31)
        rounds.offer("q", 1)
        assert served(rounds, 10).index("q") == after


def test_a_turn_that_has_begun_is_finished_first() -> None:
    rounds = DeficitRoundRobin({"a": 3, "b": 3, "q": 3}, quiet_first=True)
    rounds.offer("a", 100)
    rounds.offer("b", 100)
    assert served(rounds, 7) == ["a", "a", "a", "b", "b", "b", "a"]
    rounds.offer("q", 1)
    assert served(rounds, 6) == ["a", "a", "q", "b", "b", "b"]


def test_those_that_wake_up_go_in_the_order_in_which_they_did() -> None:
    rounds = DeficitRoundRobin(dict.fromkeys("axyz", 1), quiet_first=True)
    rounds.offer("a", 100)
    served(rounds, 5)
    for lane in "yzx":
        rounds.offer(lane, 2)
    assert served(rounds, 8) == ["y", "z", "x", "a", "y", "z", "x", "a"]


def test_a_lane_that_keeps_waking_up_gets_one_turn_in_a_round() -> None:
    rounds = DeficitRoundRobin(dict.fromkeys("abq", 1), quiet_first=True)
    rounds.offer("a", 1000)
    rounds.offer("b", 1000)
    got = []
    for _ in range(300):
        if not rounds.visible("q"):
            rounds.offer("q", 1)
        got += served(rounds, 1)
    assert abs(got.count("a") - got.count("b")) <= 1
    assert abs(got.count("a") - got.count("q")) <= 1


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=150),
)
def test_backlogged_lanes_stay_within_a_round_of_each_other(
    quanta: list[int], wakes: list[tuple[int, int]]
) -> None:
    busy = {f"busy {n}": quantum for n, quantum in enumerate(quanta)}
    quiet = {f"quiet {n}": 2 for n in range(6)}
    rounds = DeficitRoundRobin({**busy, **quiet}, quiet_first=True)
    for lane in busy:
        rounds.offer(lane, 10_000)
    got = dict.fromkeys([*busy, *quiet], 0)
    for number, count in wakes:
        rounds.offer(f"quiet {number}", count)
        for lane in served(rounds, 3):
            got[lane] += 1
        positions = [Fraction(got[lane], quantum) for lane, quantum in busy.items()]
        assert max(positions) - min(positions) <= 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 4), st.integers(0, 3)), max_size=100))
def test_all_that_is_offered_is_served_once(steps: list[tuple[str, int, int]]) -> None:
    rounds = DeficitRoundRobin(dict.fromkeys("abcdef", 2), quiet_first=True)
    offered, got = [], []
    for at, (lane, count, picks) in enumerate(steps):
        if at % 7 == 3:
            rounds.block(lane)
        rounds.offer(lane, count)
        offered += [lane] * count
        got += served(rounds, picks)
        rounds.unblock(lane)
    got += served(rounds, len(offered))
    assert sorted(got) == sorted(offered)
