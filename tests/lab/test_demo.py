"""The demo, small, on the tests' broker; its parts; and the examples of the lab."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leash.broker import own_uri
from leash.errors import LeashError

pytest.importorskip("pyarrow")

from leash.lab.demo import Load, demo, pipeline
from leash.lab.demo.load import Place, fill
from leash.lab.demo.observed import Seen, pace, steady
from leash.lab.demo.page import Story, write
from leash.lab.demo.plain import drain

SMALL = """
import os, sys
from contextlib import nullcontext
from pathlib import Path
from leash.lab.demo import Load, run, demo
from leash.lab.demo.load import Place
port = os.environ["DEMO_STREAMS"]
demo.place = lambda _: nullcontext(Place(os.environ["DEMO_URI"], int(port) if port else None, "tested"))
run(Path(sys.argv[1]), Load(fill=1_500, rounds=20, batch_rounds=5, rate=2_000, burst=2_000))
"""


@pytest.mark.spark
def test_the_demo_ends_by_itself_with_parquet_a_report_and_fair_shares(
    request: pytest.FixtureRequest, uri: str, tmp_path: Path
) -> None:
    port = "" if own_uri() else str(request.getfixturevalue("broker").port("stream"))
    done = subprocess.run(
        [sys.executable, "-c", SMALL, str(tmp_path / "demo")],
        env={**os.environ, "DEMO_URI": uri, "DEMO_STREAMS": port, "COLUMNS": "120", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    cell = r" +([+-]?[\d.]+)% │"
    rows = re.findall(rf"│ p(\d) +│{cell * 5}", done.stdout)
    assert [int(row[0]) for row in rows] == list(range(10))
    assert all(abs(float(row[5])) < 5 for row in rows)  # with Leash
    assert float(rows[0][3]) > 300  # without it, p0 gets 10 % instead of 1.8
    if port:
        told = re.findall(
            r"Stream: ([\d,]+) rows published, ([\d,]+) read, and ([\d,]+) read again", done.stdout
        )
        assert len(set(told[0])) == 1
    assert done.stdout.count("\n  1. ") == done.stdout.count("\n  3. ") == 1
    assert list((tmp_path / "demo" / "parquet").glob("*.parquet"))
    report = (tmp_path / "demo" / "report.html").read_text()
    for part in ("plotly.js v", 'id="shares"', 'id="rate"', 'id="next"', 'id="words"', "Without Leash"):
        assert part in report
    assert not list(tmp_path.glob("leash-demo-*"))


def test_a_plain_consumer_gives_every_queue_the_same(uri: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    load = Load(fill=1_000, rounds=20)
    fill(uri, load)
    seen = drain(uri, load, tmp_path / "plain")
    assert seen.total >= load.enough
    assert pq.read_table(tmp_path / "plain").num_rows == seen.total
    assert max(seen.rows.values()) < 2 * min(seen.rows.values())
    assert pace(seen.points)


def test_the_report_is_written_when_the_broker_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Path) -> Any:
        raise LeashError("no RabbitMQ <here>")

    monkeypatch.setattr(demo, "place", fails)
    monkeypatch.setattr(pipeline, "session", lambda: SimpleNamespace(stop=lambda: None))
    with pytest.raises(LeashError, match="no RabbitMQ"):
        demo.run(tmp_path)
    assert "did not come to its end: no RabbitMQ &lt;here&gt;" in (tmp_path / "report.html").read_text()
    assert "report.html" in capsys.readouterr().out.replace("\n", "")


class Query:
    """A query that never gets anywhere, or that ends."""

    def __init__(self, ends: bool = False) -> None:
        self.status = {"message": "Processing new data"}
        self.recentProgress: list[Any] = []
        self._ends = ends

    def awaitTermination(self, _: float) -> bool:  # noqa: N802
        return self._ends

    def exception(self) -> str:
        return "queue 'p0' is gone\n\tat org.apache"


def test_a_pipeline_that_stands_still_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PATIENCE", 0.0)
    monkeypatch.setattr(pipeline, "tracker", lambda: SimpleNamespace(getActiveStageIds=list))
    nowhere = Place("amqp://a:b@127.0.0.1:1/", None, "")
    with pytest.raises(LeashError, match=r"nothing moved for 0 s after 0 rows: the broker cannot be reached"):
        pipeline.watch(Query(), nowhere, Load(), lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(LeashError, match=r"ended by itself: queue 'p0' is gone$"):
        pipeline.watch(Query(ends=True), nowhere, Load(), lambda *_: None)  # type: ignore[arg-type]


def test_a_report_tells_what_there_is(tmp_path: Path) -> None:
    load = Load()
    story = Story(load, plain=Seen(dict.fromkeys(load.quanta, 0)))
    write(tmp_path / "a.html", story)
    assert 'id="shares"' not in (tmp_path / "a.html").read_text()
    story.plain.add(dict.fromkeys(load.quanta, 50), 0.1)
    story.plain.add(dict.fromkeys(load.quanta, 50), 0.2)
    write(tmp_path / "b.html", story)
    text = (tmp_path / "b.html").read_text()
    assert 'id="shares"' in text
    assert 'id="stream"' not in text


def test_the_pace_leaves_the_first_batch_out() -> None:
    points = [(0.0, 4_000), (5.0, 8_000), (6.0, 10_000), (7.0, 12_000)]
    assert steady(points) == [(0.0, 4_000), (1.0, 6_000), (2.0, 8_000)]
    assert pace(steady(points)) == 2_000
    assert pace(steady(points[:2])) is None


def test_the_simulator_example_in_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    exec(compile(example, "docs/lab.md", "exec"), {})  # noqa: S102
    assert "'gold': " in capsys.readouterr().out


def test_the_what_if_example_shows_what_a_quantum_buys(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "what_if.py"
    exec(compile(path.read_text(), str(path), "exec"), {})  # noqa: S102
    times = [int(number) for number in re.findall(r"take (\d+) ms", capsys.readouterr().out)]
    assert len(times) == 3
    assert times[2] < times[1] < times[0]
