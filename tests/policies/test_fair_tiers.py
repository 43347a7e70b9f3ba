"""Strict tiers, and the share that a lower one is guaranteed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.policies.fair import DeficitRoundRobin


def order(rr: DeficitRoundRobin, count: int) -> str:
    """The lanes of the next picks, each settled at its estimate."""
    lanes: list[str] = []
    while len(lanes) < count and (ticket := rr.pick()) is not None:
        rr.settle(ticket)
        lanes.append(ticket.lane)
    return "".join(lanes)


def backlogged(quanta: dict[str, int], **options: Any) -> DeficitRoundRobin:
    rr = DeficitRoundRobin(quanta, **options)
    for lane in quanta:
        rr.offer(lane, 1_000_000)
    return rr


def test_a_lower_tier_is_served_when_no_higher_one_can_be() -> None:
    rr = DeficitRoundRobin({"a": 2, "b": 1, "low": 5}, tiers={"low": 1})
    rr.offer("low", 10)
    assert order(rr, 2) == "lowlow"
    rr.offer("a", 3)
    rr.offer("b", 1)
    assert order(rr, 5) == "aabalow"
    rr.offer("a", 2)
    rr.block("a")
    assert order(rr, 2) == "lowlow"
    rr.unblock("a")
    assert order(rr, 2) == "aa"


def test_a_guaranteed_share_is_exact_while_the_tier_has_work() -> None:
    rr = backlogged({"a": 3, "b": 1}, tiers={"b": 1}, guaranteed={1: 10})
    assert order(rr, 1000) == ("a" * 9 + "b") * 100


def test_guarantees_that_fall_due_together_are_served_one_after_the_other() -> None:
    rr = backlogged({"a": 3, "b": 1, "c": 1}, tiers={"b": 1, "c": 2}, guaranteed={1: 10, 2: 25})
    assert order(rr, 20) == "aaacaaacabacaaacaaab"
    assert order(rr, 4) == "caac"
    assert Counter(order(rr, 10_000)) == {"a": 6500, "b": 1000, "c": 2500}


def test_a_guarantee_does_not_build_up_while_there_is_nothing_to_serve() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1}, tiers={"b": 1}, guaranteed={1: 50})
    rr.offer("a", 1000)
    assert order(rr, 100) == "a" * 100
    rr.offer("b", 100)
    assert order(rr, 6) == "ababab"


def test_a_tier_served_anyhow_has_its_guarantee_afterwards() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1}, tiers={"b": 1}, guaranteed={1: 50})
    rr.offer("b", 1000)
    assert order(rr, 100) == "b" * 100
    rr.offer("a", 100)
    assert order(rr, 10) == "ababababab"


def test_a_tier_that_waited_for_messages_does_not_save_up_its_guarantee() -> None:
    rr = backlogged({"a": 1, "b": 9}, tiers={"b": 1}, guaranteed={1: 50})
    for _ in range(1000):
        assert rr.pick(eligible=lambda lane: lane == "a")
    assert order(rr, 10) == "bbbabababa"


# --- messages that are known to come ---


def test_a_service_that_a_guarantee_has_fallen_due_for_waits_for_its_messages() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1}, tiers={"b": 1}, guaranteed={1: 50})
    rr.offer("a", 100)
    rr.expect("b", 100)
    assert order(rr, 10) == "a"
    rr.offer("b", 1)
    assert order(rr, 10) == "ba"


def test_a_guarantee_whose_messages_do_not_come_after_all_holds_nobody_up() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1}, tiers={"b": 1}, guaranteed={1: 50})
    rr.offer("a", 100)
    rr.expect("b", 100)
    assert order(rr, 10) == "a"
    rr.expect("b", 0)
    assert order(rr, 10) == "a" * 10


def test_nobody_waits_for_a_lane_that_has_all_that_it_may_have() -> None:
    stuck: list[str] = []
    rr = DeficitRoundRobin(
        {"a": 1, "b": 1}, tiers={"b": 1}, guaranteed={1: 50}, coming=lambda lane: lane not in stuck
    )
    rr.offer("a", 100)
    rr.expect("b", 100)
    assert order(rr, 10) == "a"
    stuck.append("b")
    assert order(rr, 10) == "a" * 10


def test_one_guarantee_that_waits_does_not_hold_up_another_that_is_due() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1, "c": 1}, tiers={"b": 1, "c": 2}, guaranteed={1: 50, 2: 50})
    rr.offer("a", 100)
    rr.offer("c", 100)
    rr.expect("b", 100)
    assert order(rr, 10) == "ac"
    rr.offer("b", 1)
    assert order(rr, 10)[0] == "b"


ARRIVALS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.integers(0, 9)), max_size=120)


@settings(max_examples=300, deadline=None)
@given(share=st.integers(1, 100), arrivals=ARRIVALS)
def test_a_guarantee_is_kept_however_its_messages_trickle_in(
    share: int, arrivals: list[tuple[str, int, int]]
) -> None:
    """Tier 1 always has messages, here or on their way, so at any moment it has had its share."""
    rr = DeficitRoundRobin({"a": 3, "b": 2, "c": 1}, tiers={"b": 1, "c": 1}, guaranteed={1: share})
    for lane in "abc":
        rr.expect(lane, 10**9)
    served: Counter[str] = Counter()
    for lane, count, picks in arrivals:
        rr.offer(lane, count)
        for _ in range(picks):
            ticket = rr.pick(patient=picks % 2 == 0)
            if ticket is None:
                break
            served[ticket.lane] += 1
            assert served["b"] + served["c"] >= served.total() * share // 100


@settings(max_examples=200, deadline=None)
@given(arrivals=ARRIVALS)
def test_the_patient_never_serve_a_lower_tier_while_a_higher_one_is_to_come(
    arrivals: list[tuple[str, int, int]],
) -> None:
    rr = DeficitRoundRobin({"a": 3, "b": 2, "c": 1}, tiers={"b": 1, "c": 2})
    rr.expect("a", 10**9)
    rr.expect("b", 10**9)
    for lane, count, picks in arrivals:
        rr.offer(lane, count)
        for _ in range(picks):
            ticket = rr.pick(patient=True)
            assert ticket is None or ticket.lane == "a"
    rr.expect("a", 0)
    while (ticket := rr.pick(patient=True)) is not None:
        assert ticket.lane in "ab"


@pytest.mark.parametrize("patient", [True, False])
def test_taking_in_batches_waits_as_picking_does(patient: bool) -> None:
    rr = DeficitRoundRobin({"a": 3, "low": 5}, tiers={"low": 1})
    rr.offer("a", 2)
    rr.expect("a", 9)
    rr.offer("low", 9)
    assert rr.take(64, patient=patient) == ("a", 2)
    assert rr.take(64, patient=patient) == (None if patient else ("low", 5))
