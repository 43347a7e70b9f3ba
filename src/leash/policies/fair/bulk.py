"""Divides a batch among the lanes of one tier: the same result as single picks, in a few laps.

Every message costs 1. After one lap, turn by turn, every remaining lane has work and no surplus. R further
rounds then serve min(backlog, max(0, balance + R * quantum)) of each, which is linear between the rounds in
which a lane pays off its debt or runs out of work. So the number of whole rounds is found by walking over
those rounds, sorted; the rest of the budget is spent within one more lap.
"""

from __future__ import annotations

from collections import deque

from leash.policies.fair.rounds import Lane, Rounds


def share_out(rounds: Rounds, budget: int, grants: dict[str, int]) -> int:
    """Add to `grants` what each lane may take; returns the rest of the budget."""
    for _ in range(_laps(rounds)):
        budget -= _lap(rounds, budget, grants)
    if budget and rounds.turns:
        budget -= _pass_rounds(rounds, _whole_rounds(rounds.turns, budget), grants)
        budget -= _lap(rounds, budget, grants)
    return budget


def _laps(rounds: Rounds) -> int:
    """The number of laps until every lane's next turn is one round after its last one.

    Picks that skipped lanes may have left unfinished turns behind the front one, or from earlier rounds.
    Such a lane may have missed rounds, which its next turn makes up for.
    """
    under_way = [lane for lane in rounds.turns if lane.granted]
    return 1 if all(lane is rounds.turns[0] and lane.round == rounds.round for lane in under_way) else 2


def _lap(rounds: Rounds, budget: int, grants: dict[str, int]) -> int:
    """Give each lane a turn until the budget is spent; the lane that took the last of it stays in front."""
    turns = rounds.turns
    left = budget
    for _ in range(len(turns) if budget else 0):
        lane = turns[0]
        if lane.blocked or not lane.visible:
            rounds.park(turns.popleft())
            continue
        if not lane.granted:
            rounds.grant(lane)
        if lane.balance > 0:
            taken = min(left, lane.visible, lane.balance)
            lane.visible -= taken
            lane.balance -= taken
            grants[lane.name] = grants.get(lane.name, 0) + taken
            left -= taken
            if not left:
                break
        if lane.visible:
            lane.granted = False
            turns.rotate(-1)
        else:
            rounds.park(turns.popleft())
    return budget - left


def _whole_rounds(lanes: deque[Lane], budget: int) -> int:
    """The most rounds that leave some of the budget; if it is enough for all, the rounds to finish them."""
    slope = offset = 0  # R rounds serve offset + R * slope, from R = since on
    since = 1
    at: list[int] = []  # the rounds in which that changes, and by how much
    steeper: list[int] = []
    higher: list[int] = []
    for lane in lanes:
        quantum, balance, visible = lane.quantum, lane.balance, lane.visible
        first = -balance // quantum + 1
        last = -((balance - visible) // quantum)
        at.append(last)
        if first >= last:
            steeper.append(0)
            higher.append(visible)
            continue
        steeper.append(-quantum)
        higher.append(visible - balance)
        if first == 1:
            slope += quantum
            offset += balance
        else:
            at.append(first)
            steeper.append(quantum)
            higher.append(balance)
    for bend in sorted(range(len(at)), key=at.__getitem__):
        if at[bend] > since:
            if offset + slope * since >= budget:
                return since - 1
            if offset + slope * (at[bend] - 1) >= budget:
                return (budget - 1 - offset) // slope
            since = at[bend]
        slope += steeper[bend]
        offset += higher[bend]
    return since if offset < budget else since - 1


def _pass_rounds(rounds: Rounds, count: int, grants: dict[str, int]) -> int:
    """Give every lane `count` turns at once; returns what they took in total."""
    if not count:
        return 0
    total = 0
    waiting: deque[Lane] = deque()
    for lane in rounds.turns:
        earned = lane.balance + count * lane.quantum
        if earned >= lane.visible:
            taken = lane.visible
            lane.round -= (lane.balance - taken) // lane.quantum  # it was done in this round already
            lane.balance = 0
            rounds.park(lane)
        else:
            taken = max(0, earned)
            lane.balance = earned - taken
            lane.round += count
            waiting.append(lane)
        if lane.round > rounds.round:
            rounds.round = lane.round
        if taken:
            lane.visible -= taken
            total += taken
            grants[lane.name] = grants.get(lane.name, 0) + taken
    rounds.turns = waiting
    return total
