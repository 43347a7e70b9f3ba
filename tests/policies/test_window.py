"""The credit formulas with the published numbers; the autopilot against a simulated broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.policies import CoDel, TokenBucket, Window, prefetch_window
from leash.policies.credit import ceil_with_root, lane_window, standing_wait, utilisation
from leash.policies.window import Change, spell
from tests.policies.windowsim import MS, Run, Simulation

SECOND = 1000 * MS


def always(value: int) -> Callable[[int], int]:
    return lambda _: value


# --- the formulas ---


def test_the_window_is_the_round_trip_and_the_service_over_the_service() -> None:
    assert prefetch_window(100 * MS, 4 * MS) == 26
    assert prefetch_window(200 * MS, 4 * MS) == 51
    assert prefetch_window(100 * MS, 40 * MS) == 4
    assert prefetch_window(0, 4 * MS) == 1


def test_several_workers_and_batched_acks_need_more() -> None:
    assert prefetch_window(100 * MS, 40 * MS, workers=8) == 28
    assert prefetch_window(100 * MS, 4 * MS, ack_batch=5) == 30
    assert prefetch_window(0, 4 * MS, workers=3, ack_batch=4) == 6


def test_variable_service_times_need_two_standard_deviations_more() -> None:
    assert prefetch_window(100 * MS, 4 * MS, cv=1) == 1 + 25 + 2 * 5
    assert prefetch_window(100 * MS, 4 * MS, cv=0.5) == 31
    assert prefetch_window(100 * MS, 4 * MS, cv=0.1) == 27
    assert prefetch_window(100 * MS, 4 * MS, cv=Fraction(1, 10)) == 27
    assert prefetch_window(0, 4 * MS, cv=3) == 1


def test_a_rate_limited_lane_needs_the_tokens_pace_and_a_burst() -> None:
    assert prefetch_window(100 * MS, 4 * MS, rate=50) == 6
    assert prefetch_window(100 * MS, 4 * MS, rate=50, burst=100) == 105
    assert prefetch_window(100 * MS, 4 * MS, workers=2, rate=50, cv=1) == 6
    # A rate that the workers do not reach changes nothing.
    assert prefetch_window(100 * MS, 4 * MS, rate=250) == prefetch_window(100 * MS, 4 * MS)
    assert prefetch_window(100 * MS, 40 * MS, workers=8, rate=1000) == 28


def test_work_that_outlasts_a_token_holds_several_credits_at_once() -> None:
    window = prefetch_window(2 * MS, 100 * MS, workers=8, rate=50)
    assert window == 6  # 5 in work at any time: 50 a second for 0.1 s each

    def messages(credit: int) -> int:
        idle = Window(8, workers=8)
        sim = Simulation(idle, always(100 * MS), always(MS), bucket=TokenBucket(50, 1), tuned=False)
        sim.limit = credit
        return len(sim.run(10 * SECOND).busy)

    assert messages(window) == 500
    assert messages(window - 2) < 400


def test_windows_fit_into_the_wire_and_no_service_counts_as_a_nanosecond() -> None:
    assert prefetch_window(SECOND, 1) == 65535
    assert prefetch_window(SECOND, 0) == 65535
    assert prefetch_window(5, 0) == 6
    assert prefetch_window(0, 0) == 1
    assert prefetch_window(0, 1, rate=1, burst=10**6) == 65535


@settings(deadline=None)
@given(st.integers(0, 10**10), st.integers(1, 10**10))
def test_no_smaller_window_keeps_one_worker_busy(round_trip: int, service: int) -> None:
    window = prefetch_window(round_trip, service)
    if window < 65535:
        assert window * service >= round_trip + service
        assert (window - 1) * service < round_trip + service
        assert utilisation(window, round_trip, service) == 1
        assert standing_wait(window, round_trip, service) < service


@settings(deadline=None)
@given(st.fractions(0, 10**6), st.fractions(0, 10**9))
def test_the_root_is_rounded_up_exactly(number: Fraction, square: Fraction) -> None:
    least = ceil_with_root(number, square)
    assert least >= number
    assert (least - number) ** 2 >= square
    assert least - 1 < number or (least - 1 - number) ** 2 < square


def test_utilisation_and_wait_are_the_published_ones() -> None:
    assert utilisation(1, 100, 4) == pytest.approx(0.0385, abs=5e-5)
    assert (utilisation(26, 100, 4), standing_wait(26, 100, 4)) == (1, 0)
    assert (utilisation(51, 100, 4), standing_wait(51, 100, 4)) == (1, 100)
    assert utilisation(26, 200, 4) == pytest.approx(0.51, abs=5e-4)
    assert utilisation(51, 200, 4) == 1
    assert [standing_wait(window, 100, 40) for window in (26, 51, 4)] == [900, 1900, 20]
    assert utilisation(4, 100, 40) == 1
    assert utilisation(1, 0, 0) == 1


@pytest.mark.parametrize(
    ("window", "round_trip", "service"), [(1, 100, 4), (26, 200, 4), (51, 100, 4), (26, 100, 40)]
)
def test_the_formulas_are_what_a_simulated_broker_does(window: int, round_trip: int, service: int) -> None:
    sim = Simulation(Window(window), always(service * MS), always(round_trip * MS // 2), tuned=False)
    run = sim.run(30 * SECOND)
    cycle = max(window * service, round_trip + service) * MS
    end = 2 * SECOND + 20 * SECOND // cycle * cycle
    assert run.utilisation(2 * SECOND, end) == pytest.approx(utilisation(window, round_trip, service))
    assert set(run.waits_from(5 * SECOND)) == {standing_wait(window, round_trip, service) * MS}


def test_a_lane_needs_its_share_and_enough_for_a_turn() -> None:
    quanta = list(range(4, 44, 4))
    windows = [lane_window(quantum, sum(quanta), 100 * MS, 4 * MS) for quantum in quanta]
    assert windows == [4, 8, 12, 16, 20, 24, 26, 26, 26, 26]
    # A lane that is nearly alone needs nearly what the pool does, however short its turns are.
    assert lane_window(9, 10, 100 * MS, 4 * MS) == 24
    assert lane_window(1, 2, 100 * MS, 4 * MS, workers=4, ack_batch=3) == 54
    assert lane_window(5, 5, 100 * MS, 4 * MS) == prefetch_window(100 * MS, 4 * MS)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("round_trip", -1),
        ("service", 1.5),
        ("workers", 0),
        ("ack_batch", 0),
        ("cv", -0.1),
        ("cv", "wide"),
        ("rate", 0),
        ("rate", -3),
        ("burst", 0),
    ],
)
def test_bad_arguments_are_named(argument: str, value: object) -> None:
    arguments: dict[str, object] = {"round_trip": 1, "service": 1, argument: value}
    with pytest.raises(ConfigError, match=f"^{argument}="):
        prefetch_window(**arguments)  # type: ignore[arg-type]


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
    with pytest.raises(ConfigError, match=r"^quanta="):
        lane_window(2, 1, 1, 1)


# --- the autopilot: one epoch at a time ---


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
        (26, "workers found nothing at 100 of 101 dequeues in the last 400 ms; window 13 -> 26")
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


def test_slow_work_is_acked_one_by_one_and_fast_work_in_batches() -> None:
    window = Window(50, ack_batch=8, round_trip=MS)
    assert window.ack_batch == 1
    changes = feed(window, [0] * 2001, service=50_000)
    assert (window.ack_batch, window.window) == (8, 57)
    assert changes == [(57, "one ack for 8 messages instead of 1; window 50 -> 57")]
    feed(window, [0] * 101, service=4 * MS, start=SECOND)
    assert (window.ack_batch, window.window) == (1, 50)


def test_the_ack_batch_does_not_follow_a_service_time_that_flutters() -> None:
    window = Window(50, ack_batch=64, round_trip=MS)
    feed(window, [0] * 4000, service=30_000)
    batch = window.ack_batch
    for number, service in enumerate((25_000, 31_000, 28_000, 35_000), start=1):
        assert feed(window, [0] * 5000, service=service, start=number * SECOND) == []
    assert window.ack_batch == batch == 13


def test_a_signal_ends_the_epoch_early() -> None:
    window = Window(26, round_trip=100 * MS)
    for number in range(4):
        assert window.observe(number * 40 * MS, 22) is None
        window.served(40 * MS)
    assert window.signal(130 * MS) == (4, "22 credits never used in the last 130 ms; window 26 -> 4")


def test_a_signal_is_ignored_until_messages_sent_after_the_last_change_are_seen() -> None:
    window = Window(26, round_trip=100 * MS)
    assert window.signal(0) is None
    feed(window, [22] * 11, service=40 * MS)
    assert window.window == 4
    for number in range(10):
        assert window.observe(10 * SECOND + number * 40 * MS, 20, epoch=0) is None
        assert window.signal(10 * SECOND + number * 40 * MS) is None
    assert window.window == 4


def test_a_signal_makes_the_next_epoch_short_too_when_this_one_began_before_the_delay() -> None:
    window = Window(26, round_trip=100 * MS)
    feed(window, [0] * 20)
    assert window.signal(80 * MS) is None
    changes = [window.observe(80 * MS + number * 40 * MS, 22) for number in range(4)]
    assert changes[:3] == [None] * 3
    assert changes[3] is not None
    assert changes[3].window == 4


def test_a_signal_waits_for_two_rounds_of_the_lanes() -> None:
    window = Window(26, round_trip=100 * MS)
    window.round_time = SECOND
    for number in range(20):
        assert window.observe(number * 100 * MS, 22) is None
        assert window.signal(number * 100 * MS) is None
    assert window.observe(2 * SECOND, 22) is not None


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
        change = window.signal(now) if signal else window.observe(now, backlog, starved=starved, idle=starved)
        assert 2 + window.ack_batch - 1 <= window.window <= 65535
        if change is None:
            assert window.window == old
        else:
            assert change.window == window.window != old
            assert change.reason.endswith(f"; window {old} -> {window.window}")


def test_spans_are_spelled_for_people() -> None:
    spans = (5, 12_345, 400 * MS, 1_800 * MS, 4000 * SECOND)
    assert [spell(span) for span in spans] == ["5 ns", "12.3 us", "400 ms", "1.8 s", "4000 s"]


# --- the autopilot: against a broker ---


def settle(window: Window, run: Run, until: int) -> tuple[list[int], float]:
    """The windows and the utilisation of the second half."""
    start = run.changes[-1][1] if run.changes else window.window
    return run.windows_from(until // 2, start), run.utilisation(until // 2, until, window.workers)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("start", [1, 4, 26, 51, 500])
@pytest.mark.parametrize(("service", "low", "high"), [(4 * MS, 24, 30), (40 * MS, 4, 6)])
def test_it_finds_the_window_from_anywhere(
    start: int, service: int, low: int, high: int, known: bool, anew: bool
) -> None:
    until = 15 * SECOND if service < 10 * MS else 100 * SECOND
    window = Window(start)
    run = Simulation(window, always(service), always(50 * MS), known_round_trip=known, anew=anew).run(until)
    windows, busy = settle(window, run, until)
    assert low <= min(windows) <= max(windows) <= high
    assert busy >= 0.95
    assert len(windows) <= 3


def test_it_goes_from_51_to_26_in_one_step() -> None:
    run = Simulation(Window(51), always(4 * MS), always(50 * MS)).run(10 * SECOND)
    assert [change[1:] for change in run.changes] == [
        (26, "25 credits never used in the last 400 ms; window 51 -> 26")
    ]


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("signals", [False, True])
def test_it_goes_from_26_to_4_in_one_step_when_the_work_gets_ten_times_slower(
    signals: bool, anew: bool
) -> None:
    codel = CoDel(5 * MS, 100 * MS) if signals else None
    jump = 5 * SECOND
    work = lambda now: 4 * MS if now < jump else 40 * MS  # noqa: E731
    run = Simulation(Window(26), work, always(50 * MS), codel=codel, anew=anew).run(20 * SECOND)
    assert [window for _, window, _ in run.changes] == [4]
    assert run.changes[0][0] - jump < (500 * MS if signals else SECOND)
    assert max(run.waits_from(jump + 2 * SECOND)) < 100 * MS
    assert run.utilisation(jump, 20 * SECOND) >= 0.99


@pytest.mark.parametrize("anew", [False, True])
def test_it_grows_back_within_two_seconds_when_the_work_gets_fast_again(anew: bool) -> None:
    jump = 5 * SECOND
    work = lambda now: 40 * MS if now < jump else 4 * MS  # noqa: E731
    run = Simulation(Window(4), work, always(50 * MS), anew=anew).run(15 * SECOND)
    assert run.windows_from(jump + 2 * SECOND, 4) == [26]
    assert run.utilisation(jump + 2 * SECOND, 15 * SECOND) >= 0.99


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("known", [True, False])
def test_it_recovers_when_the_round_trip_doubles_and_when_it_halves_again(known: bool, anew: bool) -> None:
    delay = lambda now: 100 * MS if 5 * SECOND <= now < 15 * SECOND else 50 * MS  # noqa: E731
    sim = Simulation(Window(26), always(4 * MS), delay, known_round_trip=known, anew=anew)
    run = sim.run(25 * SECOND)
    assert run.utilisation(9 * SECOND, 15 * SECOND) >= 0.95
    assert all(48 <= window <= 58 for window in run.windows_from(9 * SECOND, 26)[:1])
    assert run.utilisation(17 * SECOND, 25 * SECOND) >= 0.95
    assert run.windows_from(20 * SECOND, 26)[0] in range(24, 31)


def test_a_round_trip_that_was_measured_long_ago_does_not_hold_it_back() -> None:
    delay = lambda now: 50 * MS if now < 5 * SECOND else 150 * MS  # noqa: E731
    window = Window(26, round_trip=100 * MS)
    run = Simulation(window, always(4 * MS), delay, known_round_trip=False).run(20 * SECOND)
    assert run.utilisation(10 * SECOND, 20 * SECOND) >= 0.95
    assert 74 <= window.window <= 85


@pytest.mark.parametrize(
    ("round_trip", "service", "workers", "ack_batch"),
    [
        (300_000, 20_000, 1, 1),
        (300_000, 20_000, 1, 16),
        (2 * MS, 50_000, 4, 8),
        (2 * MS, MS, 8, 1),
        (20 * MS, 7 * MS, 3, 4),
        (100 * MS, 40 * MS, 8, 1),
        (MS, 400 * MS, 2, 1),
        (0, MS, 1, 1),
    ],
)
def test_it_keeps_other_workers_on_other_networks_busy(
    round_trip: int, service: int, workers: int, ack_batch: int
) -> None:
    until = max(1000 * MS, 25 * round_trip, 80 * service)
    window = Window(workers=workers, ack_batch=ack_batch)
    run = Simulation(window, always(service), always(round_trip // 2)).run(until)
    windows, busy = settle(window, run, until)
    ideal = prefetch_window(round_trip, service, workers, window.ack_batch)
    assert busy >= 0.95
    # Workers in lockstep ask for whole groups of them, and acks come in whole batches.
    assert ideal * 0.9 <= min(windows) <= max(windows) <= ideal * 1.2 + workers + window.ack_batch
    assert len(windows) <= 2


def exponential(seed: int, mean: int) -> Callable[[int], int]:
    dice = random.Random(seed)
    return lambda _: int(dice.expovariate(1 / mean))


def uniform(seed: int, mean: int) -> Callable[[int], int]:
    dice = random.Random(seed)
    return lambda _: dice.randint(mean // 2, 3 * mean // 2)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    ("draw", "mean", "workers", "low", "high"),
    [
        (uniform, 4 * MS, 1, 26, 32),
        (exponential, 4 * MS, 1, 28, 46),
        (uniform, 40 * MS, 1, 4, 8),
        (exponential, 40 * MS, 8, 30, 46),
    ],
)
def test_random_service_times_neither_starve_it_nor_make_it_swing(
    draw: Callable[[int, int], Callable[[int], int]], mean: int, workers: int, low: int, high: int, anew: bool
) -> None:
    for seed in range(2):
        until = max(40 * SECOND, 1500 * mean)
        window = Window(51, workers=workers)
        run = Simulation(window, draw(seed, mean), always(50 * MS), anew=anew).run(until)
        windows, busy = settle(window, run, until)
        assert low <= min(windows) <= max(windows) <= high
        assert busy >= 0.95
        middle = (min(windows) + max(windows)) / 2
        assert max(windows) - middle <= max(2, 0.2 * middle)


@pytest.mark.parametrize(("credit", "nacks"), [(26, 3.5), (51, 7.7), (4, 0)])
def test_returning_messages_never_ends_where_shrinking_the_window_does_it_once(
    credit: int, nacks: float
) -> None:
    codel = CoDel(20 * MS, 20 * MS)
    codel.target = 100 * MS  # the seed's own numbers, which our constructor refuses
    sim = Simulation(Window(credit), always(40 * MS), always(50 * MS), codel=codel, tuned=False)
    run = sim.run(60 * SECOND)
    assert run.nacks / len(run.busy) == pytest.approx(nacks, abs=0.06)
    assert run.utilisation(SECOND, 60 * SECOND) == 1
    if credit == 4:
        assert set(run.waits_from(SECOND)) == {20 * MS}


def test_codel_and_the_window_do_not_fight() -> None:
    window, codel = Window(51), CoDel(5 * MS, 100 * MS)
    codel.retarget(90 * MS)  # 1.5 times the designed wait of two standard deviations
    sim = Simulation(window, exponential(3, 4 * MS), always(50 * MS), codel=codel)
    run = sim.run(40 * SECOND)
    windows, busy = settle(window, run, 40 * SECOND)
    assert busy >= 0.95
    assert 24 <= min(windows) <= max(windows) <= 46


def test_a_throttled_lane_holds_only_what_its_tokens_can_use() -> None:
    window = Window(51, rate=50, burst=1)
    sim = Simulation(window, always(4 * MS), always(50 * MS), bucket=TokenBucket(50, 1))
    run = sim.run(20 * SECOND)
    assert window.window == 6
    assert len(run.busy) == pytest.approx(1000, abs=10)


def test_it_does_not_pile_up_credit_where_the_broker_is_the_limit() -> None:
    window = Window(16)
    sim = Simulation(window, always(2_000), always(250_000), broker_gap=25_000)
    run = sim.run(1500 * MS)
    assert max(window for _, window, _ in run.changes) <= 256
    assert window.window == 128
    assert any("brought no more messages" in reason for _, _, reason in run.changes)
    assert len(run.busy) >= 1.5 * 38_000


def test_the_same_run_gives_the_same_windows() -> None:
    def changes() -> list[tuple[int, int, str]]:
        return Simulation(Window(51), exponential(7, 4 * MS), always(50 * MS)).run(10 * SECOND).changes

    first = changes()
    assert first == changes()
    assert len(first) > 2
    assert all(type(at) is int and type(window) is int for at, window, _ in first)
