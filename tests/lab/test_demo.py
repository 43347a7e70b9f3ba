"""The demo, small, on the tests' broker; and the example in the lab's documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = """
import os, sys
from contextlib import nullcontext
from pathlib import Path
from leash.lab import demo
demo.FILL, demo.ENOUGH, demo.BATCH = 2_000, 20 * demo.ROUND, 5 * demo.ROUND
demo.RATE = demo.BURST = 2_000
demo._broker = lambda _: nullcontext(os.environ["DEMO_URI"])
demo.run(Path(sys.argv[1]))
"""


@pytest.mark.spark
def test_the_demo_ends_by_itself_with_parquet_a_report_and_fair_shares(uri: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SMALL, str(tmp_path / "demo")],
        env={**os.environ, "DEMO_URI": uri, "COLUMNS": "120", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    rows = re.findall(r"│ p(\d) +│ +\d+ │ +([\d,]+) │ +[\d.]+% │ +[\d.]+% │ +([+-][\d.]+)% │", done.stdout)
    assert [int(number) for number, _, _ in rows] == list(range(10))
    assert sum(int(count.replace(",", "")) for _, count, _ in rows) >= 20 * 220
    assert all(abs(float(off)) < 5 for _, _, off in rows)
    assert list((tmp_path / "demo" / "parquet").glob("*.parquet"))
    assert "plotly.js v" in (tmp_path / "demo" / "report.html").read_text()
    assert not list(tmp_path.glob("leash-demo-*"))


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
