"""Whose messages go next: the round robin's tickets, within what tokens and order allow."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leash.flow.lane import BUSY, THROTTLED, LaneState
from leash.flow.purses import admit, permitted
from leash.policies.fair.rounds import Ticket

if TYPE_CHECKING:
    from leash.flow.flow import Flow


class Grant(NamedTuple):
    """So many messages of a lane in a row, and what it was charged for them."""

    lane: LaneState
    size: int
    estimate: int


def grants(flow: Flow, now: int, limit: int, time: int | None, patient: bool = True) -> list[Grant]:
    """Up to `limit` messages, or as many as keep a worker busy for about `time` ns.

    `patient`: lower tiers wait while a higher one's messages are on their way.

    Tokens are for messages that start now: a batch takes a millisecond's worth of a lane's at most, and where
    that is one message, it goes first.
    """
    if flow.guaranteed and flow.limited:  # a pick that is given back would count for its tier
        limit = min(limit, 1)
    if flow.cost != "count":
        return _by_cost(flow, now, limit, time, patient)
    found: list[Grant] = []
    rounds, lanes = flow.rounds, flow.lanes
    eligible = partial(permitted, flow) if flow.purses else None
    while limit > 0:
        ticket = rounds.take(limit, eligible, patient)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        lane = lanes[ticket[0]]
        count = granted = ticket[1]
        if count > lane.most:
            count = lane.most
        if lane.limited:
            count = _admit(flow, now, lane, count, not found)
        if count < granted:
            give_back(flow, lane, ticket, count, granted - count)
        if not count:
            break
        found.append(Grant(lane, count, count))
        limit -= count
        if time is not None:
            time -= count * (lane.service or flow.service)
            if time <= 0:
                break
    return found


def _by_cost(flow: Flow, now: int, limit: int, time: int | None, patient: bool) -> list[Grant]:
    """Where messages differ in cost: a pick for each, put together where a lane's are in a row."""
    found: list[Grant] = []
    ahead: dict[str, int] = {}

    def estimate(name: str) -> int:
        lane = flow.lanes[name]
        if flow.cost == "given":
            return lane.buffer[ahead.get(name, 0)][3]
        return max(1, lane.service // 1000)

    eligible = partial(permitted, flow) if flow.purses else None
    while limit > 0 and (time is None or time > 0):
        ticket = flow.rounds.pick(eligible, estimate, patient)
        if ticket is None:
            flow.sidelines.hold(now)
            break
        name, cost = ticket
        lane = flow.lanes[name]
        if lane.limited and not _admit(flow, now, lane, 1, not found):
            give_back(flow, lane, ticket, 0, 1)
            break
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


def _admit(flow: Flow, now: int, lane: LaneState, count: int, first: bool) -> int:
    """How many of `count` may go with this batch; none: with the next one."""
    bucket = lane.bucket
    if lane.ordered:
        count = 1
    if bucket is not None:
        if lane.allowed is None:
            if lane.at_once == 1 and not first:
                return 0
            lane.allowed = max(1, min(bucket.available(now), lane.at_once))
        if count >= lane.allowed:
            count = lane.allowed
            if bucket.available(now) <= lane.at_once:
                flow.sidelines.block(lane, THROTTLED)  # `Flow.take` finds out until when
    if lane.purses:
        count = admit(now, lane, count)  # one at least, or it would not have been picked
    if lane.allowed is not None:
        lane.allowed -= count
    if lane.ordered:
        flow.sidelines.block(lane, BUSY)
    return count


def give_back(flow: Flow, lane: LaneState, ticket: Ticket, cost: int, messages: int) -> None:
    """Only a part of a ticket was used."""
    flow.rounds.settle(ticket, cost, dry=False)
    flow.rounds.offer(lane.name, messages)
    if lane.evidence:  # offering took it for messages that were on their way
        flow.rounds.expect(lane.name, lane.evidence)
