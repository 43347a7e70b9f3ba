"""Lanes that are slow beside the others leave half of the workers to those."""

from __future__ import annotations

from leash.flow import Dispatch, Flow, Lane
from leash.units import MS


def begin(flow: Flow, now: int) -> list[Dispatch]:
    """Work for all idle workers, one message each."""
    found: list[Dispatch] = []
    while len(found) < 4 and (work := flow.take(now, 1)):
        found += work
    return found


def flow_with(**more: bool) -> Flow:
    flow = Flow([Lane("slow", window=100), Lane("fast", window=100)], workers=4, cost="time", **more)  # type: ignore[arg-type]
    flow.arrive(0, "slow", list(range(50)))
    return flow


def test_a_slow_lane_gets_half_of_the_workers_once_it_is_known_to_be_slow() -> None:
    for quiet_first, most in ((True, 2), (False, 4)):
        flow = flow_with(quiet_first=quiet_first)
        work = begin(flow, 0)
        assert len(work) == 4, "nothing is known yet"
        flow.done(500 * MS, work, [500 * MS] * 4)
        flow.arrive(500 * MS, "fast", [0])
        flow.done(510 * MS, flow.take(500 * MS, 1), [10 * MS])
        work = begin(flow, 510 * MS)
        assert [each.lane for each in work] == ["slow"] * most
        flow.arrive(511 * MS, "fast", [1])
        assert [each.lane for each in flow.take(511 * MS, 1)] == ["fast"]
        flow.done(600 * MS, work[:1], [90 * MS])
        assert [each.lane for each in flow.take(600 * MS, 1)] == ["slow"], "when one is done, the next may go"


def test_without_others_there_is_nobody_to_leave_workers_to() -> None:
    flow = flow_with(quiet_first=True)
    flow.done(500 * MS, begin(flow, 0), [500 * MS] * 4)
    assert len(begin(flow, 500 * MS)) == 4


def test_lanes_that_are_alike_get_all_workers() -> None:
    flow = flow_with(quiet_first=True)
    flow.done(500 * MS, begin(flow, 0), [500 * MS] * 4)
    flow.arrive(500 * MS, "fast", [0])
    flow.done(600 * MS, flow.take(500 * MS, 1), [100 * MS])
    assert len(begin(flow, 600 * MS)) == 4
