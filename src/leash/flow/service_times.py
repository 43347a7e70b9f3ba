"""Learns from finished work: how long messages take, and what they cost their lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.flow.lane import BUSY
from leash.policies.fair import Ticket

if TYPE_CHECKING:
    from leash.flow.decisions import Dispatch
    from leash.flow.flow import Flow

BATCH_TIME = 500_000
BATCH_MOST = 128
"""A worker takes work for up to this many ns, and messages, at a time: with less it needs the lock too often,
with more messages wait in a busy worker's hands.
"""


def batch_of(mean: int) -> int:
    """How many messages that take `mean` ns each go to a worker at a time."""
    return 1 if mean >= BATCH_TIME else min(BATCH_MOST, BATCH_TIME // (mean or 1))


def served_all(flow: Flow, dispatches: list[Dispatch], services: list[int]) -> None:
    """Account for finished dispatches, which took `services` ns each: once for each lane."""
    if len(dispatches) == 1:
        name, messages, estimate, _ = dispatches[0]
        served(flow, name, len(messages), estimate, services[0])
        return
    sums: dict[str, list[int]] = {}
    for (name, messages, estimate, _), service in zip(dispatches, services, strict=True):
        lane = sums.get(name)
        if lane is None:
            sums[name] = [len(messages), estimate, service]
        else:
            lane[0] += len(messages)
            lane[1] += estimate
            lane[2] += service
    for name, (count, estimate, service) in sums.items():
        served(flow, name, count, estimate, service)


def served(flow: Flow, name: str, count: int, estimate: int, service: int) -> None:
    """Messages of a lane took `service` ns in all; the lane was charged `estimate` for them."""
    if not count:  # all of it was recalled
        return
    lane = flow.lanes[name]
    each = service // count
    lane.in_work -= count
    flow.in_work -= count
    for purse in lane.purses:
        purse.permits.release(count)
    lane.work += service
    if flow.slow is not None:
        flow.slow.served(count, service)
    lane.service += (each - lane.service) // 4 if lane.served else each
    flow.service += (each - flow.service) // 8
    lane.served += count
    lane.most = batch_of(lane.service)
    if flow.cost == "time":
        cost = max(count, service // 1000)
        flow.rounds.settle(Ticket(name, estimate), cost)
        flow.watch.cost(name, cost // count)
        lane.charged += cost - estimate
    lane.shedder.acked(count)
    if lane.window is not None:
        lane.window.served(each, count)
    if lane.ordered:
        flow.sidelines.unblock(lane, BUSY)
