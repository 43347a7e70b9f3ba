"""The report: one file, nothing fetched, every plot drawn in a real browser."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from leash.lab import experiments, glossary, report
from leash.lab.demo.load import Load
from leash.lab.demo.observed import Seen
from leash.lab.demo.page import Story, write
from leash.lab.demo.replay import Replay
from leash.lab.figures import TURNAROUND, Result, silent
from leash.lab.plots import plots
from tests.page.browser import CHROMIUM, Browser


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Both columns, so that every trace of every plot is there."""
    found = []
    for experiment, _ in experiments.chosen(["fair", "qos", "codel", "rate", "hash"]):
        run = experiment.simulate(silent, TURNAROUND)
        found.append(Result(experiment, run, run))
    return found


@pytest.fixture(scope="module")
def page(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "lab.html"
    report.write(path, results, report.about("3.10.8", "a private node"))
    return path


def test_the_report_is_one_file_that_fetches_nothing(page: Path) -> None:
    text = page.read_text()
    tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", text)
    assert not [tag for tag in tags if re.search(r'(?:src|href)="(?!data:)', tag)]
    assert text.count("plotly.js v") == 1
    assert "{{" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_every_experiment_is_drawn_and_has_its_table(page: Path, results: list[Result]) -> None:
    text = page.read_text()
    for result in results:
        assert f'<section id="{result.experiment.name}">' in text
        assert plots(result)
        for plot in plots(result):
            assert plot["data"]
    places = re.findall(r'data-plot="(\d+)"', text)
    assert places == [str(number) for number in range(sum(len(plots(result)) for result in results))]


def test_every_experiment_says_what_to_see_and_words_are_explained(page: Path, results: list[Result]) -> None:
    text = page.read_text()
    for result in results:
        sentence = html.escape(result.experiment.see)
        assert sentence.endswith(".")
        assert f"<b>What to see:</b> {sentence}" in text
    for word, meaning in glossary.WORDS.items():
        assert (f"<dt>{word}</dt><dd>{html.escape(meaning)}</dd>" in text) == (word != "stream")
    passed = sum(result.counted()[0] for result in results)
    assert f"{passed} figures passed, 0 missed" in text


def test_machine_and_versions_are_in_it(page: Path) -> None:
    text = page.read_text()
    for part in ("<dt>leash</dt>", "<dt>python</dt>", "<dt>rabbitmq</dt><dd>3.10.8</dd>", "<dt>cores</dt>"):
        assert part in text


def test_a_figure_that_is_off_is_red(results: list[Result], tmp_path: Path) -> None:
    from dataclasses import replace

    experiment = results[1].experiment
    claims = [claim._replace(low=0, high=0) for claim in experiment.claims]
    off = Result(replace(experiment, claims=claims), results[1].simulated)
    report.write(tmp_path / "off.html", [off], report.about())
    assert '<td class="bad">40</td>' in (tmp_path / "off.html").read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    made = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's page, with everything that it can have."""
    load = Load()
    plain, leash = Seen(dict.fromkeys(load.quanta, 0)), Seen(dict.fromkeys(load.quanta, 0))
    for batch in range(5):
        plain.add(dict.fromkeys(load.quanta, 500), batch / 10)
        leash.add({name: 40 * quantum for name, quantum in load.quanta.items()}, 2.0 * batch)
    replay = Replay(leash.total, [(leash.rows, 1.5), (leash.rows, 0.5)])
    path = tmp_path_factory.mktemp("demo") / "report.html"
    write(path, Story(load, plain, leash, leash, replay, ("4.3.0", "a private node"), "it was interrupted"))
    return path


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("name", ["lab", "demo"])
def test_a_browser_draws_every_plot_without_an_error(
    page: Path, demo: Path, browser: Browser, name: str, width: int, theme: str
) -> None:
    shown = page if name == "lab" else demo
    expected = len(re.findall(r'data-plot="\d+"', shown.read_text()))
    assert expected > 3
    where = f"?{name}-{width}"  # another hash alone would not load it again
    browser.open(f"{shown.as_uri()}{where}#{theme}", width, theme=theme)
    browser.until(f"location.search === '{where}' && document.body.dataset.drawn === '{expected}'")
    assert browser.run("document.documentElement.dataset.theme") == theme
    assert browser.run("document.documentElement.scrollWidth") <= width  # nothing is cut off
    assert browser.console == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))] == []
