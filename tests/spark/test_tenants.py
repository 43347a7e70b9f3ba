"""Tenants on Spark: all lanes, in equal parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from leash.errors import ConfigError, TopologyError
from leash.spark.settings import source_settings
from tests.tenants.kit import JOBS, apart, message, send

from .harness import Query, Row, make_reader


def given(uri: str, staging: Path, **more: object) -> dict[str, str]:
    told = {"url": uri, "stagingLocation": str(staging), "pollTimeout": "100ms", "tenants": "jobs"}
    return told | {name: str(value) for name, value in more.items()}


def test_a_batch_has_equal_parts_of_the_lanes_and_nothing_is_lost(uri: str, staging: Path) -> None:
    JOBS.declare(uri)
    quiet = apart(JOBS, uri, 4, "acme")
    JOBS.isolate(uri, "acme")
    numbers = iter(range(10_000))
    send(uri, [message("acme", b"%d" % next(numbers)) for _ in range(900)])
    send(uri, [message(quiet[n % 4], b"%d" % next(numbers)) for n in range(100)])
    query = Query(given(uri, staging, maxRecordsPerTrigger=100))
    query.reader.prepareForTriggerAvailableNow()
    rows: list[Row] = []
    batches: list[Counter[str]] = []
    while query.plan():
        more = query.read()
        batches.append(Counter(row["queue"] for row in more))
        rows += more
    query.reader.stop()
    assert sorted(int(row["value"]) for row in rows) == list(range(1000))
    assert sorted(batches[0].values()) == [20] * 5, "the noisy one has one part of five"
    own = JOBS.state(uri).lane("acme")
    assert all(set(batch) == {own} for batch in batches[2:])


def test_what_does_not_fit_is_refused(uri: str, staging: Path) -> None:
    with pytest.raises(
        TopologyError, match="'jobs' do not exist: make them with `leash tenants declare jobs`"
    ):
        make_reader(given(uri, staging)).initialOffset()
    for more, said in (
        ({"queue": "q"}, "tenants='jobs': set tenants, or partitions, or queue, or queues"),
        ({"partitions": "p"}, "set tenants, or"),
        ({"ordered": "true"}, "ordered=True: not with tenants: their lanes have no order"),
    ):
        with pytest.raises(ConfigError) as refused:
            source_settings(given(uri, staging, **more))
        assert said in str(refused.value)
