"""A million messages, a tenth at a time: what broker, consumer and Spark hold after each."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import TRANSIENT, fill, publish_section
from leash.amqp import Outgoing, Publisher, connect
from leash.management import Management

QUEUES = [f"bench.memory.{n}" for n in range(4)]
LOTS, LOT, SIZE = 10, 100_000, 200
Row = dict[str, float]


def main(uri: str) -> None:
    print("\nA million messages through the consumer, then through Spark ...", flush=True)
    tables = {"the live consumer": _consumer(uri), "Spark": _spark(uri)}
    text = ["## Memory over a million messages", "", "MB after each tenth of them; heaps after a collection."]
    for title, rows in tables.items():
        text += [
            "",
            f"### Through {title}",
            "",
            "| | " + " | ".join(f"{n}0 %" for n in range(1, LOTS + 1)) + " |",
        ]
        text += ["|---|" + "--:|" * LOTS]
        text += [f"| {name} | " + " | ".join(f"{row[name]:.0f}" for row in rows) + " |" for name in rows[0]]
    print("\n".join(text), flush=True)
    with connect(uri) as connection:
        version = str(connection.server["version"])
    publish_section("memory", "\n".join(text), version, tables)


def _publish(uri: str) -> None:
    body = b"x" * SIZE
    with connect(uri) as connection, Publisher(connection) as publisher:
        publisher.publish(Outgoing(body, "", QUEUES[n % len(QUEUES)], TRANSIENT) for n in range(LOT))


def _lots(uri: str, done: Callable[[int], bool], sample: Callable[[], Row]) -> list[Row]:
    rows = []
    for lot in range(1, LOTS + 1):
        _publish(uri)
        while not done(lot * LOT):
            time.sleep(0.1)
        rows.append(sample() | {"broker": _broker(uri)})
    return rows


def _consumer(uri: str) -> list[Row]:
    from leash import Consumer, Queue

    fill(uri, QUEUES, 0, SIZE)
    consumer = Consumer(uri, [Queue(name, quantum=n + 1) for n, name in enumerate(QUEUES)])
    seen = 0
    lock = threading.Lock()

    @consumer.handler
    def handle(_: object) -> None:
        nonlocal seen
        with lock:
            seen += 1

    with consumer:
        return _lots(uri, lambda wanted: seen >= wanted, lambda: {"consumer": _resident(os.getpid())})


def _spark(uri: str) -> list[Row]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    fill(uri, QUEUES, 0, SIZE)
    builder = SparkSession.builder.master("local[*,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows, batches = 0, -1
    with tempfile.TemporaryDirectory() as folder:
        reader = spark.readStream.format("rabbitmq").option("url", uri).option("queues", ",".join(QUEUES))
        reader = reader.option("stagingLocation", f"{folder}/staging").option("maxRecordsPerTrigger", 20_000)
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.start()

        def done(wanted: int) -> bool:
            nonlocal rows, batches
            for progress in query.recentProgress:
                if progress["batchId"] > batches:
                    batches = progress["batchId"]
                    rows += progress["numInputRows"]
            return rows >= wanted

        def sample() -> Row:
            found = [_resident(pid) for pid in _pythons()]
            return {"driver, JVM heap": _heap(spark), "largest Python process": max(found, default=0.0)}

        try:
            return _lots(uri, done, sample)
        finally:
            query.stop()
            spark.stop()


def _heap(spark: Any) -> float:
    machine = spark._jvm.java.lang
    machine.System.gc()
    runtime = machine.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 2**20


def _broker(uri: str) -> float:
    management = Management.beside(uri)
    node = management.ask("GET", "/api/nodes")[0]["name"]
    return float(management.ask("GET", f"/api/nodes/{node}/memory")["memory"]["total"]["rss"]) / 2**20


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _pythons() -> list[int]:
    """Spark's own Python processes on this machine: the source on the driver, and the task workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"pyspark" in command and b"java" not in command.split(b"\0")[0]:
                found.append(int(entry.name))
    return found
