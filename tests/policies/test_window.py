"""The window autopilot, one epoch at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.flow import Flow, Lane
from leash.lab.clock import Clock
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.policies import Window
from leash.policies.window import Change, spell
from tests.policies.windowsim import MS, SECOND


def feed(
    window: Window, backlogs: list[int], service: int = 4 * MS, starved: int = 0, start: int = 0
) -> list[Change]:
    """One dequeue after the other, `service` apart."""
    changes = []
    for number, backlog in enumerate(backlogs):
        window.served(service)
        change = window.observe(start + number * service, backlog, starved=starved, epoch=window.epoch)
        if change is not None:
            changes.append(change)
    return changes


def test_credit_that_was_never_used_goes_in_one_step_with_a_reason() -> None:
    window = Window(51, round_trip=100 * MS)
    changes = feed(window, [25] * 101)
    assert changes == [(26, "25 credits never used in the last 400 ms; window 51 -> 26")]
    assert (window.window, window.epoch, window.service) == (26, 1, 4 * MS)


def test_one_moment_without_backlog_proves_that_all_credit_was_used() -> None:
    window = Window(51, round_trip=100 * MS)
    assert feed(window, [25] * 50 + [0] + [25] * 50) == []
    assert window.epoch == 0


def test_starved_workers_get_what_the_model_asks_for() -> None:
    window = Window(13, round_trip=100 * MS)
    changes = feed(window, [0] * 101, starved=1)
    assert changes == [
        (26, "workers found no message at 100 of 101 dequeues in the last 400 ms; window 13 -> 26")
    ]


def test_starved_workers_get_more_even_where_the_model_says_enough() -> None:
    window = Window(26, round_trip=100 * MS)
    assert feed(window, [0] * 101, starved=1)[0].window == 27


def test_fewer_than_one_starved_dequeue_in_twenty_is_no_starvation() -> None:
    def run(starved: int) -> Change | None:
        window, change = Window(13, round_trip=100 * MS), None
        for number in range(101):
            window.served(4 * MS)
            change = window.observe(number * 4 * MS, 0, starved=int(1 <= number <= starved)) or change
        return change

    assert run(5) is None
    assert run(6) is not None


def test_little_idling_in_many_dequeues_and_much_in_few_both_count() -> None:
    window = Window(13, round_trip=100 * MS)
    for number in range(101):
        window.served(4 * MS)
        change = window.observe(number * 4 * MS, 0, starved=int(number == 50), idle=10 * MS * (number == 50))
    assert change is not None
    assert change.window == 26


def test_messages_sent_before_the_last_change_tell_nothing() -> None:
    window = Window(51, round_trip=100 * MS)
    feed(window, [25] * 101)
    for number in range(1000):
        assert window.observe(SECOND + number * 4 * MS, 25, epoch=0) is None
    assert window.window == 26
    assert feed(window, [3] * 101, start=9 * SECOND)[0].window == 23


def test_an_epoch_spans_four_round_trips_ten_messages_and_two_rounds_of_the_lanes() -> None:
    def length(messages: int, step: int, **facts: int) -> int:
        window = Window(1000, round_trip=facts.get("round_trip", 0))
        window.round_time = facts.get("round_time", 0)
        for number in range(messages):
            if window.observe(number * step, 500) is not None:
                return number * step
        raise AssertionError("the epoch never ended")

    assert length(1000, 4 * MS, round_trip=100 * MS) == 400 * MS
    assert length(1000, 4 * MS, round_time=900 * MS) == 1800 * MS
    assert length(1000, MS) == 100 * MS
    assert length(1000, SECOND) == 9 * SECOND


def test_the_window_never_falls_below_what_the_workers_the_acks_and_a_batch_need() -> None:
    assert feed(Window(50, workers=8, round_trip=MS), [49] * 200)[0].window == 8
    assert feed(Window(50, least=20, round_trip=MS), [49] * 200)[0].window == 20
    assert Window(1, workers=4).window == 4


def test_nor_does_it_rise_above_what_it_may_have_whatever_they_need() -> None:
    assert Window(50, workers=8, least=20, most=3).window == 3
    window = Window(13, most=20, round_trip=100 * MS)
    assert feed(window, [0] * 101, starved=1)[0].window == 20
    assert feed(window, [0] * 101, starved=1, start=SECOND) == []


def test_a_change_from_outside_begins_a_new_epoch_and_says_why() -> None:
    window = Window(50, round_trip=100 * MS)
    feed(window, [49] * 50)
    assert window.change(9, "there is no room") == (9, "there is no room; window 50 -> 9")
    assert (window.window, window.epoch) == (9, 1)
    assert feed(window, [0] * 50) == []  # what was before does not count


def test_a_backlog_beside_other_lanes_takes_nothing_from_what_its_share_needs() -> None:
    """The others are late and the round waits for them: here their absence looks like too much credit."""

    def trimmed(round_time: int) -> int:
        window = Window(200, round_trip=100 * MS, quantum=1, quanta=4)
        window.round_time = round_time
        feed(window, [199] * 400, 2 * MS)
        return window.window

    assert trimmed(0) == 1
    assert trimmed(4 * 2 * MS) == 13  # one of its messages in each round of 8 ms, over 102 ms
    assert trimmed(102 * MS) == 1


def test_slow_work_is_acked_one_by_one_and_fast_work_in_batches() -> None:
    window = Window(50, ack_batch=8, round_trip=MS)
    assert window.ack_batch == 1
    changes = feed(window, [0] * 2001, service=50_000)
    assert (window.ack_batch, window.window) == (8, 57)
    assert changes == [(57, "one ack for 8 messages instead of 1; window 50 -> 57")]
    feed(window, [0] * 101, service=4 * MS, start=SECOND)
    assert (window.ack_batch, window.window) == (1, 50)


def test_a_window_without_room_for_an_ack_batch_keeps_its_credit_when_work_gets_slow() -> None:
    window = Window(15, ack_batch=128, most=15, round_trip=MS)
    feed(window, [0] * 101_000, service=1_000)
    assert (window.ack_batch, window.window) == (128, 15)
    feed(window, [0] * 101, service=4 * MS, start=SECOND)
    assert (window.ack_batch, window.window) == (1, 15)


def test_a_starved_lane_beside_others_gets_a_turn_at_once_and_keeps_it() -> None:
    """With less, the round waits for it twice, whatever the others have; and more brings no more messages."""
    window = Window(1, round_trip=10 * MS, quantum=4, quanta=4000)
    window.round_time = 40 * MS
    feed(window, [0] * 20, service=10_000, starved=1)
    for number in range(1, 40):
        feed(window, [0] * 20, service=10_000, starved=1, start=number * SECOND)
        assert window.window >= 4


def test_credit_that_brings_nothing_is_given_up_but_not_what_acks_hold_back() -> None:
    """200 credits, acked one by one, are worth more than 200 of which 127 may wait to be acked."""
    window, now = Window(200, ack_batch=128, round_trip=MS // 4), 0
    back = None
    while back is None:
        now += MS
        window.served(1000, 100)
        change = window.observe(now, 0, 100, starved=100, epoch=window.epoch)
        back = change if change is not None and "did not bring" in change.reason else None
    assert (window.ack_batch, back.window) == (128, 200 + 127)


def test_the_ack_batch_does_not_follow_a_service_time_that_flutters() -> None:
    window = Window(50, ack_batch=64, round_trip=MS)
    feed(window, [0] * 4000, service=30_000)
    batch = window.ack_batch
    for number, service in enumerate((25_000, 31_000, 28_000, 35_000), start=1):
        assert feed(window, [0] * 5000, service=service, start=number * SECOND) == []
    assert window.ack_batch == batch == 13


def test_a_signal_begins_a_short_epoch_once_all_that_is_too_much_has_come() -> None:
    window = Window(26, round_trip=100 * MS)
    feed(window, [0] * 20)
    window.signal(80 * MS)
    changes = []
    for number, backlog in enumerate([5, 15, 22, 22, 22, 22, 22]):
        window.served(40 * MS)
        changes.append(window.observe(80 * MS + number * 40 * MS, backlog))
        window.signal(80 * MS + number * 40 * MS)  # again and again, as CoDel does: once is enough
    assert changes == [None] * 6 + [(4, "22 credits never used in the last 120 ms; window 26 -> 4")]


def test_a_signal_is_ignored_until_messages_sent_after_the_last_change_are_seen() -> None:
    window = Window(26, round_trip=100 * MS)
    window.signal(0)
    feed(window, [22] * 11, service=40 * MS)
    assert window.window == 4
    for number in range(10):
        assert window.observe(10 * SECOND + number * 40 * MS, 20, epoch=0) is None
        window.signal(10 * SECOND + number * 40 * MS)
    assert window.window == 4


@pytest.mark.parametrize("trip", [20, 50, 100, 200])
@pytest.mark.parametrize("late", range(0, 420, 60))
def test_whenever_the_work_gets_slow_the_window_comes_down_in_one_step(trip: int, late: int) -> None:
    clock = Clock()
    flow = Flow([Lane("q")])
    pool = Pool(clock, flow, [Queue(clock, "q", 10**9)], 4 * MS, up=trip * MS // 2, down=trip * MS // 2)
    jump = 4 * SECOND + late * MS
    clock.run(jump)
    pool.service = 40 * MS
    clock.run(jump + 2 * SECOND)
    assert [window for at, _, window, _ in pool.log.windows if at > jump] == [1 + -(-trip // 40)]


def test_a_signal_never_makes_an_epoch_so_short_that_it_sees_one_read_only() -> None:
    window = Window(500, round_trip=MS)
    for number in range(50):  # batches of a fast worker, from a buffer that one read has filled
        window.signal(number * MS)
        assert window.observe(number * MS, 400, count=64) is None
    assert window.observe(99 * MS, 0, count=64) is None
    assert window.observe(101 * MS, 400, count=64) is None
    assert window.window == 500


def test_a_few_credits_too_many_are_not_worth_another_consumer() -> None:
    for useless, changed in ((20, False), (21, True)):
        window = Window(320, round_trip=100 * MS)
        changes = [window.observe(number * 40 * MS, useless) for number in range(11)]
        assert (changes[-1] is not None) is changed


def test_a_signal_waits_for_two_rounds_of_the_lanes() -> None:
    window = Window(26, round_trip=100 * MS)
    window.round_time = SECOND
    window.observe(0, 22)
    window.signal(0)
    for number in range(1, 21):
        assert window.observe(number * 100 * MS, 22) is None
        window.signal(number * 100 * MS)
    assert window.observe(2100 * MS, 22) is not None


def test_a_batch_counts_as_its_messages() -> None:
    one, many = Window(51, round_trip=100 * MS), Window(51, round_trip=100 * MS)
    single = feed(one, [25] * 101)
    changes = [many.observe(number * 40 * MS, 25, count=10) for number in range(11)]
    assert [change.window for change in changes if change is not None] == [single[0].window]


def test_a_lane_among_others_asks_for_its_share() -> None:
    window = Window(2, round_trip=100 * MS, quantum=4, quanta=220)
    assert feed(window, [0] * 101, starved=1)[0].window == 4
    window = Window(10, round_trip=100 * MS, quantum=40, quanta=220)
    assert feed(window, [0] * 101, starved=1)[0].window == 26


def test_a_rate_limited_lane_starts_with_what_its_tokens_need() -> None:
    assert Window(rate=50, burst=100, round_trip=100 * MS).window == 105
    assert Window(rate=50, round_trip=100 * MS).window == 6
    window = Window(round_trip=100 * MS)
    window.set_rate(50, 10)
    assert feed(window, [0] * 101, starved=1)[0].window == 17


def test_the_designed_wait_is_the_spare_work_of_the_model() -> None:
    window = Window(26, round_trip=100 * MS)
    assert window.designed_wait() == 0
    feed(window, [0] * 11, service=40 * MS)
    assert window.designed_wait() == 20 * MS
    limited = Window(26, round_trip=100 * MS, rate=50, burst=11)
    feed(limited, [0] * 101)
    assert limited.designed_wait() == 200 * MS


def test_an_epoch_without_any_finished_work_never_asks_for_the_moon() -> None:
    window = Window(16, round_trip=100 * MS)
    changes = [window.observe(number * 50 * MS, 0, starved=1) for number in range(11)]
    assert [change.window for change in changes if change is not None] == [17]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50 * MS), st.integers(0, 60), st.integers(0, 1), st.booleans()), max_size=400
    )
)
def test_whatever_happens_the_window_stays_in_bounds_and_says_why(
    moves: list[tuple[int, int, int, bool]],
) -> None:
    window, now = Window(60, workers=2, ack_batch=4, round_trip=10 * MS), 0
    for gap, backlog, starved, signal in moves:
        now += gap
        window.served(gap)
        old = window.window
        if signal:
            window.signal(now)
        change = window.observe(now, backlog, starved=starved, idle=starved)
        assert 2 + window.ack_batch - 1 <= window.window <= 65535
        if change is None:
            assert window.window == old
        else:
            assert change.window == window.window != old
            assert change.reason.endswith(f"; window {old} -> {window.window}")


def test_spans_are_spelled_for_people() -> None:
    spans = (5, 12_345, 400 * MS, 1_800 * MS, 4000 * SECOND)
    assert [spell(span) for span in spans] == ["5 ns", "12.3 us", "400 ms", "1.8 s", "4000 s"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("start", 0),
        ("start", 65536),
        ("workers", 0),
        ("ack_batch", 0),
        ("least", 0),
        ("round_trip", -1),
        ("quantum", 0),
        ("quanta", 0),
        ("rate", 0),
        ("burst", 0),
    ],
)
def test_a_window_with_bad_arguments_is_refused(argument: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}="):
        Window(**{argument: value})
