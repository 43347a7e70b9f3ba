"""The window autopilot against a simulated broker: it converges, reacts, and comes to rest."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from leash.policies import CoDel, TokenBucket, Window, prefetch_window
from tests.policies.windowsim import MS, SECOND, Run, Simulation, always


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
    assert any("did not bring more messages" in reason for _, _, reason in run.changes)
    assert len(run.busy) >= 1.5 * 38_000


def test_the_same_run_gives_the_same_windows() -> None:
    def changes() -> list[tuple[int, int, str]]:
        return Simulation(Window(51), exponential(7, 4 * MS), always(50 * MS)).run(10 * SECOND).changes

    first = changes()
    assert first == changes()
    assert len(first) > 2
    assert all(type(at) is int and type(window) is int for at, window, _ in first)
