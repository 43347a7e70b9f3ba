"""A query and a consumer on one budget: permits are taken when a batch is planned."""

from __future__ import annotations

import time
from pathlib import Path

from leash import Budget, Consumer, Message, Queue
from leash.spark.driver.budgets import WAIT
from tests.fleet.kit import excess
from tests.fleet.kit import publish as fill
from tests.waiting import until

from .harness import Query, Row, declare, options, publish, values

RATE, BURST = 200, 40


def test_a_query_and_two_lanes_of_a_consumer_together_stay_within_the_bound(uri: str, staging: Path) -> None:
    declare(uri)
    published = publish(uri, 200)
    budget = Budget("sms", rate=RATE, burst=BURST)
    for lane in ("gold", "free"):
        fill(uri, lane, 2000)
    consumer = Consumer(uri, [Queue("gold", quantum=3, budget=budget), Queue("free", budget=budget)])
    starts: list[int] = []
    lanes: set[str] = set()

    @consumer.handler
    def handle(message: Message) -> None:
        starts.append(time.monotonic_ns())
        lanes.add(message.queue)

    consumer.start()
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
    until(lambda: len(lanes) == 2, what="a lane gets nothing")
    consumer.stop()
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
