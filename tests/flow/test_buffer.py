"""The budget of messages and bytes, in the simulator: what is here or on its way, at every moment."""

from __future__ import annotations

from typing import Any

import pytest

from leash.flow import Dispatch, Flow, Lane, SetWindow
from leash.lab.clock import Clock
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.units import MS, SECOND

MIB = 1 << 20
DEEP = 10**9


class Run:
    """Lanes with messages of one size, watched every 5 ms."""

    def __init__(
        self,
        lanes: int,
        size: int,
        service: int,
        trip: int = MS,
        workers: int = 1,
        quantum: int = 1,
        active: int | None = None,
        seconds: int = 6,
        **budget: Any,
    ) -> None:
        clock = Clock()
        self.flow = Flow([Lane(f"q{i}", quantum) for i in range(lanes)], workers=workers, **budget)
        backlogged = lanes if active is None else active
        queues = [Queue(clock, f"q{i}", DEEP if i < backlogged else 0) for i in range(lanes)]
        self.pool = Pool(
            clock,
            self.flow,
            queues,
            service,
            up=trip // 2,
            down=trip // 2,
            sizes=lambda *_: size,
            detail=False,
        )
        self.peak = 0
        for step in range(1, seconds * 200):
            clock.run(step * 5 * MS)
            self.peak = max(self.peak, self.out())
            if step == seconds * 100:
                half = self.pool.log.busy
        self.busy = (self.pool.log.busy - half) / (seconds * SECOND // 2 * workers)

    def out(self) -> int:
        """Messages that the broker has sent and not heard of."""
        return sum(each.unacked for link in self.pool.links.values() for each in link.consumers.values())


@pytest.mark.parametrize(
    ("lanes", "size", "service", "trip", "workers", "quantum"),
    [
        (100, 300_000, 50 * MS, MS, 1, 1),
        (100, 300_000, 50 * MS, 100 * MS, 1, 1),
        (100, 300_000, 50 * MS, MS, 8, 1),
        (40, 500_000, 20 * MS, MS, 2, 3),
        (10, 3_000_000, 50 * MS, MS, 8, 1),
        (10, 100_000, 2 * MS, 50 * MS, 2, 20),
        (20, 300_000, 5 * MS, 20 * MS, 4, 1),
        (3, 8_000_000, 100 * MS, MS, 2, 1),
        (150, 100, 5 * MS, 10 * MS, 4, 1),
    ],
)
def test_many_lanes_stay_within_the_budget_busy_and_fair(
    lanes: int, size: int, service: int, trip: int, workers: int, quantum: int
) -> None:
    budget = 32 * MIB
    run = Run(
        lanes, size, service, trip, workers, quantum, buffer_bytes=budget, buffer_messages=20_000, seconds=10
    )
    assert run.peak * size <= max(budget, lanes * size)
    assert run.busy >= 0.95
    assert run.flow.watch.worst_now().fair


def test_a_budget_of_messages_binds_small_ones() -> None:
    run = Run(50, 100, 50_000, 200 * MS, 4, buffer_messages=400)
    assert 250 <= run.peak <= 400


def test_without_a_budget_many_lanes_still_begin_with_few_messages() -> None:
    flow = Flow([Lane(f"q{i}") for i in range(100)])
    assert sum(lane.credit for lane in flow.lanes.values()) <= 160
    assert Flow([Lane("q")]).lanes["q"].credit == 16


def test_before_its_first_message_a_lane_has_a_window_of_one() -> None:
    flow = Flow([Lane("a"), Lane("b")], workers=8, buffer_bytes=MIB)
    assert flow.lanes["a"].credit == 1
    flow.arrive(0, "a", ["x"], size=1000)
    flow.arrive(0, "b", ["x"], size=100_000)
    windows = {d.lane: d.window for d in flow.decisions if isinstance(d, SetWindow)}
    assert windows == {"a": 16, "b": 3}


def test_what_one_lane_does_not_need_others_get() -> None:
    run = Run(100, 3_000, MS, 100 * MS, active=3, buffer_bytes=32 * MIB, buffer_messages=20_000)
    assert run.busy >= 0.95
    run = Run(100, 300_000, 50 * MS, 100 * MS, active=2, buffer_bytes=32 * MIB)
    assert run.busy >= 0.95


def test_a_lane_with_all_of_it_gives_way_when_others_get_work() -> None:
    """And nobody is left with a window of 1 because somebody else was there first."""
    run = Run(4, 100_000, 200_000, 100 * MS, active=1, buffer_bytes=32 * MIB)
    assert run.flow.lanes["q0"].credit > 200
    for name in ("q1", "q2", "q3"):
        run.pool.links[name].queue.publish(DEEP)
    run.pool.clock.run(run.pool.clock.now + 20 * SECOND)
    windows = [lane.credit for lane in run.flow.lanes.values()]
    assert sum(windows) * 100_000 <= 32 * MIB
    assert max(windows) <= 2 * min(windows)


def test_messages_that_get_larger_shrink_the_window_before_the_next_look() -> None:
    flow = Flow([Lane("a"), Lane("b")], buffer_bytes=10 * MIB)
    for lane in "ab":
        flow.probed(0, lane, DEEP, 1, MS)
        flow.arrive(0, lane, [0], size=100)
    assert flow.lanes["a"].credit == 16
    flow.decisions.clear()
    flow.arrive(1, "a", [0] * 4, size=4 * MIB)
    flow.arrive(2, "a", [0] * 8, size=8 * 2 * MIB)
    assert flow.lanes["a"].credit <= 6
    assert any(isinstance(d, SetWindow) and d.resume is not None for d in flow.decisions)


@pytest.mark.parametrize("kind", [{"ordered": True}, {"sole": True}])
def test_a_lane_that_keeps_its_window_gets_one_that_many_of_them_can_have(kind: dict[str, bool]) -> None:
    def window(lanes: int, budget: int | None) -> int:
        flow = Flow([Lane(f"q{i}", **kind) for i in range(lanes)], buffer_bytes=budget)  # type: ignore[arg-type]
        return flow.lanes["q0"].credit

    assert window(1, 32 * MIB) == 16
    assert window(10, 32 * MIB) == 9
    assert window(100, 32 * MIB) == 1
    assert window(4, None) == 16


def test_a_window_that_was_asked_for_is_kept_and_the_others_share_the_rest() -> None:
    run_flow = Flow([Lane("fixed", window=9), Lane("auto")], buffer_bytes=12 * MIB)
    clock = Clock()
    queues = [Queue(clock, name, DEEP) for name in run_flow.lanes]
    Pool(clock, run_flow, queues, MS, up=50 * MS, down=50 * MS, sizes=lambda *_: MIB)
    clock.run(5 * SECOND)
    assert run_flow.lanes["fixed"].credit == 9
    assert run_flow.lanes["auto"].credit == 1


# --- batches ---


def test_a_batch_is_gathered_from_all_lanes_so_each_holds_a_part_of_it() -> None:
    flow = Flow([Lane(f"q{i}") for i in range(100)], workers=4, buffer_bytes=32 * MIB, batch=400)
    for name in flow.lanes:
        flow.probed(0, name, 1000, 1, MS)
    for name in flow.lanes:
        flow.arrive(0, name, [0], size=100)
    flow.tick(50 * MS)
    assert {lane.credit for lane in flow.lanes.values()} == {4}


def test_one_lane_with_work_holds_a_whole_batch() -> None:
    flow = Flow([Lane(f"q{i}") for i in range(100)], workers=4, buffer_bytes=32 * MIB, batch=400)
    flow.probed(0, "q7", 1000, 1, MS)
    flow.arrive(0, "q7", [0], size=100)
    flow.tick(50 * MS)
    assert flow.lanes["q7"].credit == 400


def gathering(batch: int, size: int) -> tuple[Flow, list[Dispatch]]:
    """Two queues with many messages; all that is here is in the hands of a worker that wants more."""
    flow = Flow([Lane("a"), Lane("b")], buffer_bytes=MIB, batch=batch)
    taken: list[Dispatch] = []
    for now in range(0, 60 * MS, 10 * MS):
        for name, lane in flow.lanes.items():
            flow.probed(now, name, 1000, 1, MS)
            missing: list[Any] = [0] * (lane.credit - len(lane.buffer) - lane.in_work)
            if missing:
                flow.arrive(now, name, missing, size=size * len(missing))
        flow.tick(now)
        taken += flow.take(now, batch)
    return flow, taken


def test_lanes_without_work_keep_their_windows() -> None:
    flow = Flow([Lane(f"q{i}") for i in range(5)], buffer_bytes=10 * MIB, buffer_messages=100)
    for name in flow.lanes:
        flow.arrive(0, name, [0], size=100_000)
    while work := flow.take(0):
        flow.done(0, work, [1000])
    before = {name: lane.credit for name, lane in flow.lanes.items()}
    for now in range(0, 3 * SECOND, 50 * MS):
        flow.tick(now)
    assert before == {name: lane.credit for name, lane in flow.lanes.items()}
    assert min(before.values()) > 1


def test_a_batch_that_the_budget_has_no_room_for_is_not_waited_for() -> None:
    flow, taken = gathering(100, 100_000)
    assert sum(len(dispatch.messages) for dispatch in taken) <= 10
    assert flow.spent
    flow.done(SECOND, taken[:1], [MS])
    assert not flow.spent  # what is done makes room


def test_but_one_that_fits_is() -> None:
    flow, taken = gathering(100, 100)
    assert sum(len(dispatch.messages) for dispatch in taken) >= 100
    assert not flow.spent
