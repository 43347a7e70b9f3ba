"""The simulator: the formulas come out of it, and the same description gives the same run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from leash.flow import Flow, Lane
from leash.lab.clock import AT_CLIENT, Clock, Wire
from leash.lab.simulated_queues import Consumer, Queue
from leash.lab.simulator import Pool
from leash.lab.trace import load, replay, save
from leash.policies.window.credit import standing_wait, utilisation
from leash.units import MS, SECOND


def saturated(window: int | None, service: int, round_trip: int, until: int = 10 * SECOND) -> Pool:
    clock = Clock()
    flow = Flow([Lane("q", window=window)])
    one_way = round_trip // 2
    pool = Pool(clock, flow, [Queue(clock, "q", 10**9)], service, up=one_way, down=one_way)
    clock.run(until - 1)
    return pool


@pytest.mark.parametrize("work", [4, 40])
@pytest.mark.parametrize("trip", [0, 100, 200])
@pytest.mark.parametrize("window", [1, 4, 26, 51])
def test_a_saturated_queue_waits_and_idles_as_the_formulas_say(window: int, work: int, trip: int) -> None:
    pool = saturated(window, work * MS, trip * MS)
    late = [at for at, _, _ in pool.log.starts if at >= 5 * SECOND]
    busy = len(late) * work * MS / (5 * SECOND)
    assert busy == pytest.approx(utilisation(window, trip, work), rel=0.03)
    assert pool.log.mean_wait(5 * SECOND) / MS == pytest.approx(standing_wait(window, trip, work), abs=1)


def test_the_autopilot_finds_the_least_window_and_finds_it_again_after_a_jump() -> None:
    pool = saturated(None, 4 * MS, 100 * MS, 4 * SECOND)
    assert pool.state.lanes["q"].credit == 26
    pool.service = 40 * MS
    pool.clock.run(12 * SECOND)
    assert pool.state.lanes["q"].credit == 4
    assert pool.log.mean_wait(10 * SECOND) == 20 * MS


def test_a_slower_network_slows_a_window_that_was_just_enough() -> None:
    pool = saturated(26, 4 * MS, 100 * MS, 4 * SECOND)
    pool.set_delay(100 * MS, 100 * MS)
    pool.clock.run(12 * SECOND)
    late = [at for at, _, _ in pool.log.starts if at >= 6 * SECOND]
    assert len(late) * 4 * MS / (6 * SECOND) == pytest.approx(26 * 4 / 204, rel=0.02)


def ten_lanes(trace: bool = False) -> Pool:
    clock = Clock()
    pool = Pool(
        clock,
        ten_lane_flow(),
        [Queue(clock, f"p{i}", 10**9) for i in range(10)],
        300_000,
        up=MS,
        down=MS,
        trace=trace,
    )
    clock.run(2 * SECOND)
    return pool


def ten_lane_flow(quantum: int = 4) -> Flow:
    return Flow([Lane(f"p{i}", quantum * (i + 1)) for i in range(10)], workers=3, rate=5000, burst=50)


def test_two_runs_of_one_description_are_the_same() -> None:
    first, second = ten_lanes(), ten_lanes()
    assert first.log.starts == second.log.starts
    assert first.log.windows == second.log.windows
    assert first.total > 9_000


def test_a_trace_replays_to_the_same_decisions() -> None:
    pool = ten_lanes(trace=True)
    assert pool.trace is not None
    assert len(pool.trace.calls) > 10_000
    assert any(call.decisions for call in pool.trace.calls)
    assert replay(pool.trace.calls, ten_lane_flow()) is None


def test_a_trace_tells_on_a_flow_that_decides_otherwise() -> None:
    pool = ten_lanes(trace=True)
    assert pool.trace is not None
    difference = replay(pool.trace.calls, ten_lane_flow(quantum=5))
    assert difference is not None
    assert difference.method == "take"


def test_a_trace_survives_a_file(tmp_path: Path) -> None:
    pool = ten_lanes(trace=True)
    assert pool.trace is not None
    save(tmp_path / "trace", pool.state, pool.trace.calls)
    flow, calls = load(tmp_path / "trace")
    assert calls == pool.trace.calls
    assert replay(calls, flow) is None


def test_a_hundred_thousand_message_events_take_less_than_a_second_of_cpu() -> None:
    def speed() -> float:
        clock = Clock()
        flow = Flow([Lane(f"p{i}", 4 * (i + 1)) for i in range(10)], workers=3)
        queues = [Queue(clock, f"p{i}", 10**9) for i in range(10)]
        Pool(clock, flow, queues, 200_000, up=MS, down=MS)
        began = time.process_time()
        clock.run(2 * SECOND)
        return clock.messages / (time.process_time() - began)

    assert max(speed() for _ in range(3)) > 100_000


# --- the broker's side ---


def test_consumers_get_messages_in_turn_as_far_as_their_credit_goes() -> None:
    clock = Clock()
    queue = Queue(clock, "q", 10)
    got: dict[Consumer, list[int]] = {}

    def deliver(consumer: Consumer, messages: list[int]) -> None:
        got.setdefault(consumer, []).extend(messages)

    wire = Wire(clock, 5, AT_CLIENT)
    wide, narrow = Consumer(queue, 4, wire, deliver), Consumer(queue, 2, wire, deliver)
    queue.subscribe(wide)
    queue.subscribe(narrow)
    clock.run(5)
    assert got == {wide: [0, 1, 2, 3], narrow: [4, 5]}
    queue.ack(wide, 1)
    queue.ack(narrow, 1)
    clock.run(10)
    assert got == {wide: [0, 1, 2, 3, 6], narrow: [4, 5, 7]}


def test_without_credit_limits_messages_are_dealt_like_cards() -> None:
    clock = Clock()
    queue = Queue(clock, "q")
    got: list[tuple[str, int]] = []
    for name in "ab":
        wire = Wire(clock, 0, AT_CLIENT)
        queue.subscribe(Consumer(queue, 0, wire, lambda _, m, name=name: got.append((name, m[0]))))  # type: ignore[misc]
    queue.publish_every(MS, 3 * MS)
    clock.run(3 * MS)
    assert got == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]


def test_a_returned_message_goes_back_to_its_place() -> None:
    clock = Clock()
    queue = Queue(clock, "q", 9)
    got: list[int] = []
    consumer = Consumer(queue, 2, Wire(clock, 0, AT_CLIENT), lambda _, messages: got.extend(messages))
    queue.subscribe(consumer)
    clock.run(0)
    queue.nack(consumer, [1, 0])
    clock.run(1)
    assert got == [0, 1, 0, 1]
    queue.nack(consumer, [0], requeue=False)
    clock.run(2)
    assert got == [0, 1, 0, 1, 2]
    assert queue.ready == 6


def test_nothing_overtakes_on_a_network_that_gets_faster() -> None:
    clock = Clock()
    wire = Wire(clock, 10, AT_CLIENT)
    came: list[int] = []
    wire.send(came.append, 1)
    wire.delay = 1
    wire.send(came.append, 2)
    clock.run(20)
    assert came == [1, 2]


def test_messages_beyond_a_smaller_window_come_back_where_others_consume() -> None:
    clock = Clock()
    queue = Queue(clock, "q", 10**6)
    slow = Pool(clock, Flow([Lane("q", shed="return")]), [queue], 50 * MS, up=MS, down=MS)
    Pool(clock, Flow([Lane("q")]), [queue], MS, up=MS, down=MS)
    clock.run(20 * SECOND)
    returned = [kind for _, _, kind in slow.log.sheds]
    assert set(returned) <= {"return"}
    assert slow.links["q"].unsettled <= 3
