"""The five documents' figures, in virtual time; and that a figure which is off is told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leash.cli import lab as cli
from leash.cli.lab import lab_app
from leash.lab import codel, experiments, fair, qos, rate
from leash.lab.clock import Clock
from leash.lab.figures import TURNAROUND, Claim, Experiment, Result, Run, dumps, silent
from leash.lab.seeds import NackingClient
from leash.lab.simulated_queues import Queue
from leash.units import MS, SECOND

NAMES = ["fair", "qos", "codel", "rate", "hash", "tenants"]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {
        each.name: Result(each, each.simulate(silent, TURNAROUND)) for each, _ in experiments.chosen(NAMES)
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_simulated_figure_is_within_its_bounds(results: dict[str, Result], name: str) -> None:
    result = results[name]
    assert result.faults() == []
    assert result.simulated is not None
    claimed = {claim.name for claim in result.experiment.claims}
    assert set(result.simulated.values) <= claimed


def test_round_robin_serves_exactly_what_the_quanta_say(results: dict[str, Result]) -> None:
    run = results["fair"].simulated
    assert run is not None
    assert [run.values[f"{name}: messages"] for name in fair.NAMES] == fair.EXACT
    assert sum(fair.EXACT) == fair.TOTAL
    assert run.values["spread"] == 1


def test_the_published_loop_bends_when_its_window_is_small_as_the_published_table_does() -> None:
    gained = fair.deviation(fair.starved())[0]
    assert gained == pytest.approx(fair.deviation(fair.PUBLISHED)[0], abs=0.5)


def test_without_a_window_a_slow_worker_fills_the_pool_as_published(results: dict[str, Result]) -> None:
    run = results["qos"].simulated
    assert run is not None
    assert (run.values["prefetch 0: fast"], run.values["prefetch 0: slow"]) == (40, 36)
    assert run.values["prefetch 1: fast"] == pytest.approx(945, rel=0.02)
    assert run.values["prefetch 1: slow"] == 9


def test_returning_messages_goes_on_forever_where_shrinking_does_it_once(results: dict[str, Result]) -> None:
    run = results["codel"].simulated
    assert run is not None
    assert run.values["CoDel by nack, window 26: nacks a message"] > 2.5
    assert run.values["CoDel by nack, window 51: nacks a message"] > 6
    assert run.values["shrinking: nacks a message"] == 0
    assert run.values["shrinking: wait"] == 20


@pytest.mark.parametrize(("window", "nacks"), [(26, 3.5), (51, 7.7), (4, 0)])
def test_with_a_round_trip_of_exactly_100_ms_nacks_are_as_calculated(window: int, nacks: float) -> None:
    clock = Clock()
    queue = Queue(clock, "work", 10**9)
    client = NackingClient(clock, queue, window, 40 * MS, 50 * MS, codel.TARGET, codel.INTERVAL)
    clock.run(60 * SECOND)
    assert client.nacks / client.served == pytest.approx(nacks, abs=0.06)


def test_the_staircase_never_rises_above_burst_and_rate() -> None:
    assert rate.excess([0, 0, 0, 0, 0, 10**9]) == 5
    assert rate.excess([0, 0, 0, 0, 0, 10**9 // 2]) == 5.5
    assert rate.excess([0, 10**10, 10**10, 10**10, 10**10, 10**10, 10**10]) == 6


def toy(low: float = 0, high: float = 2, compare: bool = True) -> Experiment:
    claim = Claim("wait", "ms", 1.5, low, high, compare)
    run = Run({"wait": 1.0})
    return Experiment("toy", "Toy", "", [claim], lambda _, __: run)


def test_a_figure_outside_its_bounds_is_named() -> None:
    result = Result(toy(high=0.5), Run({"wait": 1.0}))
    assert result.faults() == ["wait: simulated 1, not 0 to 0.5"]


def test_simulated_and_measured_figures_must_agree() -> None:
    assert Result(toy(), Run({"wait": 1.0}), Run({"wait": 1.04})).faults() == []
    assert Result(toy(), Run({"wait": 1.0}), Run({"wait": 1.5})).faults() == [
        "wait: simulated 1 and measured 1.5 differ"
    ]
    assert Result(toy(compare=False), Run({"wait": 1.0}), Run({"wait": 1.5})).faults() == []


def test_the_json_has_all_three_columns() -> None:
    document = json.loads(dumps([Result(toy(), Run({"wait": 1.0}), Run({"wait": 1.01}))], {"python": "3"}))
    (figure,) = document["experiments"][0]["figures"]
    assert [figure[key] for key in ("published", "simulated", "measured")] == [1.5, 1.0, 1.01]
    assert document["python"] == "3"


def test_the_command_prints_a_table_and_writes_the_figures(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = CliRunner().invoke(lab_app, ["qos", "--simulate", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "prefetch 0: fast" in done.output
    figures = {each["name"]: each for each in json.loads(out.read_text())["experiments"][0]["figures"]}
    assert figures["prefetch 0: slow"]["simulated"] == 36
    assert figures["prefetch 0: slow"]["measured"] is None


def test_the_command_fails_when_a_figure_is_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = [claim._replace(high=claim.low) for claim in rate.EXPERIMENT.claims]
    monkeypatch.setattr(rate, "EXPERIMENT", replace(rate.EXPERIMENT, claims=impossible))
    done = CliRunner().invoke(cli.lab_app, ["rate", "--simulate"])
    assert done.exit_code == 1
    assert "out of bounds: most above the line" in done.output
    assert re.search(r"\d+ passed, [1-9]\d* missed", done.output)  # under the table
    assert re.search(r"\d+ figures passed, [1-9]\d* missed\.", done.output)  # of all


def test_an_experiment_is_saved_as_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(*_: object) -> Run:
        raise RuntimeError("the second one breaks")

    monkeypatch.setattr(rate, "EXPERIMENT", replace(rate.EXPERIMENT, simulate=breaks))
    figures, page = tmp_path / "figures.json", tmp_path / "page.html"
    with pytest.raises(RuntimeError):
        cli.run(["qos", "rate"], True, figures, page)
    assert [each["experiment"] for each in json.loads(figures.read_text())["experiments"]] == ["qos"]
    assert '<section id="qos">' in page.read_text()


def test_published_figures_are_the_documents_own() -> None:
    assert fair.TOTAL == 200_015
    assert qos.EXPERIMENT.claims[0].published == 40
    assert [case.wait for case in codel.CASES if case.work == 40][:2] == [880, 1880]
