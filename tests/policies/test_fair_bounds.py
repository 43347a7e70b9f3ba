"""What fairness promises, for any quanta, costs, arrivals, idleness and number of workers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from leash.policies.fair import DeficitRoundRobin, Ticket

QUANTA = st.lists(st.integers(1, 20), min_size=2, max_size=6)


def backlogged(quanta: list[int]) -> DeficitRoundRobin:
    rr = DeficitRoundRobin({str(i): q for i, q in enumerate(quanta)})
    for lane in rr.quanta:
        rr.offer(lane, 100_000)
    return rr


def spread(sent: dict[str, int], quanta: dict[str, int]) -> Fraction:
    rounds = [Fraction(n, quanta[lane]) for lane, n in sent.items()]
    return max(rounds) - min(rounds)


@settings(max_examples=100, deadline=None)
@given(quanta=QUANTA, count=st.integers(1, 400))
def test_with_unit_costs_no_lane_is_more_than_a_round_ahead(quanta: list[int], count: int) -> None:
    rr = backlogged(quanta)
    sent = dict.fromkeys(rr.quanta, 0)
    for _ in range(count):
        ticket = rr.pick()
        assert ticket is not None
        rr.settle(ticket, 1)
        sent[ticket.lane] += 1
        assert spread(sent, rr.quanta) <= 1
        assert 0 <= rr.balance(ticket.lane) < rr.quanta[ticket.lane]


@settings(max_examples=100, deadline=None)
@given(quanta=QUANTA, costs=st.lists(st.integers(1, 30), min_size=1, max_size=300), known=st.booleans())
def test_with_one_worker_the_largest_cost_bounds_spread_and_balance(
    quanta: list[int], costs: list[int], known: bool
) -> None:
    rr = backlogged(quanta)
    sent = dict.fromkeys(rr.quanta, 0)
    largest = max(costs)
    for cost in costs:
        ticket = rr.pick(cost=(lambda _, cost=cost: cost) if known else None)  # type: ignore[misc]
        assert ticket is not None
        rr.settle(ticket, cost)
        sent[ticket.lane] += cost
        assert spread(sent, rr.quanta) <= 1 + Fraction(largest - 1, min(quanta))
        assert -largest < rr.balance(ticket.lane) <= rr.quanta[ticket.lane]


@settings(max_examples=100, deadline=None)
@given(
    quanta=QUANTA,
    workers=st.integers(2, 8),
    jobs=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 7)), min_size=1, max_size=300),
)
def test_with_several_workers_each_one_adds_at_most_one_unknown_cost(
    quanta: list[int], workers: int, jobs: list[tuple[int, int]]
) -> None:
    rr = backlogged(quanta)
    sent = dict.fromkeys(rr.quanta, 0)
    busy: list[Ticket] = []
    largest = max(cost for cost, _ in jobs)
    for cost, who in jobs:
        while len(busy) < workers:
            ticket = rr.pick()
            assert ticket is not None
            busy.append(ticket)
            sent[ticket.lane] += 1
        done = busy.pop(who % len(busy))
        rr.settle(done, cost)
        sent[done.lane] += cost - 1
        assert spread(sent, rr.quanta) <= 1 + Fraction(workers * (largest - 1), min(quanta))
        assert all(-workers * largest < rr.balance(lane) <= q for lane, q in rr.quanta.items())


TRAFFIC = st.lists(
    st.tuples(
        st.sampled_from(["offer", "work", "work", "work", "block", "unblock"]),
        st.integers(0, 3),
        st.integers(1, 12),
    ),
    max_size=150,
)


@settings(max_examples=200, deadline=None)
@given(quanta=st.lists(st.integers(1, 9), min_size=4, max_size=4), traffic=TRAFFIC)
def test_coming_going_and_sitting_out_never_lift_a_balance_above_a_quantum(
    quanta: list[int], traffic: list[tuple[str, int, int]]
) -> None:
    rr = DeficitRoundRobin({str(i): q for i, q in enumerate(quanta)})
    blocked = [False] * 4
    waiting = [0] * 4
    for op, i, n in traffic:
        lane = str(i)
        if op == "offer":
            rr.offer(lane, n)
            waiting[i] += n
        elif op == "work":
            ticket = rr.pick()
            assert (ticket is None) == (not any(w and not b for w, b in zip(waiting, blocked, strict=True)))
            if ticket is not None:
                assert not blocked[int(ticket.lane)]
                waiting[int(ticket.lane)] -= 1
                rr.settle(ticket, n)
        else:
            before = rr.balance(lane)
            blocked[i] = op == "block"
            rr.block(lane) if blocked[i] else rr.unblock(lane)
            assert rr.balance(lane) == before
        assert all(-12 < rr.balance(lane) <= q for lane, q in rr.quanta.items())


@settings(max_examples=100, deadline=None)
@given(
    debt=st.integers(1, 60),
    quantum=st.integers(1, 9),
    gaps=st.lists(st.integers(0, 9), min_size=1, max_size=30),
)
def test_a_debt_cannot_be_laundered_by_going_idle(debt: int, quantum: int, gaps: list[int]) -> None:
    """One lane owes; it comes back with one message at a time, when it likes. Another one is always busy."""
    rr = DeficitRoundRobin({"owes": quantum, "busy": 1})
    rr.offer("owes")
    rr.offer("busy", 100_000)
    ticket = rr.pick()
    assert ticket is not None
    rr.settle(ticket, debt)
    left = debt - quantum  # what it owes beyond the turn that it had
    rounds = 0
    for gap in gaps:
        for _ in range(gap):
            ticket = rr.pick()
            assert ticket is not None
            if ticket.lane == "owes":
                assert rounds * quantum > left  # not before the rounds that went by have paid
                return
            rounds += 1  # a turn of the busy lane is a round
        rr.offer("owes")


@settings(max_examples=150, deadline=None)
@given(
    quanta=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    deliveries=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(0, 8)), max_size=200),
)
def test_held_rounds_keep_the_spread_at_one_whatever_the_order_of_deliveries(
    quanta: list[int], deliveries: list[tuple[int, int, int]]
) -> None:
    """All queues are deep, which is known, but their messages trickle in, in any order."""
    rr = DeficitRoundRobin({str(i): q for i, q in enumerate(quanta)})
    sent = dict.fromkeys(rr.quanta, 0)
    for lane in rr.quanta:
        rr.expect(lane, 10_000)
    for i, n, picks in deliveries:
        rr.offer(str(i % len(quanta)), n)
        for _ in range(picks):
            ticket = rr.pick()
            if ticket is None:
                break
            rr.settle(ticket)
            sent[ticket.lane] += 1
            assert spread(sent, rr.quanta) <= 1
