"""Tiers in the simulator: nothing but time and the order of events decides."""

from __future__ import annotations

import pytest

from leash.flow import Flow, Lane, SetWindow
from leash.lab.clock import Clock
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.units import MS, SECOND

DEEP = 10**9
US = 1_000


def pool_of(
    lanes: list[Lane],
    service: int,
    trip: int,
    workers: int,
    depths: dict[str, int] | None = None,
    **more: int,
) -> Pool:
    """Queues that never run dry, unless `depths` says how many messages they have."""
    clock = Clock()
    guaranteed = {1: more["guaranteed"]} if "guaranteed" in more else None
    flow = Flow(lanes, workers=workers, guaranteed=guaranteed)
    queues = [Queue(clock, lane.name, (depths or {}).get(lane.name, DEEP)) for lane in lanes]
    return Pool(clock, flow, queues, service, up=trip // 2, down=trip // 2, detail=False)


def served(pool: Pool, tier: int) -> int:
    return sum(count for name, count in pool.log.served.items() if pool.state.lanes[name].tier == tier)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("trip", [0, 40 * MS, 200 * MS])
@pytest.mark.parametrize("service", [200 * US, 2 * MS, 20 * MS])
@pytest.mark.parametrize("percent", [10, 60, 90])
def test_a_guarantee_is_kept_behind_any_network(percent: int, service: int, trip: int, workers: int) -> None:
    lanes = [Lane("high"), Lane("low", tier=1)]
    pool = pool_of(lanes, service, trip, workers, guaranteed=percent)
    pool.clock.run(SECOND)
    before = served(pool, 0), served(pool, 1)
    pool.clock.run(max(2 * SECOND, 200 * service))
    high, low = served(pool, 0) - before[0], served(pool, 1) - before[1]
    assert 100 * low >= (percent - 2) * (high + low)


def test_a_guarantee_costs_no_throughput_once_the_windows_are_found() -> None:
    pool = pool_of([Lane("high"), Lane("low", tier=1)], MS, 40 * MS, 4, guaranteed=60)
    pool.clock.run(4 * SECOND)
    before = pool.total
    pool.clock.run(5 * SECOND)
    assert pool.total - before >= 3_900  # of 4,000


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("trip", [0, 2 * MS, 200 * MS])
@pytest.mark.parametrize("service", [200 * US, 2 * MS, 100 * MS])
def test_a_backlogged_lower_tier_costs_a_higher_one_nothing(
    service: int, trip: int, workers: int, window: int | None
) -> None:
    def handled(*others: Lane) -> int:
        pool = pool_of([Lane("high", window=window), *others], service, trip, workers)
        pool.clock.run(max(SECOND, 100 * service))
        return served(pool, 0)

    assert handled(Lane("low", tier=1), Lane("lower", 9, tier=2)) >= 0.98 * handled()


def test_a_lower_tier_works_in_long_gaps_of_a_higher_one_but_not_in_short_ones() -> None:
    """A window of 1 leaves a gap of one round trip after each message."""
    for trip, uses in ((30 * MS, False), (300 * MS, True)):
        pool = pool_of([Lane("high", window=1), Lane("low", tier=1)], MS, trip, 1)
        pool.clock.run(5 * SECOND)
        assert bool(served(pool, 1)) == uses


def test_a_lower_tier_has_the_workers_that_a_higher_ones_window_has_no_use_for() -> None:
    pool = pool_of([Lane("high", window=1), Lane("low", tier=1)], 10 * MS, 0, 4)
    pool.clock.run(10 * SECOND)
    assert served(pool, 0) == pytest.approx(1_000, abs=5)
    assert served(pool, 1) >= 2_900


def test_a_lower_tier_goes_on_at_full_speed_when_the_higher_one_is_done() -> None:
    pool = pool_of([Lane("high"), Lane("low", tier=1)], MS, 2 * MS, 1, {"high": 3_000})
    pool.clock.run(4 * SECOND)
    before = served(pool, 1)
    pool.clock.run(5 * SECOND)
    assert served(pool, 1) - before >= 990


def test_a_starving_lane_keeps_next_to_nothing_here_and_says_why() -> None:
    """Its messages would grow old, and count as delivered again whenever the connection breaks."""
    lanes = [Lane("high"), Lane("low", tier=1)]
    pool = pool_of(lanes, 50 * US, 10 * MS, 2, {"high": 0})
    pool.clock.run(2 * SECOND)
    assert pool.state.lanes["low"].credit > 100
    pool.links["high"].queue.publish(10**6)
    pool.clock.run(4 * SECOND)
    assert pool.state.lanes["low"].credit == 2
    assert "a higher tier has work" in pool.state.lanes["low"].reason


def test_but_not_if_it_has_a_guarantee() -> None:
    pool = pool_of([Lane("high"), Lane("low", tier=1)], 50 * US, 10 * MS, 2, guaranteed=50)
    pool.clock.run(4 * SECOND)
    assert pool.state.lanes["low"].credit > 50


def test_a_lane_below_a_tier_with_work_begins_with_one_message() -> None:
    flow = Flow([Lane("high"), Lane("low", tier=1)], buffer_bytes=10**6)
    flow.probed(0, "high", 100, 1, MS)
    flow.arrive(1, "low", ["x"], size=10)
    flow.arrive(2, "high", ["x"], size=10)
    assert [d.lane for d in flow.decisions if isinstance(d, SetWindow)] == ["high"]
    flow.probed(3, "high", 0, 1, MS)
    flow.done(4, flow.take(4, 1), [1000])
    flow.tick(60 * MS)
    assert flow.lanes["low"].credit == 16
