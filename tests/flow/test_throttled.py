"""A lane at its rate: nobody owes it anything while it sits out."""

from __future__ import annotations

from leash.flow import Flow, Lane
from tests.flow.kit import MS, S, finish, served


def test_a_lane_that_was_throttled_between_two_looks_is_not_behind() -> None:
    """It has a token again at every look, and none in between: a busy machine looks late."""
    flow = Flow([Lane("a", window=500), Lane("mail", rate=5, window=500)])
    flow.arrive(0, "a", list(range(400)))
    flow.arrive(0, "mail", list(range(100)))
    now, mails = 0, 0
    for _ in range(300):
        work = flow.take(now, 1)
        mails += sum(lane == "mail" for lane, _ in served(work))
        now += 5 * MS
        finish(flow, now, work, 5 * MS)
        flow.take(now, 0)  # lets go on whoever may
        if not flow.lanes["mail"].blocks:
            flow.tick(now)
    assert now == 1500 * MS < 2 * S
    assert 7 <= mails <= 9
    assert flow.watch.worst_now().fair, str(flow.watch.worst_now())
