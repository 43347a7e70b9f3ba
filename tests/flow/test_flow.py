"""Flow: the policies together. Time is a number here, and nothing sleeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.flow import Dispatch, Flow, Lane, SetWindow, Shed
from leash.flow.flow import Cost
from tests.flow.kit import MS, S, finish, served, warm


def test_messages_leave_in_the_order_of_their_lane() -> None:
    flow = Flow([Lane("a", window=10)])
    flow.arrive(0, "a", [1, 2, 3])
    flow.arrive(1, "a", [4])
    got = []
    while work := flow.take(2):
        got += served(work)
        finish(flow, 3, work)
    assert got == [("a", 1), ("a", 2), ("a", 3), ("a", 4)]


def test_ten_lanes_get_exactly_what_their_quanta_say_with_batches_of_any_size() -> None:
    flow = Flow([Lane(f"p{i}", 4 * (i + 1), window=500) for i in range(10)], workers=4)
    warm(flow)
    sent: Counter[str] = Counter()
    now = 0
    for name in flow.lanes:
        flow.probed(now, name, 10**6, 1, MS)
        flow.arrive(now, name, list(range(200)))
    before = {name: lane.charged for name, lane in flow.lanes.items()}
    total = 0
    for turn in range(4000):
        now += 1000
        for lane, messages, estimate, _ in flow.take(now, 1 + turn % 64):
            sent[lane] += len(messages)
            total += len(messages)
            flow.arrive(now, lane, messages)
            flow.done(now, [Dispatch(lane, messages, estimate)], [1000])
            positions = [sent[f"p{i}"] / (4 * (i + 1)) for i in range(10)]
            assert max(positions) - min(positions) <= 1
    assert total > 100_000
    assert {name: lane.charged - before[name] for name, lane in flow.lanes.items()} == sent


def test_a_throttled_lane_sits_out_and_the_others_go_on() -> None:
    flow = Flow([Lane("free", rate=50, burst=100, window=200), Lane("gold", window=200)])
    warm(flow)
    sent: Counter[str] = Counter()
    for now in range(0, 2 * S, MS):
        for lane in flow.lanes:
            missing = 200 - len(flow.lanes[lane].buffer)
            if missing:
                flow.arrive(now, lane, list(range(missing)))
        left = 10
        while left:
            work = flow.take(now, left)
            assert "free" not in [d.lane for d in work[1:]]  # it starts now, or not yet
            left -= sum(len(d.messages) for d in work)
            for lane, messages, *_ in work:
                sent[lane] += len(messages)
            finish(flow, now, work)
    assert sent["free"] == 99 + 99  # one went to warming up, and the last token comes a millisecond later
    assert sent["gold"] == 20_000 - sent["free"]


def test_the_total_rate_leaves_the_shares_alone() -> None:
    flow = Flow([Lane("a", 3, window=500), Lane("b", 1, window=500)], rate=100, burst=1)
    sent: Counter[str] = Counter()
    flow.arrive(0, "a", list(range(500)))
    flow.arrive(0, "b", list(range(500)))
    now = 0
    while sum(sent.values()) < 400:
        work = flow.take(now, 64)
        for lane, messages, *_ in work:
            sent[lane] += len(messages)
        finish(flow, now, work)
        wait = flow.wait(now)
        assert wait
        now += wait
    assert sent == {"a": 300, "b": 100}
    assert now == 4 * S


def test_a_lower_tier_is_served_when_the_higher_one_has_nothing() -> None:
    flow = Flow([Lane("batch", tier=1, window=9), Lane("urgent", tier=0, window=9)])
    flow.arrive(0, "batch", [1, 2])
    flow.arrive(0, "urgent", [1])
    assert [d.lane for d in flow.take(0, 1)] == ["urgent"]
    assert [d.lane for d in flow.take(0, 1)] == ["batch"]


def test_costs_given_with_the_messages_are_charged() -> None:
    flow = Flow([Lane("a", 100, window=500), Lane("b", 100, window=500)], cost="given")
    for name, cost in (("a", 50), ("b", 10)):
        flow.probed(0, name, 1000, 1, MS)
        flow.arrive(0, name, list(range(400)), [cost] * 400)
    sent = Counter(lane for lane, _ in served(flow.take(1, 300)))
    assert sent["b"] == pytest.approx(5 * sent["a"], abs=11)


def test_a_message_that_is_said_to_cost_nothing_costs_one_so_its_lane_cannot_have_the_whole_pool() -> None:
    flow = Flow([Lane("free", 10, window=500), Lane("paid", 10, window=500)], cost="given")
    warm(flow)
    for name, cost in (("free", 0), ("paid", 1)):
        flow.probed(0, name, 1000, 1, MS)
        flow.arrive(0, name, list(range(400)), [cost] * 400)
    flow.tick(MS)
    sent = Counter(lane for lane, _ in served(flow.take(2 * MS, 300)))
    assert sent == {"free": 150, "paid": 150}
    assert all(verdict.fair for verdict in flow.watch.verdicts())


def test_measured_time_is_charged_afterwards() -> None:
    flow = Flow([Lane("slow", 100, window=500), Lane("fast", 100, window=500)], cost="time")
    for name in flow.lanes:
        flow.probed(0, name, 10_000, 1, MS)
        flow.arrive(0, name, list(range(4000)))
    work_time: Counter[str] = Counter()
    now = 0
    for _ in range(4000):
        for dispatch in flow.take(now, 1):
            service = 900_000 if dispatch.lane == "slow" else 100_000
            now += service
            work_time[dispatch.lane] += service
            flow.done(now, [dispatch], [service])
    assert work_time["slow"] == pytest.approx(work_time["fast"], rel=0.02)


def test_an_ordered_lane_has_one_message_in_work_and_waits_for_its_next_try() -> None:
    flow = Flow([Lane("a", 5, window=9, ordered=True)], workers=4)
    warm(flow)
    flow.arrive(0, "a", [1, 2, 3])
    work = flow.take(0, 64)
    assert served(work) == [("a", 1)]
    assert flow.take(0, 64) == []
    flow.retry_in_place(1, "a", 1, at=S)
    finish(flow, 1, work)
    assert flow.take(1, 64) == []
    assert flow.wait(1) == S - 1
    work = flow.take(S, 64)
    assert served(work) == [("a", 1)]
    finish(flow, S, work)
    assert served(flow.take(S, 64)) == [("a", 2)]


def test_pausing_a_lane_leaves_its_share_to_the_others_until_it_resumes() -> None:
    flow = Flow([Lane("a", window=9), Lane("b", window=9)])
    flow.arrive(0, "a", [1])
    flow.arrive(0, "b", [1])
    flow.pause("a")
    assert served(flow.take(0, 9)) == [("b", 1)]
    flow.resume("a")
    assert served(flow.take(1, 9)) == [("a", 1)]


def test_forgetting_a_lane_returns_what_was_buffered_and_serves_none_of_it() -> None:
    flow = Flow([Lane("a", window=9), Lane("b", window=9)])
    flow.arrive(0, "a", [1, 2])
    flow.arrive(0, "b", [3])
    assert flow.forget(0, "a") == [1, 2]
    assert served(flow.take(0, 9)) == [("b", 3)]
    flow.arrive(0, "a", [4])
    assert served(flow.take(0, 9)) == [("a", 4)]


def test_a_window_that_is_too_large_comes_down_and_says_why() -> None:
    flow = Flow([Lane("a")])
    now = 0
    flow.probed(now, "a", 10**6, 1, MS)
    flow.arrive(now, "a", list(range(16)))
    change = None
    while change is None:
        assert now < 2 * S
        work = flow.take(now)
        now += 4 * MS
        finish(flow, now, work, 4 * MS)
        flow.arrive(now, "a", [1])
        flow.tick(now)
        change = next((d for d in flow.decisions if isinstance(d, SetWindow)), None)
        flow.decisions = [d for d in flow.decisions if isinstance(d, SetWindow)]
    assert change.window < 5
    assert change.resume is not None
    assert "never used" in change.reason


def standing_delay(mode: str, **more: Any) -> tuple[Flow, list[Shed]]:
    flow = Flow([Lane("a", shed=mode, **more)])  # type: ignore[arg-type]
    now = 0
    sheds: list[Shed] = []
    for _ in range(20):
        flow.arrive(now, "a", list(range(20)))
        flow.probed(now, "a", 10**6, 3, MS)
        for _ in range(20):
            work = flow.take(now, 1)
            now += 20 * MS
            finish(flow, now, work, 20 * MS)
            flow.tick(now)
            sheds += [d for d in flow.decisions if isinstance(d, Shed)]
            flow.decisions.clear()
    return flow, sheds


def test_a_standing_delay_drops_only_where_a_deadline_was_set() -> None:
    flow, sheds = standing_delay("drop", deadline=50 * MS)
    assert sheds
    assert {shed.kind for shed in sheds} <= {"drop", "return"}
    assert any(shed.kind == "drop" for shed in sheds)
    assert standing_delay("shrink")[1] == []
    assert standing_delay("observe")[1] == []
    assert flow.lanes["a"].in_work == 0


def test_the_same_trace_gives_the_same_decisions() -> None:
    def trace() -> list[Any]:
        flow = Flow(
            [Lane("a", 3), Lane("b", 1, rate=100, burst=5), Lane("c", 7, tier=1)], workers=3, rate=900
        )
        log: list[Any] = []
        now = 0
        for step in range(3000):
            now += step * 7919 % 3 * MS
            if step % 3 == 0:
                flow.arrive(now, "abc"[step % 7 % 3], list(range(step % 11)))
            if step % 50 == 0:
                flow.probed(now, "abc"[step % 3], step % 40, 2, 3 * MS)
            work = flow.take(now, since=now - MS if step % 5 else None)
            log += work
            finish(flow, now, work, step % 4 * MS)
            flow.tick(now)
            log += flow.decisions
            flow.decisions.clear()
        return log

    assert trace() == trace()


def test_the_certificate_names_the_lane_that_falls_behind_and_why() -> None:
    flow = Flow([Lane("gold", 10, window=100), Lane("free", 10, window=4)])
    warm(flow, 12 * MS)
    for name in flow.lanes:
        flow.probed(0, name, 1000, 1, 100 * MS)
        flow.arrive(0, name, [0] * 4)
    flow.tick(MS)
    flow.tick(100 * MS)
    gold, free = flow.lanes["gold"], flow.lanes["free"]
    assert gold.waiting
    assert free.waiting
    gold.charged += 40  # what a driver that ignored the round would have done
    (verdict,) = flow.watch.verdicts()
    assert verdict.behind == {"free": "window-limited: free needs 10 credits, has 4"}


@pytest.mark.parametrize(
    ("bad", "argument"),
    [
        (lambda: Flow([Lane("a", 0)]), "quantum"),
        (lambda: Flow([Lane("a"), Lane("a")]), "lane"),
        (lambda: Flow([Lane("a", rate=-1)]), "rate"),
        (lambda: Flow([Lane("a", target=2, interval=1)]), "target"),
        (lambda: Flow([Lane("a", window=0)]), "window"),
        (lambda: Flow([Lane("a")], buffer_messages=0), "buffer_messages"),
        (lambda: Flow([Lane("a")], buffer_bytes=0), "buffer_bytes"),
        (lambda: Flow([Lane("a")], batch=0), "batch"),
        (lambda: Flow([Lane("a")], workers=0), "workers"),
        (lambda: Flow([Lane("a")], cost="bytes"), "cost"),  # type: ignore[arg-type]
        (lambda: Flow([Lane("a")]).pause("b"), "queue"),
    ],
)
def test_a_bad_argument_is_named(bad: Any, argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bad()
    assert caught.value.argument == argument


@settings(max_examples=150, deadline=None)
@given(
    cost=st.sampled_from(["count", "given"]),
    steps=st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 40), st.booleans(), st.integers(1, 300)), max_size=60
    ),
)
def test_changing_quanta_in_the_middle_of_turns_breaks_no_bound(
    cost: Cost, steps: list[tuple[int, int, bool, int]]
) -> None:
    names = ["a", "b", "c"]
    flow = Flow([Lane(name, 200, window=500) for name in names], cost=cost)
    warm(flow)
    now = 0
    for most, each, change, quantum in steps:
        now += 50 * MS
        for name in names:
            count = 400 - len(flow.lanes[name].buffer)
            flow.arrive(now, name, [0] * count, [each] * count)
        for _ in range(4):
            finish(flow, now, flow.take(now, most))
        if change:
            flow.set_quantum(names[quantum % 3], quantum)
        flow.tick(now)
        assert all(verdict.fair for verdict in flow.watch.verdicts())
        assert flow.watch.worst.fair
