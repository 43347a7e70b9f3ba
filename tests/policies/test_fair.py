"""Picking one by one: the numbers, the rules that are easy to get wrong, nesting, and the state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from leash.policies.fair import DeficitRoundRobin, Ticket


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


def test_ten_lanes_with_quanta_4_to_40_get_exactly_their_shares() -> None:
    lanes = [f"p{i}" for i in range(10)]
    rr = backlogged({lane: 4 * (i + 1) for i, lane in enumerate(lanes)})
    sent: Counter[str] = Counter()
    for _ in range(200_015):
        ticket = rr.pick()
        assert ticket is not None
        rr.settle(ticket)
        sent[ticket.lane] += 1
    assert [sent[lane] for lane in lanes] == [
        3640, 7280, 10920, 14555, 18180, 21816, 25452, 29088, 32724, 36360,
    ]  # fmt: skip


def test_a_lane_has_its_whole_turn_before_the_next_one() -> None:
    assert order(backlogged({"a": 3, "b": 1}), 10) == "aaabaaabaa"


def test_the_tickets_say_what_was_charged() -> None:
    rr = backlogged({"a": 10})
    assert rr.pick() == Ticket("a", 1)
    assert rr.pick(cost=lambda lane: 7 if lane == "a" else 0) == Ticket("a", 7)
    assert rr.balance("a") == 2


def test_nothing_visible_gives_no_ticket() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 2})
    assert rr.pick() is None
    rr.offer("b")
    assert order(rr, 5) == "b"
    assert rr.pick() is None


def test_no_lanes_at_all_give_no_ticket() -> None:
    rr = DeficitRoundRobin({})
    assert rr.pick() is None
    assert rr.plan({}, 10) == {}


def test_the_real_cost_is_charged_afterwards_and_the_debt_is_carried() -> None:
    rr = backlogged({"a": 1, "b": 1})
    ticket = rr.pick()
    assert ticket == Ticket("a", 1)
    rr.settle(ticket, cost=4)
    assert rr.balance("a") == -3
    assert order(rr, 8) == "bbbbabab"


def test_a_cost_below_the_estimate_is_given_back() -> None:
    rr = backlogged({"a": 4, "b": 1})
    ticket = rr.pick(cost=lambda _: 4)
    assert ticket is not None
    rr.settle(ticket, 1)
    assert order(rr, 4) == "aaab"


def test_several_tickets_may_be_out_at_once() -> None:
    rr = backlogged({"a": 2, "b": 1})
    tickets = [rr.pick() for _ in range(3)]
    assert [ticket.lane for ticket in tickets if ticket] == ["a", "a", "b"]
    for ticket in tickets:
        assert ticket is not None
        rr.settle(ticket, 3)
    assert (rr.balance("a"), rr.balance("b")) == (-4, -2)
    assert order(rr, 6) == "aabaab"  # three rounds on, both have paid


def test_a_dry_lap_jumps_over_a_million_rounds() -> None:
    rr = backlogged({"a": 1, "b": 1})
    for _ in range(2):
        ticket = rr.pick()
        assert ticket is not None
        rr.settle(ticket, 10**12)
    assert order(rr, 4) == "abab"


def test_an_idle_lane_does_not_launder_its_debt() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1})
    rr.offer("a")
    rr.offer("b", 100)
    ticket = rr.pick()
    assert ticket == Ticket("a")
    rr.settle(ticket, 6)
    assert order(rr, 3) == "bbb"  # a is idle by now
    rr.offer("a", 10)
    assert order(rr, 8) == "bbbbabab"  # served in round 1, five rounds to pay for, so it is back in round 7


def test_a_debt_is_not_paid_off_while_nobody_is_served() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1})
    rr.offer("a")
    ticket = rr.pick()
    assert ticket is not None
    rr.settle(ticket, 4)
    for _ in range(10):
        assert rr.pick() is None
    assert rr.balance("a") == -3
    rr.offer("a", 5)
    rr.offer("b", 5)
    assert order(rr, 6) == "bbbaba"


def test_an_idle_lane_forfeits_its_surplus() -> None:
    rr = DeficitRoundRobin({"a": 10, "b": 1})
    rr.offer("a", 2)
    rr.offer("b", 50)
    assert order(rr, 5) == "aabbb"
    rr.offer("a", 50)
    assert order(rr, 12) == "a" * 10 + "ba"


def test_messages_that_come_before_the_next_pick_go_on_with_the_turn() -> None:
    rr = DeficitRoundRobin({"a": 3, "b": 1})
    rr.offer("a")
    rr.offer("b", 5)
    assert order(rr, 1) == "a"
    rr.offer("a", 5)
    assert order(rr, 4) == "aaba"


def test_a_late_refund_does_not_give_an_idle_lane_a_surplus() -> None:
    rr = DeficitRoundRobin({"a": 10})
    rr.offer("a")
    ticket = rr.pick(cost=lambda _: 8)
    assert ticket is not None
    assert rr.pick() is None
    rr.settle(ticket, 1)
    assert rr.balance("a") == 0


def test_a_blocked_lane_sits_out_and_collects_nothing() -> None:
    rr = backlogged({"a": 3, "b": 1})
    assert order(rr, 1) == "a"
    rr.block("a")
    assert order(rr, 50) == "b" * 50
    assert rr.balance("a") == 0
    rr.unblock("a")
    assert order(rr, 6) == "aaabaa"


def test_a_blocked_lanes_debt_shrinks_to_nothing_and_no_further() -> None:
    rr = backlogged({"a": 2, "b": 1})
    ticket = rr.pick()
    assert ticket is not None
    rr.settle(ticket, 12)
    rr.block("a")
    assert rr.balance("a") == -10
    debts = []
    for _ in range(8):
        assert order(rr, 1) == "b"
        debts.append(rr.balance("a"))
    assert debts == [-10, -10, -8, -6, -4, -2, 0, 0]


def test_blocking_for_a_moment_changes_nothing() -> None:
    rr = backlogged({"a": 3, "b": 1})
    assert order(rr, 1) == "a"
    rr.block("a")
    rr.unblock("a")
    assert order(rr, 3) == "aab"


def test_messages_offered_to_a_blocked_lane_wait_for_it() -> None:
    rr = DeficitRoundRobin({"a": 1})
    rr.block("a")
    rr.offer("a", 2)
    assert rr.pick() is None
    rr.unblock("a")
    assert order(rr, 5) == "aa"


def test_a_lane_that_is_not_eligible_keeps_its_place_and_its_turn() -> None:
    rr = backlogged({"a": 3, "b": 2, "c": 1})
    assert order(rr, 1) == "a"
    others = [rr.pick(eligible=lambda lane: lane != "a") for _ in range(7)]
    assert "".join(ticket.lane for ticket in others if ticket) == "bbcbbcb"
    assert order(rr, 4) == "aabc"


def test_a_lane_that_is_not_eligible_after_its_turn_is_next_when_it_is_again() -> None:
    rr = backlogged({"a": 1, "b": 2})
    assert order(rr, 1) == "a"
    others = [rr.pick(eligible=lambda lane: lane != "a") for _ in range(3)]
    assert "".join(ticket.lane for ticket in others if ticket) == "bbb"
    assert order(rr, 5) == "ababb"


def test_nobody_eligible_gives_no_ticket_and_changes_nothing() -> None:
    rr = backlogged({"a": 2, "b": 1})
    assert order(rr, 1) == "a"
    before = rr.state()
    assert rr.pick(eligible=lambda _: False) is None
    assert rr.state() == before


def test_an_eligible_that_fails_leaves_the_order_as_it_was() -> None:
    rr = backlogged({"a": 1, "b": 1, "c": 1})
    before = rr.state()

    def fails_for_c(lane: str) -> bool:
        if lane == "c":
            raise RuntimeError
        return False

    with pytest.raises(RuntimeError):
        rr.pick(eligible=fails_for_c)
    assert rr.state() == before
    assert order(rr, 3) == "abc"


def test_take_puts_a_run_of_one_lane_on_one_ticket() -> None:
    rr = DeficitRoundRobin({"a": 5, "b": 2})
    rr.offer("a", 100)
    rr.offer("b", 1)
    assert [rr.take(3), rr.take(3), rr.take(3), rr.take(9)] == [("a", 3), ("a", 2), ("b", 1), ("a", 5)]


def test_a_new_quantum_counts_from_the_next_turn_on() -> None:
    rr = backlogged({"a": 2, "b": 1})
    assert order(rr, 1) == "a"
    rr.set_quantum("a", 4)
    assert rr.quanta == {"a": 4, "b": 1}
    assert order(rr, 7) == "abaaaab"


def test_a_lower_quantum_cuts_the_turn_that_is_under_way() -> None:
    rr = backlogged({"a": 500, "b": 1})
    assert order(rr, 20) == "a" * 20
    rr.set_quantum("a", 2)
    assert order(rr, 7) == "aabaaba"


def test_rounds_that_went_by_are_paid_at_the_quantum_of_their_time() -> None:
    rr = backlogged({"a": 1, "b": 1})
    ticket = rr.pick()
    assert ticket is not None
    rr.settle(ticket, 101)
    rr.block("a")
    assert order(rr, 11) == "b" * 11
    assert rr.balance("a") == -91
    rr.set_quantum("a", 1000)
    assert rr.balance("a") == -91


def test_messages_that_are_gone_are_not_picked() -> None:
    rr = DeficitRoundRobin({"a": 2, "b": 2})
    rr.offer("a", 3)
    rr.offer("b", 1)
    rr.withdraw("a", 3)
    assert [rr.pick(), rr.pick()] == [Ticket("b"), None]


def test_lanes_come_and_go() -> None:
    rr = backlogged({"a": 1, "b": 1})
    assert order(rr, 1) == "a"
    rr.add_lane("c", 2)
    rr.offer("c", 10)
    assert order(rr, 5) == "bccab"
    rr.remove_lane("b")
    assert order(rr, 4) == "ccac"
    rr.remove_lane("a")
    rr.remove_lane("c")
    assert rr.pick() is None


def test_tenants_inside_queues_are_the_same_object_inside_itself() -> None:
    queues = DeficitRoundRobin({"q0": 2, "q1": 1})
    tenants = {"q0": DeficitRoundRobin({"x": 1, "y": 3}), "q1": DeficitRoundRobin({"x": 1, "z": 1})}
    for queue, inner in tenants.items():
        for tenant in inner.quanta:
            inner.offer(tenant, 2000)
            queues.offer(queue, 2000)
    sent: Counter[tuple[str, str]] = Counter()
    for _ in range(1200):
        outer = queues.pick()
        assert outer is not None
        ticket = tenants[outer.lane].pick()
        assert ticket is not None
        tenants[outer.lane].settle(ticket, 1)
        queues.settle(outer, 1)
        sent[outer.lane, ticket.lane] += 1
    assert sent == {("q0", "x"): 200, ("q0", "y"): 600, ("q1", "x"): 200, ("q1", "z"): 200}


def idle_lanes(active: int, all_lanes: int) -> DeficitRoundRobin:
    rr = DeficitRoundRobin({str(i): 2 for i in range(all_lanes)})
    for i in range(active):
        rr.offer(str(i), 1000)
    return rr


def test_lanes_without_work_are_never_looked_at() -> None:
    asked: list[str] = []

    def note(lane: str) -> bool:
        asked.append(lane)
        return True

    rr = idle_lanes(active=10, all_lanes=10_000)
    for _ in range(100):
        rr.pick(eligible=note)
    assert len(asked) <= 200
    assert set(asked) == {str(i) for i in range(10)}
