"""A query and other code on one budget: permits are taken when a batch is planned."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from leash import Budget
from leash.spark.driver.budgets import WAIT
from tests.fleet.kit import excess

from .harness import Query, Row, declare, options, publish, values

RATE, BURST = 200, 40


def test_a_query_and_a_worker_together_stay_within_the_bound(uri: str, staging: Path) -> None:
    declare(uri)
    published = publish(uri, 200)
    starts: list[int] = []
    done = threading.Event()

    def work() -> None:
        with Budget("sms", rate=RATE, burst=BURST).open(uri) as till:
            while not done.is_set():
                if till.take(timeout=0.1):
                    starts.append(time.monotonic_ns())

    worker = threading.Thread(target=work)
    worker.start()
    query = Query(options(uri, staging, budget=f"sms:rate={RATE},burst={BURST}"))
    query.reader.prepareForTriggerAvailableNow()
    rows: list[Row] = []
    longest = 0.0
    while True:
        begun = time.monotonic()
        if not query.plan():
            break
        at = time.monotonic_ns()
        longest = max(longest, time.monotonic() - begun)
        more = query.read()
        starts += [at] * len(more)
        rows += more
    done.set()
    worker.join(30)
    query.reader.stop()
    assert values(rows) == published
    assert len(query.log) > 1
    assert excess(sorted(starts), RATE, BURST, 0.1 + WAIT + longest) <= 0


def test_a_stream_waits_for_permits_without_ending(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 30)
    query = Query(options(uri, staging, budget="slow:rate=1/1000,burst=10"))
    assert query.plan()
    assert len(query.read()) == 10
    assert not query.plan()
    query.reader.stop()
