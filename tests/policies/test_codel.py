"""CoDel sheds on the published schedule, and only standing delays; the ladder from signal to drop."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.policies import CoDel
from leash.policies.codel import target_in_force
from leash.policies.shed import Mode, Shedder

MS = 1_000_000
DEEP = 1000


def sheds(codel: CoDel, sojourn: int, until: int, remaining: int = DEEP, start: int = 1) -> list[int]:
    """One dequeue a millisecond; the times of all sheds, in ms."""
    times = []
    for now in range(start, until + 1):
        while codel.judge(now * MS, sojourn, remaining):
            times.append(now)
    return times


def test_a_standing_delay_is_shed_on_the_published_schedule() -> None:
    times = sheds(CoDel(5 * MS, 100 * MS), 50 * MS, 1000)
    assert times[:10] == [101, 201, 272, 330, 380, 425, 465, 503, 539, 572]
    assert len(times) == 27


def test_a_sojourn_below_target_or_a_one_message_buffer_is_never_shed() -> None:
    assert sheds(CoDel(5 * MS, 100 * MS), 5 * MS - 1, 2000) == []
    assert sheds(CoDel(5 * MS, 100 * MS), 50 * MS, 2000, remaining=1) == []
    assert sheds(CoDel(5 * MS, 100 * MS), 5 * MS, 101) == [101]
    assert sheds(CoDel(5 * MS, 100 * MS), 50 * MS, 101, remaining=2) == [101]


def test_one_good_message_within_the_interval_starts_it_anew() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    assert sheds(codel, 50 * MS, 90) == []
    assert not codel.judge(91 * MS, 0, DEEP)
    assert sheds(codel, 50 * MS, 300, start=92) == [192, 292]


def test_one_good_message_while_shedding_ends_it() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    assert sheds(codel, 50 * MS, 250) == [101, 201]
    assert codel.dropping
    assert not codel.judge(251 * MS, MS, DEEP)
    assert not codel.dropping
    assert sheds(codel, 50 * MS, 340, start=252) == []


def test_a_late_dequeue_catches_up_at_the_same_instant() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    assert sheds(codel, 50 * MS, 150) == [101]
    # 201, 272 and 330 went by without a dequeue: three heads go at once, the fourth is served.
    verdicts = [codel.judge(331 * MS, 50 * MS, DEEP) for _ in range(4)]
    assert verdicts == [True, True, True, False]
    assert (codel.count, codel.sheds) == (4, 4)


def test_catching_up_stops_at_the_first_good_head() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    assert sheds(codel, 50 * MS, 150) == [101]
    assert codel.judge(331 * MS, 50 * MS, DEEP)
    assert not codel.judge(331 * MS, MS, DEEP)
    assert not codel.judge(331 * MS, 50 * MS, DEEP)


def test_a_delay_that_stands_again_soon_is_shed_at_the_former_pace() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    sheds(codel, 50 * MS, 1000)
    assert codel.count == 27
    codel.judge(1001 * MS, 0, DEEP)
    again = sheds(codel, 50 * MS, 1200, start=1002)
    # Back after one interval at count 27 - 1 = 26: 100 / sqrt(26) = 19.6 ms to the next one.
    assert again[:3] == [1102, 1122, 1141]


def test_after_sixteen_intervals_the_former_pace_is_forgotten() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    sheds(codel, 50 * MS, 1000)
    codel.judge(1001 * MS, 0, DEEP)
    assert sheds(codel, 50 * MS, 3000, start=2600)[:2] == [2700, 2800]


def test_time_never_goes_back() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    assert not codel.judge(100 * MS, 50 * MS, DEEP)
    assert not codel.judge(0, 50 * MS, DEEP)
    assert not codel.judge(199 * MS, 50 * MS, DEEP)
    assert codel.judge(200 * MS, 50 * MS, DEEP)
    assert not codel.judge(0, 50 * MS, DEEP)


@settings(deadline=None)
@given(
    st.integers(1, 50),
    st.integers(50, 500),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 100), st.integers(0, 4)), max_size=200),
)
def test_nothing_below_target_and_never_the_last_messages_are_shed(
    target: int, interval: int, heads: list[tuple[int, int, int]]
) -> None:
    codel, now, above_since = CoDel(target, interval), 0, None
    for gap, sojourn, remaining in heads:
        now += gap
        standing = sojourn >= target and remaining > 1
        above_since = (now if above_since is None else above_since) if standing else None
        if codel.judge(now, sojourn, remaining):
            assert standing
            assert above_since is not None
            assert now - above_since >= interval
        assert standing or not codel.dropping


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300 * MS), st.integers(0, 20 * MS)), max_size=300))
def test_the_same_trace_gives_the_same_verdicts(heads: list[tuple[int, int]]) -> None:
    one, two, now = CoDel(5 * MS, 100 * MS), CoDel(5 * MS, 100 * MS), 0
    for gap, sojourn in heads:
        now += gap
        assert one.judge(now, sojourn, DEEP) == two.judge(now, sojourn, DEEP)


def test_the_target_in_force_leaves_room_for_the_lanes_turn_and_the_designed_wait() -> None:
    assert target_in_force(5 * MS, 0, 0) == 5 * MS
    assert target_in_force(5 * MS, 100 * MS, 20 * MS) == 180 * MS
    assert target_in_force(500 * MS, 100 * MS, 20 * MS) == 500 * MS
    assert target_in_force(1, 1, 0) == 2


def test_a_raised_target_stretches_the_interval_with_it_and_back() -> None:
    codel = CoDel(5 * MS, 100 * MS)
    codel.retarget(300 * MS)
    assert (codel.target, codel.interval) == (300 * MS, 300 * MS)
    assert sheds(codel, 299 * MS, 1000) == []
    codel.retarget(5 * MS)
    assert (codel.target, codel.interval) == (5 * MS, 100 * MS)


@pytest.mark.parametrize(
    ("target", "interval", "argument"),
    [
        (0, 5, "target"),
        (-1, 5, "target"),
        (1.5, 5, "target"),
        (6, 5, "target"),
        (1, 0, "interval"),
        (1, None, "interval"),
    ],
)
def test_bad_settings_are_named(target: int, interval: int, argument: str) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}="):
        CoDel(target, interval)


# --- the ladder ---


def test_only_a_verdict_makes_anything_happen() -> None:
    for mode in get_args(Mode):
        shedder = Shedder(mode, deadline=1)
        shedder.acked(1000)
        assert shedder.decide(False, consumers=5, age=10).kind == "none"
        assert sum(shedder.done.values()) == 0


def test_each_mode_climbs_to_its_own_rung() -> None:
    kinds = {}
    for mode in get_args(Mode):
        shedder = Shedder(mode, deadline=10)
        shedder.acked(100)
        young = shedder.decide(True, consumers=2, age=9).kind
        old = shedder.decide(True, consumers=2, age=10).kind
        kinds[mode] = young, old
    assert kinds == {
        "observe": ("none", "none"),
        "shrink": ("signal", "signal"),
        "return": ("return", "return"),
        "drop": ("return", "drop"),
    }


def test_shrink_is_the_default() -> None:
    assert Shedder().decide(True, consumers=9).kind == "signal"


def test_nothing_is_returned_where_nobody_else_would_get_it() -> None:
    alone = Shedder("return")
    alone.acked(1000)
    action = alone.decide(True, consumers=1)
    assert (action.kind, "nobody else" in action.reason) == ("signal", True)
    sole = Shedder("return", sole=True)
    sole.acked(1000)
    action = sole.decide(True, consumers=3)
    assert (action.kind, "single-active" in action.reason) == ("signal", True)


def test_a_message_is_returned_once_and_below_the_delivery_limit() -> None:
    shedder = Shedder("return", delivery_limit=3)
    shedder.acked(1000)
    assert shedder.decide(True, consumers=2, redelivered=True).kind == "signal"
    assert shedder.decide(True, consumers=2, deliveries=1).kind == "return"
    action = shedder.decide(True, consumers=2, deliveries=2)
    assert (action.kind, "delivery limit of 3" in action.reason) == ("signal", True)


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(1, 100), st.none()), max_size=200))
def test_returns_stay_within_five_per_cent_of_acks(moves: list[int | None]) -> None:
    shedder, acks = Shedder("return"), 0
    for ack in moves:
        if ack is None:
            shedder.decide(True, consumers=2)
        else:
            shedder.acked(ack)
            acks += ack
        assert shedder.done["return"] * 20 <= acks


def test_a_long_quiet_time_does_not_save_up_for_a_flood() -> None:
    shedder = Shedder("return")
    shedder.acked(1_000_000)
    kinds = [shedder.decide(True, consumers=2).kind for _ in range(60)]
    assert kinds == ["return"] * 50 + ["signal"] * 10
    assert shedder.done == {"none": 0, "signal": 10, "return": 50, "drop": 0}


def test_a_drop_needs_no_budget_and_no_company_but_a_deadline_that_passed() -> None:
    shedder = Shedder("drop", deadline=100, sole=True)
    assert shedder.decide(True, consumers=1, redelivered=True, age=99).kind == "signal"
    assert shedder.decide(True, consumers=1, redelivered=True, age=100).kind == "drop"


def test_bad_ladders_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^mode='nack'"):
        Shedder("nack")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a deadline"):
        Shedder("drop")
    with pytest.raises(ConfigError, match=r"^deadline="):
        Shedder("drop", deadline=0)
    with pytest.raises(ConfigError, match=r"^delivery_limit="):
        Shedder("return", delivery_limit=-1)
