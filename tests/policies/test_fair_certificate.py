"""The certificate: what is measured, against what, over whom, and the reasons for a breach."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.policies.fair import DeficitRoundRobin, Ticket
from leash.policies.fair.certificate import Certificate


def test_it_measures_the_spread_in_rounds() -> None:
    certificate = Certificate({"gold": 10, "free": 2})
    for _ in range(10):
        certificate.picked(Ticket("gold"))
    assert certificate.verdict().spread == 1
    certificate.picked(Ticket("free"))
    verdict = certificate.verdict()
    assert verdict[:3] == (Fraction(1, 2), Fraction(1), 2)
    assert verdict.fair
    assert str(verdict) == "fair: spread 0.50 rounds over 2 lanes, bound 1.00"


def test_it_names_the_lanes_that_break_the_bound_and_why() -> None:
    certificate = Certificate({"gold": 10, "silver": 5, "free": 1})
    certificate.explain("free", "window-limited: free needs 10 credits, has 4")
    for _ in range(5):
        certificate.picked(Ticket("silver", 1))
    for _ in range(21):
        certificate.picked(Ticket("gold"))
    verdict = certificate.verdict()
    assert not verdict.fair
    assert verdict.behind == {
        "silver": "no reason known",
        "free": "window-limited: free needs 10 credits, has 4",
    }
    assert str(verdict) == (
        "unfair: spread 2.10 rounds over 3 lanes, bound 1.00; silver: no reason known; "
        "free: window-limited: free needs 10 credits, has 4"
    )
    certificate.explain("free", "")
    assert certificate.verdict().behind["free"] == "no reason known"


def test_the_largest_cost_widens_the_bound() -> None:
    certificate = Certificate({"a": 10, "b": 4})
    certificate.picked(Ticket("a", 7))
    assert certificate.verdict().bound == 1 + Fraction(6, 4)
    certificate.picked(Ticket("b"))
    certificate.settled(Ticket("b"), 9)
    assert certificate.verdict()[:2] == (Fraction(9, 4) - Fraction(7, 10), 1 + Fraction(8, 4))


def test_several_workers_widen_it_each() -> None:
    certificate = Certificate({"a": 4}, workers=3)
    certificate.picked(Ticket("a", 5))
    assert certificate.verdict().bound == 4


def test_a_lane_that_ran_out_of_work_is_no_longer_measured() -> None:
    certificate = Certificate({"a": 1, "b": 1, "c": 1})
    for _ in range(5):
        certificate.picked(Ticket("a"))
        certificate.picked(Ticket("b"))
    assert not certificate.verdict().fair
    certificate.idle("c")
    certificate.picked(Ticket("c"))
    certificate.settled(Ticket("c"), 100)
    assert certificate.verdict()[:3] == (Fraction(0), Fraction(1), 2)
    assert certificate.verdict().fair


def test_nobody_to_measure_is_fair() -> None:
    certificate = Certificate({})
    assert certificate.verdict().fair
    assert str(certificate.verdict()) == "fair: spread 0.00 rounds over 0 lanes, bound 1.00"


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="quantum=0"):
        Certificate({"a": 0})
    with pytest.raises(ConfigError, match="workers=0"):
        Certificate({"a": 1}, workers=0)
    with pytest.raises(ConfigError, match="standing='b'"):
        Certificate({"a": 1}, standing={"b": 1})


@settings(max_examples=150, deadline=None)
@given(
    quanta=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    before=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 6)), max_size=60),
    costs=st.lists(st.integers(1, 20), min_size=1, max_size=120),
)
def test_a_measurement_may_begin_in_the_middle_of_any_round(
    quanta: list[int], before: list[tuple[int, int]], costs: list[int]
) -> None:
    rr = DeficitRoundRobin({str(i): q for i, q in enumerate(quanta)})
    for cost, n in before:
        rr.offer(str(cost % len(quanta)), n)
        ticket = rr.pick()
        if ticket is not None:
            rr.settle(ticket, cost)
    for lane in rr.quanta:
        rr.offer(lane, 1000)
    certificate = Certificate(rr.quanta, rr.standing())
    largest = max([*costs, *(cost for cost, _ in before)])
    for cost in costs:
        ticket = rr.pick()
        assert ticket is not None
        rr.settle(ticket, cost)
        certificate.picked(ticket)
        certificate.settled(ticket, cost)
        assert certificate.verdict().spread <= 1 + Fraction(largest - 1, min(quanta))


@settings(max_examples=150, deadline=None)
@given(
    quanta=st.lists(st.integers(1, 500), min_size=2, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 3), st.integers(1, 500)), max_size=8),
    count=st.integers(1, 1500),
)
def test_after_quanta_were_changed_in_the_middle_of_turns_shares_follow_the_new_ones(
    quanta: list[int], changes: list[tuple[int, int, int]], count: int
) -> None:
    rr = DeficitRoundRobin({str(i): q for i, q in enumerate(quanta)})
    for lane in rr.quanta:
        rr.offer(lane, 100_000)
    for picks, i, quantum in changes:
        for _ in range(picks):
            rr.pick()
        rr.set_quantum(str(i % len(quanta)), quantum)
        assert all(0 <= rr.balance(lane) <= q for lane, q in rr.quanta.items())
    certificate = Certificate(rr.quanta, rr.standing())
    sent = dict.fromkeys(rr.quanta, 0)
    assert certificate.verdict().fair
    for _ in range(count):
        ticket = rr.pick()
        assert ticket is not None
        certificate.picked(ticket)
        sent[ticket.lane] += 1
        if ticket.lane == "0":
            assert certificate.verdict().fair
    assert certificate.verdict().spread <= 1
    rounds = [Fraction(n, rr.quanta[lane]) for lane, n in sent.items()]
    assert max(rounds) - min(rounds) <= 2  # the round that they began in and the one that they end in


@settings(max_examples=100, deadline=None)
@given(
    quanta=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    start=st.integers(0, 60),
    count=st.integers(1, 100),
)
def test_with_unit_costs_a_measurement_begun_anywhere_stays_within_one(
    quanta: list[int], start: int, count: int
) -> None:
    rr = DeficitRoundRobin({str(i): q for i, q in enumerate(quanta)})
    for lane in rr.quanta:
        rr.offer(lane, 1000)
    for _ in range(start):
        rr.pick()
    certificate = Certificate(rr.quanta, rr.standing())
    for _ in range(count):
        ticket = rr.pick()
        assert ticket is not None
        certificate.picked(ticket)
        assert certificate.verdict().fair
        assert certificate.verdict().bound == 1
