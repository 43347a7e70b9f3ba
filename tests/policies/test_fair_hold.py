"""Held rounds: an empty buffer is not an empty queue."""

from __future__ import annotations

from leash.policies.fair import DeficitRoundRobin


def served(rr: DeficitRoundRobin, limit: int = 100) -> str:
    """Picks until there is no ticket."""
    lanes: list[str] = []
    while len(lanes) < limit and (ticket := rr.pick()) is not None:
        rr.settle(ticket)
        lanes.append(ticket.lane)
    return "".join(lanes)


def trickling() -> DeficitRoundRobin:
    """Lane a has one message here and more on their way, b and c have plenty."""
    rr = DeficitRoundRobin({"a": 3, "b": 2, "c": 1})
    rr.offer("a", 1)
    rr.offer("b", 50)
    rr.offer("c", 50)
    rr.expect("a", 20)
    return rr


def test_the_others_finish_the_round_and_then_wait() -> None:
    rr = trickling()
    assert served(rr) == "abbc"
    assert rr.held == ["a"]
    assert rr.pick() is None


def test_a_held_lane_goes_on_with_its_turn_when_messages_come() -> None:
    rr = trickling()
    assert served(rr) == "abbc"
    rr.offer("a", 5)
    assert served(rr, 8) == "aabbcaaa"


def test_a_held_lane_comes_back_in_the_middle_of_anothers_turn() -> None:
    rr = trickling()
    assert served(rr, 2) == "ab"
    rr.offer("a", 1)
    assert served(rr) == "abc"
    assert rr.held == ["a"]


def test_a_hold_that_is_given_up_leaves_the_lane_idle_without_surplus() -> None:
    rr = trickling()
    assert served(rr) == "abbc"
    assert rr.balance("a") == 2
    rr.expect("a", 0)
    assert rr.held == []
    assert rr.balance("a") == 0
    assert served(rr, 6) == "bbcbbc"
    rr.offer("a", 9)
    assert served(rr, 6) == "bbaaac"


def test_without_evidence_a_lane_is_idle_at_once() -> None:
    rr = DeficitRoundRobin({"a": 3, "b": 2})
    rr.offer("a", 1)
    rr.offer("b", 50)
    assert served(rr, 6) == "abbbbb"


def test_what_arrives_counts_against_what_is_expected() -> None:
    rr = trickling()
    rr.offer("a", 20)
    assert served(rr, 48).count("a") == 21
    assert rr.held == []


def test_a_turn_that_is_used_up_is_not_held() -> None:
    rr = trickling()
    rr.offer("a", 2)
    assert served(rr, 6) == "aaabbc"
    assert rr.held == []
    assert served(rr) == "bbc"  # in the second round it is held
    assert rr.held == ["a"]


def test_a_lane_in_debt_that_could_not_be_served_anyhow_holds_nothing_up() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1})
    rr.offer("a", 1)
    rr.offer("b", 50)
    ticket = rr.pick()
    assert ticket is not None
    rr.settle(ticket, 5)
    rr.expect("a", 10)
    assert served(rr) == "bbbbbb"  # five rounds in which it could not have been, and the one that waits
    assert rr.held == ["a"]


def test_a_lane_known_to_have_work_is_waited_for_from_the_first_round_on() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1})
    rr.expect("a", 5)
    rr.offer("b", 5)
    assert served(rr) == "b"
    rr.offer("a", 2)
    assert served(rr) == "abab"


def test_a_held_lane_that_is_blocked_or_removed_no_longer_holds_the_round() -> None:
    rr = trickling()
    served(rr)
    rr.block("a")
    assert served(rr, 3) == "bbc"
    rr = trickling()
    served(rr)
    rr.remove_lane("a")
    assert served(rr, 3) == "bbc"


def test_a_lower_tier_is_served_while_the_higher_one_waits() -> None:
    rr = DeficitRoundRobin({"a": 3, "low": 1}, tiers={"low": 1})
    rr.offer("a", 1)
    rr.offer("low", 9)
    rr.expect("a", 5)
    assert served(rr, 3) == "alowlow"
    rr.offer("a", 1)
    assert served(rr, 2) == "alow"


def test_a_held_lane_goes_on_with_its_turn_after_a_restart() -> None:
    rr = trickling()
    assert served(rr) == "abbc"
    twin = DeficitRoundRobin(rr.quanta)
    twin.restore(rr.state())
    for lane in rr.quanta:
        twin.offer(lane, 9)
    assert served(twin, 8) == "aabbcaaa"


def test_all_waiting_for_each_other_go_on_as_messages_come() -> None:
    rr = DeficitRoundRobin({"a": 2, "b": 2})
    rr.expect("a", 50)
    rr.expect("b", 50)
    assert served(rr) == ""
    for _ in range(5):
        rr.offer("b", 2)
        rr.offer("a", 2)
        assert sorted(served(rr)) == ["a", "a", "b", "b"]
