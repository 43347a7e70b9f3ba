"""Lanes that need permits: they sit out without one, share by quantum, and ask for what they can use."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from leash.flow import Ask, Flow, Lane, Purse
from leash.flow.budgets import PATIENCE, pace
from leash.policies.permits import NEVER, Permits
from tests.flow.kit import MS, finish, served


def flow_of(
    *lanes: Lane, workers: int = 1, held: bool = False, cost: int | None = None, size: int = 100
) -> tuple[Flow, Purse]:
    purse = Purse("sms", Permits(held=held), size, None if cost is None else lambda _: cost)
    return Flow(lanes, workers=workers, shared=[purse]), purse


def asked(flow: Flow) -> list[int]:
    found = [decision.short for decision in flow.decisions if isinstance(decision, Ask)]
    flow.decisions.clear()
    return found


def grant(flow: Flow, purse: Purse, now: int, count: int, until: int = NEVER) -> None:
    purse.permits.grant(now, count, until)
    flow.told(now)


def test_without_a_permit_a_lane_sits_out_and_the_others_go_on() -> None:
    flow, purse = flow_of(Lane("limited", budgets=("sms",)), Lane("free"))
    flow.arrive(0, "limited", [1, 2])
    flow.arrive(0, "free", [3])
    assert served(flow.take(0, 1)) == [("free", 3)]
    assert flow.take(0, 1) == []
    assert asked(flow) == [1]
    grant(flow, purse, 1, 1)
    assert served(flow.take(1, 9)) == [("limited", 1)]
    assert flow.take(1, 9) == []


def test_a_lane_asks_only_when_it_has_messages_and_a_worker_is_free() -> None:
    flow, purse = flow_of(Lane("a", budgets=("sms",)), workers=2)
    assert flow.take(0) == []
    assert asked(flow) == []
    flow.arrive(0, "a", [1, 2, 3])
    assert flow.take(0) == []
    assert asked(flow) == [2]
    grant(flow, purse, 1, 2)
    assert len(flow.take(1, 1)) == 1
    assert len(flow.take(1, 1)) == 1
    assert purse.permits.short == 0  # both are busy


def test_work_says_until_when_it_may_begin_and_comes_back_if_it_did_not() -> None:
    flow, purse = flow_of(Lane("a", budgets=("sms",)))
    flow.arrive(0, "a", [1])
    grant(flow, purse, 0, 1, until=5)
    [work] = flow.take(1)
    assert work.until == 5
    left = flow.recall(6, work, [1], [0])
    assert left.messages == []
    assert flow.take(6) == []
    grant(flow, purse, 7, 1, until=9)
    assert served(flow.take(7)) == [("a", 1)]
    assert purse.permits.taken == 1


def test_two_lanes_share_one_budget_by_quantum_one_permit_at_a_time() -> None:
    flow, purse = flow_of(Lane("gold", 3, budgets=("sms",)), Lane("free", 1, budgets=("sms",)))
    for lane in ("gold", "free"):
        flow.arrive(0, lane, list(range(100)))
    sent: Counter[str] = Counter()
    for now in range(1, 81):
        grant(flow, purse, now * MS, 1)
        work = flow.take(now * MS)
        sent.update(dispatch.lane for dispatch in work)
        finish(flow, now * MS, work)
        assert flow.take(now * MS) == []
    assert sent == {"gold": 60, "free": 20}


def test_a_lower_tier_is_served_while_a_higher_one_has_no_permit() -> None:
    flow, _ = flow_of(Lane("high", budgets=("sms",)), Lane("low", tier=1))
    flow.arrive(0, "high", [1])
    flow.arrive(0, "low", [2])
    assert served(flow.take(0)) == [("low", 2)]
    assert not flow.lanes["high"].waiting


def test_a_message_takes_what_it_costs_or_waits() -> None:
    flow, purse = flow_of(Lane("a", budgets=("sms",)), cost=30)
    flow.arrive(0, "a", [1, 2])
    assert flow.take(0) == []
    assert purse.permits.least == 30
    grant(flow, purse, 0, 29)
    assert flow.take(0) == []
    grant(flow, purse, 0, 1)
    assert served(flow.take(0)) == [("a", 1)]


def test_a_cost_above_the_burst_starts_when_the_burst_is_there_and_leaves_a_debt() -> None:
    flow, purse = flow_of(Lane("a", budgets=("sms",)), cost=250, size=100)
    flow.arrive(0, "a", [1, 2])
    grant(flow, purse, 0, 100)
    work = flow.take(0)
    assert served(work) == [("a", 1)]
    finish(flow, 0, work)
    grant(flow, purse, 1, 100)
    assert flow.take(1) == []
    grant(flow, purse, 2, 100)
    assert flow.take(2) == []
    grant(flow, purse, 3, 50)
    assert served(flow.take(3)) == [("a", 2)]


def test_leave_to_be_at_work_is_given_back_when_the_work_is_done() -> None:
    flow, purse = flow_of(Lane("a", budgets=("sms",)), held=True)
    flow.arrive(0, "a", [1, 2])
    grant(flow, purse, 0, 1)
    work = flow.take(0)
    assert purse.permits.at_work == 1
    finish(flow, 1, work)
    assert (purse.permits.at_work, purse.permits.spent) == (0, 1)
    assert flow.take(1) == []
    assert asked(flow)  # the driver hears of it


def test_both_budgets_of_a_lane_must_agree() -> None:
    one, two = Purse("one", Permits(), 9), Purse("two", Permits(), 9)
    flow = Flow([Lane("a", budgets=("one", "two"))], shared=[one, two])
    flow.arrive(0, "a", [1, 2])
    grant(flow, one, 0, 2)
    assert flow.take(0) == []
    grant(flow, two, 0, 1, until=7)
    [work] = flow.take(0)
    assert (len(work.messages), work.until) == (1, 7)
    assert one.permits.available(0) == 1


def test_permits_for_what_is_dropped_are_not_kept_at_work() -> None:
    lane = Lane("a", budgets=("sms",), shed="drop", deadline=1, target=1, interval=1, window=50)
    flow, purse = flow_of(lane, held=True)
    flow.arrive(0, "a", list(range(40)), ages=[100] * 40)
    for now in range(1, 40):
        grant(flow, purse, now * MS, 1)
        finish(flow, now * MS, flow.take(now * MS))
    assert any(type(decision).__name__ == "Shed" for decision in flow.decisions)
    assert purse.permits.at_work == 0


def slow(*lanes: Lane, workers: int = 1, service: int = 100 * MS) -> tuple[Flow, Purse]:
    """Lanes with messages, whose handlers take longer than permits last, and a budget of 20 per second."""
    flow, purse = flow_of(*lanes, workers=workers)
    pace(purse, 20, 20, 1, 100 * MS)
    for lane in lanes:
        flow.arrive(0, lane.name, list(range(100)))
    flow.service = service
    return flow, purse


def test_a_worker_waits_for_a_permit_when_it_is_the_turn_of_a_lane_without_one() -> None:
    flow, purse = slow(Lane("limited", budgets=("sms",)), Lane("free"))
    now, sent = 0, Counter[str]()
    for _ in range(20):
        work = flow.take(now, 1)
        if not work:
            assert asked(flow) == [1]
            due = flow.wait(now)
            assert due is not None
            assert due <= PATIENCE
            now += 3 * MS
            grant(flow, purse, now, 1, until=now + 50 * MS)
            work = flow.take(now, 1)
            assert work[0].lane == "limited"
        sent.update(dispatch.lane for dispatch in work)
        now += 100 * MS
        finish(flow, now, work, 100 * MS)
    assert sent == {"limited": 10, "free": 10}
    assert purse.permits.void == 0


def test_a_worker_that_waited_in_vain_goes_on_and_the_next_ones_wait_less_often() -> None:
    flow, _ = slow(Lane("limited", budgets=("sms",)), Lane("free"))
    now, waits = 0, []
    while now < 10_000 * MS:
        work = flow.take(now, 1)
        if not work:
            waits.append(now)
            due = flow.wait(now)
            assert due is not None
            now += due
            work = flow.take(now, 1)
        assert [dispatch.lane for dispatch in work] == ["free"]
        now += 100 * MS
        finish(flow, now, work, 100 * MS)
        if not flow.lanes["free"].buffer:
            flow.arrive(now, "free", list(range(100)))
    between = [later - earlier for earlier, later in pairwise(waits)]
    assert between == sorted(between)
    assert 1000 * MS <= between[-1] <= 1200 * MS
    assert len(waits) < 20


def test_a_worker_waits_for_a_permit_while_the_other_lanes_messages_are_in_flight() -> None:
    flow, purse = flow_of(Lane("limited", budgets=("sms",)), Lane("free"))
    pace(purse, 20, 20, 1, 100 * MS)
    flow.lanes["free"].service, flow.lanes["limited"].service = 100 * MS, MS // 100
    now, sent = 0, Counter[str]()
    flow.arrive(now, "limited", list(range(100)))
    flow.probed(now, "free", 100, 1, MS)
    for _ in range(20):
        work = flow.take(now, 1)
        if not work:
            assert asked(flow)[0] == 1  # the others have their turns as well
            flow.arrive(now + MS, "free", [0])  # its window is 1: the next message came after the ack
            assert flow.take(now + MS, 1) == []
            now += 3 * MS
            grant(flow, purse, now, 1, until=now + 50 * MS)
            work = flow.take(now, 1)
        sent.update(dispatch.lane for dispatch in work)
        took = 100 * MS if work[0].lane == "free" else MS // 100
        now += took
        finish(flow, now, work, took)
    assert sent == {"limited": 10, "free": 10}
    assert purse.permits.void == 0


def test_after_a_wait_that_was_worth_it_the_next_worker_may_wait_at_once() -> None:
    flow, purse = slow(Lane("limited", budgets=("sms",)), Lane("free"), workers=2)
    assert flow.take(0, 1)[0].lane == "free"
    assert flow.take(0, 1) == []
    grant(flow, purse, MS, 1, until=50 * MS)
    work = flow.take(MS, 1)
    assert work[0].lane == "limited"
    finish(flow, 2 * MS, work, 100 * MS)
    work = flow.take(2 * MS, 1)
    assert work[0].lane == "free"
    finish(flow, 3 * MS, work, 100 * MS)
    assert flow.take(3 * MS, 1) == []
    assert purse.permits.short == 1


def test_fast_workers_do_not_wait_but_ask_ahead() -> None:
    flow, purse = slow(Lane("limited", budgets=("sms",)), Lane("free"), service=MS)
    work = flow.take(0, 1)
    assert work[0].lane == "free"
    assert asked(flow) == [1]
    finish(flow, MS, work, MS)
    grant(flow, purse, MS, 1, until=50 * MS)
    assert flow.take(MS, 1)[0].lane == "limited"


def test_no_worker_waits_while_another_one_is_free() -> None:
    flow, purse = slow(Lane("limited", budgets=("sms",)), Lane("free"), workers=2)
    assert flow.take(0, 1)[0].lane == "free"
    assert purse.permits.short == 0  # the other worker gets work, too: a permit would expire
    assert flow.take(0, 1) == []
    assert purse.permits.short == 1


def test_a_lane_with_two_budgets_sits_out_if_one_of_them_has_no_permit() -> None:
    purses = [Purse("a", Permits(), 100), Purse("b", Permits(), 100)]
    flow = Flow([Lane("both", budgets=("a", "b"))], shared=purses)
    flow.arrive(0, "both", [1, 2])
    grant(flow, purses[1], 0, 1)
    assert flow.take(0) == []
    assert flow.lanes["both"].permitless
    grant(flow, purses[0], 1, 1)
    assert served(flow.take(1)) == [("both", 1)]
