"""Messages that a worker took and did not begin go back in front."""

from __future__ import annotations

from leash.flow import Dispatch, Flow, Lane
from leash.flow.lane import BUSY
from tests.flow.kit import MS, finish, served, warm


def test_what_was_not_begun_goes_back_in_front_and_costs_nothing() -> None:
    flow = Flow([Lane("a", 10, rate=1000, burst=50, window=100), Lane("b", 10, window=100)])
    warm(flow)
    before = {name: (lane.charged, lane.in_work) for name, lane in flow.lanes.items()}
    flow.arrive(0, "b", list(range(30)))
    (dispatch,) = flow.take(0, 10)
    left = flow.recall(MS, dispatch, dispatch.messages[4:], [0] * 6)
    assert left == Dispatch("b", [0, 1, 2, 3], 4)
    assert flow.lanes["b"].charged == before["b"][0] + 4
    finish(flow, MS, [left])
    assert flow.lanes["b"].in_work == before["b"][1]
    assert [n for _, n in served(flow.take(MS, 64))] == list(range(4, 30))
    flow.arrive(2 * MS, "a", [1])
    tokens = flow.lanes["a"].bucket
    assert tokens is not None
    level = tokens.level(2 * MS)
    (dispatch,) = flow.take(2 * MS, 10)
    flow.done(2 * MS, [flow.recall(2 * MS, dispatch, [1], [0])], [0])
    assert tokens.level(2 * MS) == level
    assert served(flow.take(2 * MS, 10)) == [("a", 1)]


def test_an_ordered_lane_whose_message_was_not_begun_goes_on_with_it() -> None:
    flow = Flow([Lane("a", 5, window=9, ordered=True)], workers=2)
    flow.arrive(0, "a", [1, 2])
    (dispatch,) = flow.take(0, 4)
    left = flow.recall(MS, dispatch, [1], [0])
    assert left == Dispatch("a", [], 0)
    (again,) = flow.take(MS, 4)  # another worker, while the first one still has its empty dispatch
    assert again.messages == [1]
    finish(flow, MS, [left])
    assert flow.take(MS, 4) == []  # that says nothing about the message that is in work now
    finish(flow, 2 * MS, [again])
    assert served(flow.take(2 * MS, 4)) == [("a", 2)]


def test_an_ordered_lanes_message_behind_a_slow_one_of_another_lane_goes_to_another_worker() -> None:
    flow = Flow([Lane("slow", window=9), Lane("a", window=9, ordered=True)], workers=2)
    warm(flow)
    flow.arrive(0, "slow", [1])
    flow.arrive(0, "a", [1, 2])
    work = flow.take(0, 9)
    assert served(work) == [("slow", 1), ("a", 1)]
    left = flow.recall(MS, work[1], [1], [0])
    assert served(flow.take(MS, 9)) == [("a", 1)]
    flow.done(2 * MS, [work[0], left], [2 * MS, 0])
    assert flow.lanes["a"].in_work == 1
    assert flow.lanes["a"].blocks & BUSY
