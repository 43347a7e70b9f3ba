"""A lane that comes while a flow runs."""

from __future__ import annotations

from collections import Counter

import pytest

from leash.errors import ConfigError
from leash.flow import Flow, Lane
from leash.flow.adding_lanes import add_lane
from tests.flow.kit import served, warm


def test_a_lane_that_comes_late_shares_by_its_quantum() -> None:
    flow = Flow([Lane("a", 2, window=1000)], buffer_messages=10_000)
    warm(flow)
    flow.arrive(0, "a", list(range(1000)))
    assert len(served(flow.take(0, 100))) == 100
    add_lane(flow, Lane("b", 3, window=1000))
    flow.arrive(1, "b", list(range(1000)))
    got = Counter(lane for lane, _ in served(flow.take(1, 500)))
    assert abs(got["a"] - 200) <= 2
    assert abs(got["b"] - 300) <= 3


def test_its_window_is_a_part_of_the_budget() -> None:
    flow = Flow([Lane("a"), Lane("b")], buffer_messages=300)
    add_lane(flow, Lane("c"))
    together = Flow([Lane("a"), Lane("b"), Lane("c")], buffer_messages=300)
    assert flow.lanes["c"].credit == together.lanes["c"].credit


def test_a_lane_that_is_there_is_not_added_again() -> None:
    flow = Flow([Lane("a")])
    with pytest.raises(ConfigError, match="each lane once"):
        add_lane(flow, Lane("a"))
