"""The state of the rounds, saved and restored."""

from __future__ import annotations

import json
from typing import Any

from leash.policies.fair import DeficitRoundRobin
from tests.policies.test_fair import backlogged, order


def test_the_state_survives_json_and_goes_on_where_it_was() -> None:
    options: dict[str, Any] = {"tiers": {"c": 1}, "guaranteed": {1: 10}}
    rr = backlogged({"a": 3, "b": 2, "c": 1}, **options)
    for cost in (1, 5, 2, 9, 1, 1, 4):
        ticket = rr.pick()
        assert ticket is not None
        rr.settle(ticket, cost)
    twin = DeficitRoundRobin({"a": 3, "b": 2, "c": 1}, **options)
    twin.restore(json.loads(json.dumps(rr.state())))
    assert twin.state() == rr.state()
    for lane in ("a", "b", "c"):
        twin.offer(lane, 1_000)
    assert order(twin, 200) == order(rr, 200)


def test_a_state_is_restored_over_other_lanes() -> None:
    rr = backlogged({"a": 1, "b": 1})
    for _ in range(2):
        ticket = rr.pick()
        assert ticket is not None
        rr.settle(ticket, 5)
    other = DeficitRoundRobin({"b": 1, "c": 1})
    other.restore(rr.state())
    assert (other.balance("b"), other.balance("c")) == (-4, 0)
