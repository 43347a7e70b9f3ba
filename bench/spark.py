"""Spark: draining four queues into the `noop` sink, beside a plain pika source and rabbitmq-c; and
latency."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import TRANSIENT, fill, publish_section, rabbitmq_c, run
from bench.peers import Job
from leash.amqp import Outgoing, Publisher, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = [f"bench.spark.{n}" for n in range(4)]
COUNT, BATCH, SIZE, RUNS = 400_000, 200_000, 200, 3


def main(uri: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    from bench.pika_source import PikaSource

    builder = SparkSession.builder.master("local[*,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(PikaSource)
    try:
        _drain(spark, uri, "leash", 20_000)  # the first batch of a session costs seconds
        rates = _interleaved(spark, uri)
        seconds = _latency(spark, uri)
    finally:
        spark.stop()
    rate = {name: COUNT / statistics.median(times) for name, times in rates.items()}
    lines = [f"| {name} | {each:,.0f} | {each / rate['leash']:.2f} |" for name, each in rate.items()]
    cuts = statistics.quantiles(seconds, n=100)
    text = [
        "## Spark",
        "",
        f"{COUNT:,} messages of {SIZE} bytes from four classic queues into the `noop` sink, batches of "
        f"{BATCH:,}, warm session, median of {RUNS} interleaved runs; rabbitmq-c drains them without Spark.",
        "",
        "| source | messages/s | of ours |",
        "|---|--:|--:|",
        *lines,
        "",
        f"End to end at 100 messages a second: median {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s.",
    ]
    with connect(uri) as link:
        version = ".".join(map(str, link.version))
    publish_section("spark", "\n".join(text), version, {"seconds": rates, "latency": [cuts[49], cuts[98]]})


def _interleaved(spark: SparkSession, uri: str) -> dict[str, list[float]]:
    names = ["leash", "pika-on-the-driver", *(["rabbitmq-c"] if rabbitmq_c() else [])]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(RUNS):
        for name in names:
            times[name].append(_drain(spark, uri, name, COUNT))
            print(f"  {name}: {COUNT / times[name][-1]:,.0f} a second", flush=True)
    return times


def _drain(spark: SparkSession, uri: str, name: str, count: int) -> float:
    """Seconds from the start of the query until every message went through."""
    fill(uri, QUEUES, count, SIZE)
    if name == "rabbitmq-c":
        return run(name, Job(uri, "consume", QUEUES, 1000, count))[0]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        if name == "leash":
            reader = spark.readStream.format("rabbitmq").option("queues", ",".join(QUEUES))
            reader = reader.option("stagingLocation", f"{folder}/staging").option(
                "maxRecordsPerTrigger", BATCH
            )
        else:
            reader = spark.readStream.format(name).option("queues", ",".join(QUEUES)).option("limit", BATCH)
        writer = reader.option("url", uri).load().writeStream.format("noop")
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
        done = 0
        seen = -1
        while done < count:
            time.sleep(0.02)
            for progress in query.recentProgress:
                if progress["batchId"] > seen:
                    seen = progress["batchId"]
                    done += progress["numInputRows"]
        took = time.perf_counter() - started
        query.stop()
    return took


def _latency(spark: SparkSession, uri: str, seconds: int = 30) -> list[float]:
    """From publishing to the end of the batch, at 100 messages a second."""
    fill(uri, QUEUES[:1], 0, SIZE)
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder, connect(uri) as link, Publisher(link) as publisher:
        reader = spark.readStream.format("rabbitmq").option("url", uri).option("queue", QUEUES[0])
        frame = reader.option("stagingLocation", f"{folder}/staging").option("pollTimeout", "50ms").load()

        def note(batch: object, _: int) -> None:
            sent = [float(row.value) for row in batch.select("value").collect()]  # type: ignore[attr-defined]
            now = time.time()
            found.extend(now - at for at in sent)

        writer = frame.writeStream.foreachBatch(note).option(
            "checkpointLocation", str(Path(folder) / "checkpoint")
        )
        query = writer.start()
        for _ in range(100 * seconds):
            publisher.publish([Outgoing(repr(time.time()).encode(), "", QUEUES[0], TRANSIENT)])
            time.sleep(0.01)
        time.sleep(3)
        query.stop()
    return found[len(found) // 5 :]  # without the warm-up
