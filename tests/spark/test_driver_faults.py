"""Whole Spark programs, killed with everything they started, and started again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pyarrow.parquet as pq
import pytest

from . import app
from .harness import declare, options, publish, ready


@pytest.fixture
def programs() -> Iterator[list[Popen[bytes]]]:
    started: list[Popen[bytes]] = []
    yield started
    for program in started:
        if program.poll() is None:
            app.kill(program)


def _offsets(folder: Path) -> int:
    return len(list((folder / "checkpoint" / "offsets").glob("[0-9]*")))


def _rows(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """The values of all rows, and of those that are not flagged; only files that Spark's log lists count."""
    files = _committed_files(folder / "out")
    tables = [pq.read_table(file, columns=["value", "redelivered"]) for file in files]
    rows = [row for table in tables for row in table.to_pylist()]
    return [row["value"] for row in rows], [row["value"] for row in rows if not row["redelivered"]]


def _committed_files(out: Path) -> list[Path]:
    found = set()
    for log in (out / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            found.add(Path(json.loads(line)["path"].removeprefix("file://")))
    return sorted(found)


def test_a_driver_killed_and_restarted_on_a_cluster_with_other_options_loses_and_repeats_nothing(
    uri: str, tmp_path: Path, programs: list[Popen[bytes]]
) -> None:
    declare(uri)
    sent = publish(uri, 6000)
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=100, maxRecordsPerPartition=30)
    program = app.start(given, tmp_path)
    programs.append(program)
    deadline = time.monotonic() + 120
    while _offsets(tmp_path) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    app.kill(program)
    given |= {"maxRecordsPerTrigger": "100000", "maxRecordsPerPartition": "1000"}
    last = app.start(given, tmp_path, available_now=True, master="local-cluster[2,1,1024]")
    programs.append(last)
    assert last.wait(180) == 0
    everything, plain = _rows(tmp_path)
    assert sorted(set(everything)) == sent
    assert len(plain) == len(set(plain))
    assert ready(uri) == 0
