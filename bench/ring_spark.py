"""Ten million keys through `route` on `local[2]`. The target is a million a second."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from bench.harness import publish_section
from leash.amqp import connect

ROWS = 10_000_000
TARGET = 1_000_000
RUNS = 3


def main(uri: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the one that has leash
    import pyspark
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    from leash.partitions.layout import Layout
    from leash.partitions.owners import assign
    from leash.policies.ring import HashRing
    from leash.spark.functions import bucket, route

    weights = tuple((f"orders.{i}", 1) for i in range(4))
    slots = Layout("orders", "slots", weights, owners=assign(dict(weights), 120), order=tuple(range(120)))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("leash bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        keys = session.range(ROWS).select(F.format_string("customer-%d", "id").alias("key")).cache()
        keys.count()
        columns: dict[str, Any] = {
            "read only, no routing": F.length("key"),
            "bucket(key, 16)": bucket("key", 16),
            "route(key), ring of 4 queues": route("key", HashRing(weights)),
            "route(key), 4 queues in 120 slots": route("key", slots),
        }
        rates = {name: _rate(keys, column) for name, column in columns.items()}
    finally:
        session.stop()
    lines = ["| what | keys/s |", "|---|--:|", *(f"| {name} | {rate:,.0f} |" for name, rate in rates.items())]
    slowest = min(rates.values())
    verdict = "met" if slowest >= TARGET else "MISSED"
    text = "\n".join(
        [
            f"## Routing a Spark column: {ROWS:,} keys on local[2], PySpark {pyspark.__version__}",
            "",
            *lines,
            "",
            f"At least {TARGET:,} keys a second: {verdict}.",
        ]
    )
    print("\n" + text, flush=True)
    with connect(uri) as connection:
        version = str(connection.server["version"])
    publish_section("ring_spark", text, version, rates)


def _rate(keys: Any, column: Any) -> float:
    """The best of some runs; the first makes the workers' tables."""
    took = []
    for _ in range(RUNS):
        start = time.perf_counter()
        keys.select(column.alias("found")).write.format("noop").mode("overwrite").save()
        took.append(time.perf_counter() - start)
    return ROWS / min(took)
