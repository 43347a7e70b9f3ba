"""A round waits for a lane whose messages are on their way, and not for long."""

from __future__ import annotations

from collections import Counter

from leash.flow import Flow, Lane, Probe
from tests.flow.kit import MS, finish, served, warm


def test_a_round_waits_for_a_lane_whose_messages_are_known_to_come() -> None:
    flow = Flow([Lane("a", 2, window=4), Lane("b", 2, window=4)])
    warm(flow)
    for name in ("a", "b"):
        flow.probed(0, name, 100, 1, MS)
    flow.arrive(0, "a", [1])
    flow.arrive(0, "b", [1, 2, 3, 4])
    got = served(flow.take(1, 64))
    assert Counter(lane for lane, _ in got) == {"a": 1, "b": 2}
    assert flow.take(2, 64) == []
    flow.arrive(3, "a", [2])
    assert served(flow.take(3, 64))[0] == ("a", 2)


def test_a_round_waits_fifty_milliseconds_at_most_and_then_asks() -> None:
    flow = Flow([Lane("a", 2, window=4), Lane("b", 2, window=9)])
    warm(flow)
    for name in ("a", "b"):
        flow.probed(0, name, 100, 1, MS)
    flow.arrive(0, "b", list(range(9)))
    first = served(flow.take(1, 64))
    assert len(first) == 2
    assert flow.take(2, 64) == []
    assert flow.take(13 * MS, 64) == []
    assert [d.lane for d in flow.decisions if isinstance(d, Probe)] == ["a"]
    flow.decisions.clear()
    flow.lanes["a"].in_work = 4  # all its credit is in work: none of the 100 can come
    flow.probed(14 * MS, "a", 100, 1, MS)
    assert flow.take(50 * MS, 64) == []
    assert len(served(flow.take(50 * MS + 1, 64))) == 7
    assert [d.lane for d in flow.decisions if isinstance(d, Probe)] == ["a"]
    assert flow.lanes["a"].expired == 1


def waiting_for_a() -> Flow:
    flow = Flow([Lane("a", 2, window=4), Lane("b", 2, window=9)])
    warm(flow)
    for name in ("a", "b"):
        flow.probed(0, name, 100, 1, MS)
    flow.arrive(0, "b", list(range(9)))
    assert len(served(flow.take(0, 64))) == 2
    assert flow.take(13 * MS, 64) == []
    return flow


def test_a_round_stops_waiting_as_soon_as_the_queue_is_known_to_be_empty() -> None:
    flow = waiting_for_a()
    flow.probed(14 * MS, "a", 0, 1, MS)
    assert len(served(flow.take(14 * MS, 64))) == 7
    assert flow.lanes["a"].expired == 0


def test_a_broker_that_answers_nothing_is_not_held_against_the_lane() -> None:
    flow = waiting_for_a()
    assert flow.take(300 * MS, 64) == []
    flow.arrive(301 * MS, "a", [1, 2])
    assert served(flow.take(301 * MS, 64))[:2] == [("a", 1), ("a", 2)]


def test_nor_is_a_slow_one_that_says_it_has_messages_for_us() -> None:
    flow = waiting_for_a()
    flow.probed(14 * MS, "a", 100, 1, MS)
    assert flow.take(300 * MS, 64) == []


def test_once_in_vain_no_round_waits_for_a_lane_before_something_came() -> None:
    flow = waiting_for_a()
    assert len(served(flow.take(500 * MS, 64))) == 7
    flow.probed(501 * MS, "a", 100, 1, MS)
    flow.arrive(501 * MS, "b", list(range(9)))
    assert len(served(flow.take(502 * MS, 64))) == 9
    flow.arrive(503 * MS, "a", [1])
    flow.probed(503 * MS, "a", 100, 1, MS)
    flow.arrive(503 * MS, "b", list(range(9)))
    assert len(served(flow.take(503 * MS, 64))) < 10


def test_but_not_forever() -> None:
    flow = waiting_for_a()
    assert flow.take(499 * MS, 64) == []
    assert len(served(flow.take(500 * MS, 64))) == 7


def test_a_look_that_comes_late_asks_before_it_gives_up() -> None:
    """A busy machine looks once in 60 ms, and finds the timers of this hold and of the one before."""
    flow = Flow([Lane("a", 1, window=4), Lane("b", 1, window=9)])
    warm(flow)
    for name in ("a", "b"):
        flow.probed(0, name, 100, 1, MS)
    flow.arrive(0, "b", list(range(9)))
    assert served(flow.take(0, 64)) == [("b", 0)]
    assert flow.take(1 * MS, 64) == []
    flow.arrive(2 * MS, "a", [1])
    assert served(flow.take(2 * MS, 64)) == [("a", 1), ("b", 1)]
    assert flow.take(3 * MS, 64) == []
    assert flow.take(60 * MS, 64) == []
    assert [d.lane for d in flow.decisions if isinstance(d, Probe)] == ["a"]
    assert flow.lanes["a"].expired == 0
    flow.arrive(61 * MS, "a", [2])
    assert served(flow.take(61 * MS, 64)) == [("a", 2), ("b", 2)]


def test_a_short_wait_asks_nothing_however_many_there_were_before() -> None:
    flow = Flow([Lane("a", 1, window=400), Lane("b", 1, window=400)])
    warm(flow)
    for name in ("a", "b"):
        flow.probed(0, name, 1000, 1, MS)
    flow.arrive(0, "b", list(range(100)))
    for at in range(0, 100 * MS, 2 * MS):
        assert served(flow.take(at, 64)) == [("b", at // (2 * MS))]
        assert flow.take(at + MS // 2, 64) == []  # waits for a
        assert flow.take(at + MS, 64) == []
        flow.arrive(at + MS, "a", [at])
        assert served(flow.take(at + MS, 1)) == [("a", at)]
    assert flow.decisions == []


def test_without_evidence_nobody_waits() -> None:
    flow = Flow([Lane("a", 2, window=4), Lane("b", 2, window=9)])
    warm(flow)
    flow.arrive(0, "a", [1])
    flow.arrive(0, "b", list(range(9)))
    assert len(served(flow.take(1, 64))) == 10


def test_messages_on_their_way_when_the_queue_was_counted_are_not_taken_for_its_rest() -> None:
    flow = Flow([Lane("a", 10, window=100), Lane("b", 10, window=1000)])
    warm(flow)
    for name in ("a", "b"):
        flow.probed(0, name, 60, 1, MS)  # besides 100 of a that have left their queue
    flow.arrive(0, "b", list(range(1000)))
    flow.arrive(1, "a", list(range(100)))
    got = Counter(lane for turn in range(100) for lane, _ in served(flow.take(turn, 64)))
    assert got["a"] == 100
    assert got["b"] <= 110  # and waits, for 60 more of a are to come
    flow.arrive(101, "a", list(range(60)))
    got = Counter(lane for turn in range(100) for lane, _ in served(flow.take(101 + turn, 64)))
    assert got == {"a": 60, "b": 890}  # now a's queue is empty, and nobody waits


def test_a_shallow_queue_is_looked_at_before_it_seems_empty() -> None:
    flow = Flow([Lane("a", window=10)])
    warm(flow)
    flow.probed(0, "a", 100, 1, MS)
    asked = 0
    for at in range(MS, 1000 * MS, MS):  # one comes and one is published every ms: there are always 100
        flow.arrive(at, "a", [at])
        assert flow.lanes["a"].evidence
        finish(flow, at, flow.take(at, 64))
        for decision in flow.decisions:
            asked += 1
            assert isinstance(decision, Probe)
            flow.probed(at, decision.lane, 100, 1, MS)
        flow.decisions.clear()
    assert 1 <= asked <= 20


def test_a_lane_that_runs_dry_is_looked_at_but_not_again_and_again() -> None:
    flow = Flow([Lane("a", window=4)])
    flow.probed(0, "a", 0, 1, MS)
    asked = 0
    for at in range(0, 2000 * MS, 10 * MS):
        flow.arrive(at, "a", ["trickle"])
        finish(flow, at, flow.take(at))
        for decision in flow.decisions:
            assert isinstance(decision, Probe)
            asked += 1
            flow.probed(at, "a", 0, 1, MS)
        flow.decisions.clear()
    assert 2 <= asked <= 8
