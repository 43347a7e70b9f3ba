"""Budgets in the simulator: the bound, the shares and the whole rate, over several pools."""

from __future__ import annotations

import pytest

from leash.errors import ConfigError
from leash.fleet.budgets.settings import Terms
from leash.flow import Flow, Lane
from leash.lab.clock import Clock
from leash.lab.simulated_budget import Wheel
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.units import MS, SECOND
from tests.fleet.kit import excess

SMS = Lane("sms", budgets=("sms",))


def pool(
    clock: Clock, wheel: Wheel, *lanes: Lane, depth: int = 10**9, work: int = 0, workers: int = 2
) -> Pool:
    flow = Flow(lanes, workers=workers, shared=[wheel.purse()])
    queues = [Queue(clock, lane.name, depth) for lane in lanes]
    return Pool(clock, flow, queues, work, up=MS, down=MS, wheels=[wheel])


def starts(*pools: Pool) -> list[int]:
    return sorted(at for each in pools for at, lane, _ in each.log.starts if lane == "sms")


@pytest.mark.parametrize(("rate", "burst"), [(50, 50), (50, 5), (1000, 1000), (1000, 100)])
def test_three_pools_use_the_whole_rate_and_no_more(rate: int, burst: int) -> None:
    clock = Clock()
    wheel = Wheel(clock, Terms("sms", rate=rate, burst=burst))
    pools = [pool(clock, wheel, SMS) for _ in range(3)]
    clock.run(20 * SECOND)
    begun = starts(*pools)
    assert excess(begun, rate, burst, 0.1) <= 0
    late = [at for at in begun if at >= 5 * SECOND]
    assert len(late) >= (0.95 if burst >= rate else 0.9) * 15 * rate


def test_idle_pools_take_nothing_from_a_busy_one() -> None:
    clock = Clock()
    wheel = Wheel(clock, Terms("sms", rate=50))
    busy = pool(clock, wheel, SMS)
    idle = [pool(clock, wheel, SMS, depth=0) for _ in range(7)]
    clock.run(20 * SECOND)
    assert not starts(*idle)
    assert len(starts(busy)) >= 0.95 * 20 * 50


def test_a_lane_under_a_budget_has_its_half_beside_slow_work() -> None:
    clock = Clock()
    wheel = Wheel(clock, Terms("sms", rate=20))
    both = pool(clock, wheel, SMS, Lane("free"), work=100 * MS, workers=1)
    clock.run(20 * SECOND)
    served = both.log.served
    assert served["sms"] + served["free"] > 180
    assert abs(served["sms"] - served["free"]) <= 4


def test_at_once_is_a_limit_over_all_pools_and_is_reached() -> None:
    clock = Clock()
    wheel = Wheel(clock, Terms("sms", at_once=3))
    pools = [pool(clock, wheel, SMS, work=7 * MS) for _ in range(3)]
    most = 0
    for step in range(2000):
        clock.run((step + 1) * MS)
        most = max(most, sum(each.in_work for each in pools))
    assert most == 3
    assert len(starts(*pools)) > 2000 / (7 + 4) * 2


def test_the_same_description_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        clock = Clock()
        wheel = Wheel(clock, Terms("sms", rate=30, burst=7))
        pools = [pool(clock, wheel, SMS, Lane("free"), work=9 * MS) for _ in range(2)]
        clock.run(5 * SECOND)
        runs.append([each.log.starts for each in pools])
    assert runs[0] == runs[1]


def test_a_flow_with_budgets_cannot_be_traced() -> None:
    clock = Clock()
    flow = Flow([SMS], shared=[Wheel(clock, Terms("sms", rate=1)).purse()])
    with pytest.raises(ConfigError, match="without budgets"):
        Pool(clock, flow, [Queue(clock, "sms", 1)], 0, trace=True)
