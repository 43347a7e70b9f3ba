"""Sharing out a batch: exactly what picking message by message would give, for any budget, in any state."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from leash.policies.fair import DeficitRoundRobin, Ticket

LANES = "abcde"


def picked(rr: DeficitRoundRobin, budget: int) -> Counter[str]:
    grants: Counter[str] = Counter()
    for _ in range(budget):
        ticket = rr.pick()
        if ticket is None:
            break
        rr.settle(ticket)
        grants[ticket.lane] += 1
    return grants


def test_the_balances_carry_on_from_batch_to_batch() -> None:
    rr = DeficitRoundRobin({"gold": 10, "free": 1})
    assert rr.plan(backlog={"gold": 500, "free": 80}, budget=110) == {"gold": 100, "free": 10}
    assert rr.plan({"gold": 500, "free": 80}, 5) == {"gold": 5}
    assert rr.plan({"gold": 500, "free": 80}, 5) == {"gold": 5}
    assert rr.plan({"gold": 500, "free": 80}, 5) == {"free": 1, "gold": 4}


def test_what_a_short_lane_leaves_goes_to_the_others() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1, "c": 2})
    assert rr.plan({"a": 3, "b": 1000, "c": 10}, 100) == {"a": 3, "b": 87, "c": 10}
    assert (rr.visible("a"), rr.visible("b"), rr.visible("c")) == (0, 913, 0)


def test_a_budget_for_all_grants_all() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 7})
    assert rr.plan({"a": 30, "b": 20}, 10**15) == {"a": 30, "b": 20}
    assert rr.plan({"a": 30, "b": 20}, 50) == {"a": 30, "b": 20}


def test_a_lane_without_backlog_or_budget_is_granted_nothing() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 7})
    assert rr.plan({"a": 5}, 0) == {}
    assert rr.plan({"a": 5}, 10) == {"a": 5}
    assert rr.plan({}, 10) == {}
    assert rr.plan({"b": 0}, 10)["b"] == 0


def test_what_was_not_granted_stays_visible_for_pick() -> None:
    rr = DeficitRoundRobin({"a": 2, "b": 1})
    rr.plan({"a": 4, "b": 3}, 4)
    assert picked(rr, 10) == {"a": 1, "b": 2}


def test_quanta_4_to_40_shared_out_at_once() -> None:
    lanes = [f"p{i}" for i in range(10)]
    rr = DeficitRoundRobin({lane: 4 * (i + 1) for i, lane in enumerate(lanes)})
    grants = rr.plan(dict.fromkeys(lanes, 10**9), 200_015)
    assert [grants[lane] for lane in lanes] == [
        3640, 7280, 10920, 14555, 18180, 21816, 25452, 29088, 32724, 36360,
    ]  # fmt: skip


def test_a_short_read_is_made_up_for() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1})
    assert rr.plan({"a": 500, "b": 500}, 100) == {"a": 50, "b": 50}
    rr.settle(Ticket("a", 50), 20)
    assert rr.plan({"a": 500, "b": 500}, 100) == {"a": 65, "b": 35}


def test_a_surplus_is_forfeited_when_nothing_came_and_kept_after_an_error_or_a_deadline() -> None:
    for taken, dry, again in ((20, True, 50), (0, True, 50), (0, None, 50), (0, False, 75), (20, False, 65)):
        rr = DeficitRoundRobin({"a": 1, "b": 1})
        rr.plan({"a": 500, "b": 500}, 100)
        rr.settle(Ticket("a", 50), taken, dry=dry)
        assert rr.plan({"a": 500, "b": 500}, 100)["a"] == again


def test_a_lane_that_was_granted_all_it_had_keeps_its_surplus_after_an_error_only() -> None:
    for dry, again in ((None, 50), (True, 50), (False, 60)):
        rr = DeficitRoundRobin({"a": 1, "b": 1})
        assert rr.plan({"a": 30, "b": 500}, 100) == {"a": 30, "b": 70}
        rr.settle(Ticket("a", 30), 10, dry=dry)
        assert rr.plan({"a": 500, "b": 500}, 100)["a"] == again


def test_more_than_was_granted_is_owed() -> None:
    rr = DeficitRoundRobin({"a": 1, "b": 1})
    rr.plan({"a": 500, "b": 500}, 100)
    rr.settle(Ticket("a", 50), 80)
    assert rr.plan({"a": 500, "b": 500}, 100) == {"a": 35, "b": 65}


def test_a_held_round_is_over_once_the_backlog_is_known() -> None:
    rr = DeficitRoundRobin({"a": 4, "b": 1})
    rr.offer("a", 1)
    rr.offer("b", 9)
    rr.expect("a", 9)
    assert picked(rr, 9) == {"a": 1, "b": 1}
    assert rr.held == ["a"]
    assert rr.plan({"a": 0, "b": 9}, 5) == {"b": 5}
    assert rr.held == []


COUNT = st.one_of(st.integers(0, 12), st.integers(0, 120))


@st.composite
def scenario(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Any], list[tuple[Any, ...]]]:
    quanta = {lane: draw(st.integers(1, 9)) for lane in LANES}
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["tiers"] = {lane: draw(st.integers(0, 2)) for lane in LANES}
        if draw(st.booleans()):
            options["guaranteed"] = draw(st.dictionaries(st.integers(0, 2), st.integers(1, 33)))
    correction = st.tuples(
        st.just("settle"),
        st.sampled_from(LANES),
        st.integers(0, 60),
        st.integers(0, 60),
        st.sampled_from([None, True, False]),
    )
    batch = st.tuples(
        st.just("plan"), st.dictionaries(st.sampled_from(LANES), COUNT), st.one_of(COUNT, st.integers(0, 600))
    )
    block = st.tuples(st.sampled_from(["block", "unblock"]), st.sampled_from(LANES))
    skip = st.tuples(st.just("skip"), st.sampled_from(LANES), st.integers(1, 9))
    return quanta, options, draw(st.lists(st.one_of(batch, correction, block, skip), min_size=3, max_size=14))


TURN_LEFT_OPEN: list[tuple[Any, ...]] = [
    ("plan", {"a": 2, "b": 3}, 1),
    ("skip", "a", 3),
    ("plan", {"a": 1}, 2),
]


@settings(max_examples=200, deadline=None)
@given(scenario())
@example((dict.fromkeys(LANES, 1), {}, TURN_LEFT_OPEN))
def test_a_plan_is_what_repeated_picks_would_give(
    case: tuple[dict[str, int], dict[str, Any], list[tuple[Any, ...]]],
) -> None:
    quanta, options, steps = case
    rr, twin = DeficitRoundRobin(quanta, **options), DeficitRoundRobin(quanta, **options)
    for op, *args in steps:
        if op == "plan":
            backlog, budget = args
            twin.restore(twin.state())  # nothing is visible now
            for lane in LANES:
                twin.offer(lane, backlog.get(lane, 0))
            assert rr.plan(backlog, budget) == picked(twin, budget)
        elif op == "settle":
            lane, granted, cost, dry = args
            for each in (rr, twin):
                each.settle(Ticket(lane, granted), cost, dry=dry)
        elif op == "skip":  # leaves lanes in the middle of their turns behind
            lane, count = args
            for each in (rr, twin):
                for _ in range(count):
                    each.pick(eligible=lambda name, lane=lane: name != lane)  # type: ignore[misc]
        else:
            for each in (rr, twin):
                getattr(each, op)(args[0])
        assert rr.state() == twin.state()
        assert [rr.visible(lane) for lane in LANES] == [twin.visible(lane) for lane in LANES]


@settings(max_examples=200, deadline=None)
@given(
    quanta=st.lists(st.integers(1, 10**6), min_size=1, max_size=8),
    backlogs=st.lists(st.integers(0, 10**12), min_size=8, max_size=8),
    debts=st.lists(st.one_of(st.just(0), st.integers(0, 10**9)), min_size=8, max_size=8),
    cuts=st.lists(st.integers(0, 10**12), min_size=1, max_size=5),
)
def test_a_batch_cut_into_several_gives_the_same(
    quanta: list[int], backlogs: list[int], debts: list[int], cuts: list[int]
) -> None:
    whole, parts = (DeficitRoundRobin({str(i): q for i, q in enumerate(quanta)}) for _ in range(2))
    backlog = {str(i): n for i, n in zip(range(len(quanta)), backlogs, strict=False)}
    for rr in (whole, parts):
        for lane, debt in zip(backlog, debts, strict=False):
            rr.settle(Ticket(lane, 0), debt)
    at_once = whole.plan(backlog, sum(cuts))
    together: Counter[str] = Counter()
    for cut in cuts:
        together += parts.plan({lane: n - together[lane] for lane, n in backlog.items()}, cut)
    assert together == at_once
    assert at_once.total() == min(sum(cuts), sum(backlog.values()))
    assert whole.state() == parts.state()


@settings(max_examples=100, deadline=None)
@given(
    shares=st.lists(st.integers(1, 33), min_size=3, max_size=3),
    backlogs=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    cuts=st.lists(st.integers(0, 10**9), min_size=1, max_size=4),
)
def test_guaranteed_shares_of_a_huge_batch_are_counted_not_played(
    shares: list[int], backlogs: list[int], cuts: list[int]
) -> None:
    def tiered() -> DeficitRoundRobin:
        return DeficitRoundRobin(
            {str(i): i + 1 for i in range(4)},
            tiers={str(i): i for i in range(4)},
            guaranteed={i + 1: share for i, share in enumerate(shares)},
        )

    backlog = {str(i): n for i, n in enumerate(backlogs)}
    whole, parts = tiered(), tiered()
    at_once = whole.plan(backlog, sum(cuts))
    together: Counter[str] = Counter()
    for cut in cuts:
        together += parts.plan({lane: n - together[lane] for lane, n in backlog.items()}, cut)
    assert together == at_once
    assert at_once.total() == min(sum(cuts), sum(backlogs))
    for i, share in enumerate(shares, start=1):
        assert at_once[str(i)] >= min(backlogs[i], at_once.total() * share // 100 - len(shares))


def test_a_huge_budget_takes_no_longer_than_a_small_one() -> None:
    quanta = {str(i): 1 + i % 7 for i in range(1_000)}
    backlog = {lane: 10**9 + i * 7919 for i, lane in enumerate(quanta)}

    def seconds(budget: int) -> float:
        start = time.process_time()
        DeficitRoundRobin(quanta).plan(backlog, budget)
        return time.process_time() - start

    assert min(seconds(10**11) for _ in range(5)) < 10 * min(seconds(10**5) for _ in range(5))
