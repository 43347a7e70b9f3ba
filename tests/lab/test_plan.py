"""`leash plan`: the textbook's windows, and workers enough for a latency target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leash.cli.plan import _fields
from leash.errors import ConfigError
from leash.lab.plan import Outcome, Plan, Setting, Stream, cheapest, load, numbers, stream, try_out
from leash.lab.sweep import deal


def best(plan: Plan) -> Outcome | None:
    return cheapest(plan, [try_out(plan, setting) for setting in plan.settings()])


@pytest.mark.parametrize(("work", "window"), [(4, 26), (40, 4)])
def test_the_cheapest_window_is_the_least_that_keeps_the_worker_busy(work: float, window: int) -> None:
    found = best(Plan((Stream("q", work),), round_trip=100))
    assert found is not None
    assert found.setting == Setting(1, window, (1,))


def test_two_queues_share_the_credit_that_one_needs() -> None:
    found = best(Plan((Stream("a", 4), Stream("b", 4)), round_trip=100))
    assert found is not None
    assert found.setting.window == 13


def test_a_latency_target_asks_for_more_workers() -> None:
    plan = Plan((Stream("q", 20, rate=90, spread=1.0),), round_trip=2, workers=(1, 2, 3, 4, 6), windows=(8,))
    relaxed = best(plan)
    strict = best(Plan(plan.streams, 2, (8,), (1, 2, 3, 4, 6), latency=160))
    assert relaxed is not None
    assert strict is not None
    assert relaxed.setting.workers == 2
    assert strict.setting.workers > 2
    assert strict.slowest <= 160


def test_a_target_that_nothing_meets_has_no_cheapest_setting() -> None:
    assert best(Plan((Stream("q", 20, rate=10),), round_trip=2, windows=(4,), latency=15)) is None


def test_a_queue_with_a_larger_quantum_is_faster_under_pressure() -> None:
    streams = (Stream("a", 10, rate=45, quanta=(1, 9)), Stream("b", 10, rate=45, quanta=(1,)))
    plan = Plan(streams, round_trip=1, windows=(16,))
    outcomes = [try_out(plan, setting) for setting in plan.settings()]
    assert [outcome.setting.quanta for outcome in outcomes] == [(1, 1), (9, 1)]
    assert all(outcome.throughput == pytest.approx(90, rel=0.1) for outcome in outcomes)


def test_trying_a_setting_twice_gives_the_same_outcome() -> None:
    plan = Plan((Stream("q", 5, rate=100, spread=0.7),), round_trip=10, workers=(2,), windows=(9,))
    (setting,) = plan.settings()
    assert try_out(plan, setting) == try_out(plan, setting)


def test_a_description_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'round_trip = 100\nlatency = 250\nwindows = "1-4"\nworkers = [1, 2]\n'
        '[[queue]]\nname = "gold"\nwork = 4\nrate = 50\nquantum = "1,3"\n[[queue]]\nname = "free"\n'
    )
    plan = load(file)
    assert plan == Plan(
        (Stream("gold", 4.0, 50.0, (1, 3)), Stream("free")), 100.0, (1, 2, 3, 4), (1, 2), 250.0
    )
    assert len(list(plan.settings())) == 2 * 4 * 2


def test_a_queue_is_described_on_the_command_line() -> None:
    assert stream(_fields("name=a,work=4,quantum=1,3,rate=2")) == Stream("a", 4.0, 2.0, (1, 3))


@pytest.mark.parametrize(
    ("bad", "argument"),
    [
        (lambda: Plan(()), "queue"),
        (lambda: Plan(windows=()), "windows"),
        (lambda: Plan(workers=(0,)), "workers"),
        (lambda: Plan(latency=0), "latency"),
        (lambda: Plan(round_trip=-1), "round_trip"),
        (lambda: Stream(work=0), "work"),
        (lambda: Stream(rate=-1), "rate"),
        (lambda: Stream(spread=2), "spread"),
        (lambda: stream({"nmae": "x"}), "queue"),
        (lambda: stream({"work": "fast"}), "work"),
        (lambda: numbers("windows", "1-x"), "windows"),
        (lambda: _fields("orders"), "queue"),
        (lambda: load(Path("nowhere.toml")), "plan"),
    ],
)
def test_a_bad_description_is_answered_with_the_argument(bad: object, argument: str) -> None:
    assert callable(bad)
    with pytest.raises(ConfigError) as caught:
        bad()
    assert caught.value.argument == argument


def test_batches_share_settings_like_cards() -> None:
    settings = [Setting(1, window, (1,)) for window in range(7)]
    batches = deal(settings, 3)
    assert [len(batch) for batch in batches] == [3, 2, 2]
    assert sorted(setting for batch in batches for setting in batch) == settings


@pytest.mark.spark
def test_the_sweep_runs_on_spark_and_writes_its_plot(tmp_path: Path) -> None:
    code = "import typer; from leash.cli.plan import plan; typer.run(plan)"
    report = tmp_path / "plan.html"
    flags = ["--work", "4", "--round-trip", "100", "--master", "local[2]", "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-c", code, *flags, "--windows", "20-30"],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert "Cheapest: 1 worker, window 26" in done.stdout
    assert "Cheapest: 1 workers, window 26" in report.read_text()
