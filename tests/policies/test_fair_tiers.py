"""Strict tiers, and the share that a lower one is guaranteed."""

from __future__ import annotations

from collections import Counter
from typing import Any

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
