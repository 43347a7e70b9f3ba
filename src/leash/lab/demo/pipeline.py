"""With Leash: ten queues through Spark to Parquet, by quantum and within a rate; and why, if nothing moves.

It goes on for as long as there are signs of life, however slow the machine is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash.errors import LeashError
from leash.lab.demo.load import Load, Place, reachable
from leash.lab.demo.observed import Seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BUDGET = 45.0
"""Seconds of streaming after which it ends with what it has, if that is enough for the report."""
PATIENCE = 120.0
"""Seconds without any sign of life after which it gives up."""
_LOOK = 0.5
_BATCHES = 3  # one to warm up, and two for a rate


def session() -> SparkSession:
    """A local Spark, or an error of one sentence."""
    from pyspark.errors import PySparkException

    from leash.lab import sweep

    try:
        return sweep.session("local[*,4]", "leash demo")
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise LeashError(f"Spark did not start; is a Java 17 runtime installed? {first}") from error


def start(spark: SparkSession, place: Place, load: Load, scratch: Path, target: Path) -> StreamingQuery:
    """The whole pipeline."""
    frame = (
        spark.readStream.format("rabbitmq")
        .option("url", place.uri)
        .option("queues", ",".join(f"{name}:{quantum}" for name, quantum in load.quanta.items()))
        .option("stagingLocation", str(scratch / "staging"))
        .option("maxRecordsPerTrigger", load.batch_rounds * load.round)
        .option("maxRatePerSecond", load.rate)
        .option("burst", load.burst)
        .load()
    )
    rows = frame.selectExpr("queue", "cast(value as string) as value")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(scratch / "checkpoint"))
    return writer.start(str(target))


def watch(query: StreamingQuery, place: Place, load: Load, show: Callable[[Seen, str], None]) -> Seen:
    """Follow it until it has enough. `show` gets what is there, and the reason if nothing moves."""
    began = moved = time.monotonic()
    life: object = None
    seen = Seen(dict.fromkeys(load.quanta, 0))
    while seen.total < load.enough:
        if query.awaitTermination(_LOOK):  # type: ignore[arg-type]
            raise LeashError(f"the pipeline ended by itself: {_exception(query)}")
        now = time.monotonic()
        seen = seen_in(query.recentProgress, load)
        if now - began > BUDGET and len(seen.points) >= _BATCHES:
            break
        told = (seen.total, signs(query))
        if told != life:
            life, moved = told, now
        still = now - moved
        show(seen, f"no sign of life for {still:.0f} s: {why(query, place)}" if still > 15 else "")
        if still > PATIENCE:
            raise LeashError(
                f"nothing moved for {still:.0f} s after {seen.total:,} rows: {why(query, place)}"
            )
    return seen


def signs(query: StreamingQuery) -> tuple[object, ...]:
    """What changes while a query is alive, even within a long batch."""
    jobs = tracker()
    stages = [jobs.getStageInfo(stage) for stage in jobs.getActiveStageIds()]
    tasks = sum(stage.numCompletedTasks + stage.numFailedTasks for stage in stages if stage is not None)
    return (query.status["message"], len(query.recentProgress), tasks)


def why(query: StreamingQuery, place: Place) -> str:
    """What is known about a query that stands still, in one sentence."""
    broken = reachable(place.uri)
    if broken is not None:
        return f"the broker cannot be reached ({broken})"
    jobs = tracker()
    stages = [jobs.getStageInfo(stage) for stage in jobs.getActiveStageIds()]
    failed = sum(stage.numFailedTasks for stage in stages if stage is not None)
    cores = os.cpu_count() or 1
    reasons = [f'Spark says "{query.status["message"]}"', f"{failed} tasks failed" if failed else ""]
    load = os.getloadavg()[0]
    reasons.append(f"the machine is busy (load {load:.1f} on {cores} cores)" if load > 1.5 * cores else "")
    return ", ".join(reason for reason in reasons if reason)


def seen_in(progress: list[Any], load: Load) -> Seen:
    """Each progress reports the batch before it, which was planned when its own trigger began."""
    seen = Seen(dict.fromkeys(load.quanta, 0), dict.fromkeys(load.quanta, load.fill))
    batches: set[int] = set()
    planned = 0.0
    for each in progress:
        before, planned = planned, datetime.fromisoformat(each["timestamp"]).timestamp()
        told = json.loads(each["sources"][0]["latestOffset"] or "null")
        if not told or "queues" not in told or told["batch"] in batches:
            continue
        batches.add(told["batch"])
        seen.ready |= told.get("ready", {})
        seen.add({name: entry["rows"] for name, entry in told["queues"].items()}, before)
    return seen


def tracker() -> Any:
    """Spark's own account of its jobs."""
    from pyspark import SparkContext

    return SparkContext.getOrCreate().statusTracker()


def _exception(query: StreamingQuery) -> str:
    return str(query.exception() or "it gave no reason").strip().splitlines()[0]
