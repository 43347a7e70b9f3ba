"""Spark: the source of streams beside the source of queues, in one session, into the `noop` sink."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from bench.harness import fill, publish_section
from leash.amqp import connect
from leash.amqp.uri import parse
from leash.management import Management
from leash.streams import Publisher, create_stream, delete_stream
from leash.streams import connect as connect_streams
from leash.streams import parse as parse_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = [f"bench.queue.{n}" for n in range(4)]
STREAM = "bench.stream"
SIZE, RUNS = 100, 3
FROM_QUEUES, FROM_STREAM = 200_000, 4_000_000
RATIO, RATE = 10, 250_000


def main(uri: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    place = _stream_place(uri)
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rates: dict[str, list[float]] = {"stream": [], "queues": []}
    try:
        _fill_stream(place)
        _queues(spark, uri, 20_000)  # the first batch of a session costs seconds
        for _ in range(RUNS):
            rates["stream"].append(_stream(spark, place))
            rates["queues"].append(_queues(spark, uri, FROM_QUEUES))
            print({name: f"{each[-1]:,.0f} a second" for name, each in rates.items()}, flush=True)
    finally:
        spark.stop()
    middle = {name: statistics.median(each) for name, each in rates.items()}
    ratio = middle["stream"] / middle["queues"]
    met = "met" if ratio >= RATIO and middle["stream"] >= RATE else "MISSED"
    busy = os.getloadavg()[0]
    text = [
        "## Spark: streams beside queues",
        "",
        f"Messages of {SIZE} bytes into the `noop` sink on `local[2]`, one warm session, median of {RUNS} "
        f"interleaved runs: {FROM_STREAM:,} of one stream in batches of 1,000,000, {FROM_QUEUES:,} of four "
        "classic queues in batches of 100,000. From the start of the query to its end; the broker runs on "
        "the same cores.",
        "",
        "| source | rows/s | of queues |",
        "|---|--:|--:|",
        *(f"| {name} | {rate:,.0f} | {rate / middle['queues']:.1f} |" for name, rate in middle.items()),
        "",
        f"At least {RATIO} times the queues' and {RATE:,} a second: **{met}**. The machine's load was "
        f"{busy:.1f} on {os.cpu_count()} cores.",
    ]
    with connect(uri) as link:
        version = ".".join(map(str, link.version))
    publish_section("spark_streams", "\n".join(text), version, {"rates": rates, "load": busy})


def _stream_place(uri: str) -> str:
    """Where the management plugin says that streams are, on the host of the URI."""
    listeners = Management.beside(uri).ask("GET", "/api/overview")["listeners"]
    port = next(each["port"] for each in listeners if each["protocol"] == "stream")
    return parse_streams(parse(uri), port).reveal()


def _fill_stream(place: str) -> None:
    with connect_streams(place) as link:
        delete_stream(link, STREAM)
        create_stream(link, STREAM)
    piece = [bytes(SIZE)] * 100_000
    with Publisher(place, STREAM) as publisher:
        for _ in range(FROM_STREAM // len(piece)):
            publisher.send(piece)
        publisher.wait()


def _stream(spark: SparkSession, place: str) -> float:
    reader = spark.readStream.format("rabbitmq").option("url", place).option("stream", STREAM)
    return _timed(reader.option("maxRecordsPerTrigger", 1_000_000), FROM_STREAM)


def _queues(spark: SparkSession, uri: str, count: int) -> float:
    fill(uri, QUEUES, count, SIZE)
    with tempfile.TemporaryDirectory() as folder:
        reader = spark.readStream.format("rabbitmq").option("url", uri).option("queues", ",".join(QUEUES))
        reader = reader.option("stagingLocation", folder).option("maxRecordsPerTrigger", 100_000)
        return _timed(reader, count)


def _timed(reader: Any, count: int) -> float:
    """Rows a second."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took = time.perf_counter() - began
        rows = sum(each["numInputRows"] for each in query.recentProgress)
        assert rows == count, rows
    return float(count / took)
