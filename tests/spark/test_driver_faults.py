"""Whole Spark programs, killed with everything they started, and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.consumer.kit import until

from . import app
from .harness import declare, options, publish, ready
from .output import committed_rows


@pytest.fixture
def programs() -> Iterator[list[Popen[bytes]]]:
    started: list[Popen[bytes]] = []
    yield started
    for program in started:
        if program.poll() is None:
            app.kill(program)


def _offsets(folder: Path) -> int:
    return len(list((folder / "checkpoint" / "offsets").glob("[0-9]*")))


@pytest.mark.spark
def test_a_driver_killed_and_restarted_on_a_cluster_with_other_options_loses_and_repeats_nothing(
    uri: str, tmp_path: Path, programs: list[Popen[bytes]]
) -> None:
    declare(uri)
    sent = publish(uri, 6000)
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=100, maxRecordsPerPartition=30)
    program = app.start(given, tmp_path)
    programs.append(program)
    until(lambda: _offsets(tmp_path) >= 4)
    app.kill(program)
    given |= {"maxRecordsPerTrigger": "100000", "maxRecordsPerPartition": "1000"}
    last = app.start(given, tmp_path, available_now=True, master="local-cluster[2,1,1024]")
    programs.append(last)
    assert last.wait(400) == 0
    everything, plain = committed_rows(tmp_path / "out")
    assert sorted(set(everything)) == sent
    assert len(plain) == len(set(plain))
    assert ready(uri) == 0
