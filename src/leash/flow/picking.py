"""Whose messages go next: the round robin's tickets, within what tokens and order allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leash.flow.lane import BUSY, THROTTLED, LaneState
from leash.policies.fair.rounds import Ticket

if TYPE_CHECKING:
    from leash.flow.flow import Flow


class Grant(NamedTuple):
    """So many messages of a lane in a row, and what it was charged for them."""

    lane: LaneState
    size: int
    estimate: int


def grants(flow: Flow, now: int, limit: int, time: int | None) -> list[Grant]:
    """Up to `limit` messages, or as many as keep a worker busy for about `time` ns.

    A token is good for a message that starts now: one of a limited lane goes first, or with the next batch.
    """
    if flow.total is not None or (flow.guaranteed and flow.limited):
        limit = min(limit, 1)
    if flow.cost != "count":
        return _by_cost(flow, now, limit, time)
    found: list[Grant] = []
    rounds, lanes = flow.rounds, flow.lanes
    while limit > 0:
        ticket = rounds.take(limit)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        lane = lanes[ticket[0]]
        count = granted = ticket[1]
        if count > lane.most:
            count = lane.most
        if lane.limited:
            count = 0 if found else 1
            if found:
                limit = 0
            else:
                _admit(flow, now, lane)
        if count < granted:
            give_back(flow, lane, ticket, count, granted - count)
        if count:
            found.append(Grant(lane, count, count))
        limit -= count
        if time is not None:
            time -= count * (lane.service or flow.service)
            if time <= 0:
                break
    return found


def _by_cost(flow: Flow, now: int, limit: int, time: int | None) -> list[Grant]:
    """Where messages differ in cost: a pick for each, put together where a lane's are in a row."""
    found: list[Grant] = []
    ahead: dict[str, int] = {}

    def estimate(name: str) -> int:
        lane = flow.lanes[name]
        if flow.cost == "given":
            return lane.buffer[ahead.get(name, 0)][3]
        return max(1, lane.service // 1000)

    while limit > 0 and (time is None or time > 0):
        ticket = flow.rounds.pick(cost=estimate)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        name, cost = ticket
        lane = flow.lanes[name]
        if lane.limited:
            if found:
                give_back(flow, lane, ticket, 0, 1)
                break
            _admit(flow, now, lane)
        ahead[name] = ahead.get(name, 0) + 1
        flow.watch.cost(name, cost)
        if found and found[-1].lane is lane:
            found[-1] = Grant(lane, found[-1].size + 1, found[-1].estimate + cost)
        else:
            found.append(Grant(lane, 1, cost))
        limit -= 1
        if time is not None:
            time -= lane.service or flow.service
    return found


def _admit(flow: Flow, now: int, lane: LaneState) -> None:
    """One message of a limited lane goes: the lane sits out if there may be no second one."""
    if lane.ordered:
        flow.sidelines.block(lane, BUSY)
    if lane.bucket is not None and lane.bucket.available(now) <= 1:
        flow.sidelines.block(lane, THROTTLED)  # `Flow.take` finds out until when


def give_back(flow: Flow, lane: LaneState, ticket: Ticket, cost: int, messages: int) -> None:
    """Only a part of a ticket was used."""
    flow.rounds.settle(ticket, cost, dry=False)
    flow.rounds.offer(lane.name, messages)
    if lane.evidence:  # offering took it for messages that were on their way
        flow.rounds.expect(lane.name, lane.evidence)
