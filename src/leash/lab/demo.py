"""`leash demo`: ten queues, one Spark pipeline to Parquet, fair shares and a rate limit, in a minute.

It leaves a folder with the Parquet files and a report. The broker, its data and the staging folder are
deleted, whatever happens.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leash.amqp.wire import Outgoing
from leash.errors import LeashError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console
    from rich.table import Table

QUANTA = {f"p{i}": 4 * (i + 1) for i in range(10)}
ROUND = sum(QUANTA.values())
FILL = 7_000
"""Messages in each queue: equal, so that only the pipeline makes the shares."""

ENOUGH = 130 * ROUND
"""Rows after which it ends; every queue still has messages then."""

RATE = 2_000
BURST = 2 * RATE
BATCH = 40 * ROUND
BUDGET, PATIENCE = 45.0, 90.0
"""Seconds of streaming: after the first it ends with what it has, after the second with an error."""


class Seen(NamedTuple):
    """What the pipeline reported so far: rows by queue and batch, and when each batch was planned."""

    rows: dict[str, int]
    ready: dict[str, int]
    shares: list[dict[str, float]]
    granted: list[tuple[float, int]]


def run(folder: Path = Path("leash-demo")) -> Path:
    """Run the demo; returns the report's path."""
    from rich.console import Console

    from leash.lab import demo_page, sweep

    console = Console()
    began = time.monotonic()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leash-demo-")))
        console.print("Starting RabbitMQ and Spark, each a private one (about 15 s) ...")
        with ThreadPoolExecutor(1) as pool:
            session = pool.submit(sweep.session, "local[*,4]", "leash demo")
            uri = stack.enter_context(_broker(scratch / "broker"))
            spark = session.result()
        stack.callback(spark.stop)
        console.print(f"Filling {len(QUANTA)} queues with {FILL:,} messages each ...")
        _fill(uri)
        target = folder.absolute() / "parquet"
        shutil.rmtree(target, ignore_errors=True)
        query = _start(spark, uri, scratch, target)
        try:
            seen = _watch(query, console)
        finally:
            spark.sparkContext.setLogLevel("OFF")  # a cancelled batch is expected here
            query.stop()
        counted = {
            row["queue"]: row["count"]
            for row in spark.read.parquet(str(target)).groupBy("queue").count().collect()
        }
        report = folder.absolute() / "report.html"
        demo_page.write(report, QUANTA, (RATE, BURST), seen.shares, seen.granted, counted)
        console.print(_result(counted))
        rate = _pace(seen)
        console.print(f"Rate: {rate:,.0f} messages a second, limit {RATE:,} and a burst of {BURST:,}")
        console.print(f"Parquet: {target} ({sum(counted.values()):,} rows)\nReport:  {report}")
        console.print("Cleaning up ...")
    console.print(f"Done in {time.monotonic() - began:.0f} s.")
    return report


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    """A virtual host on LEASH_URI's broker, or a node that is deleted afterwards."""
    from leash.broker import Broker, own_uri
    from leash.lab.live import place
    from leash.management import Management

    own = own_uri()
    if own:
        with place(own, Management.beside(own)) as uri:
            yield uri
        return
    with Broker(folder, owned=True) as node:
        yield node.uri


def _fill(uri: str) -> None:
    from leash.lab.live import fill

    fill(uri, {name: _messages(name) for name in QUANTA})


def _messages(queue: str) -> Iterator[Outgoing]:
    return (Outgoing(b'{"n": %d}' % number, "", queue) for number in range(FILL))


def _start(spark: SparkSession, uri: str, scratch: Path, target: Path) -> StreamingQuery:
    """The whole pipeline."""
    frame = (
        spark.readStream.format("rabbitmq")
        .option("url", uri)
        .option("queues", ",".join(f"{name}:{quantum}" for name, quantum in QUANTA.items()))
        .option("stagingLocation", str(scratch / "staging"))
        .option("maxRecordsPerTrigger", BATCH)
        .option("maxRatePerSecond", RATE)
        .option("burst", BURST)
        .load()
    )
    rows = frame.selectExpr("queue", "cast(value as string) as value")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(scratch / "checkpoint"))
    return writer.start(str(target))


def _watch(query: StreamingQuery, console: Console) -> Seen:
    from rich.live import Live

    began = time.monotonic()
    seen = _seen([])
    with Live(_live(seen), console=console, refresh_per_second=4, transient=True) as live:
        while sum(seen.rows.values()) < ENOUGH:
            if query.awaitTermination(0.5):  # type: ignore[arg-type]
                raise LeashError(f"the pipeline ended by itself: {query.exception()}")
            passed = time.monotonic() - began
            if passed > BUDGET and len(seen.granted) > 2:
                break
            if passed > PATIENCE:
                raise LeashError(f"only {sum(seen.rows.values()):,} rows in {PATIENCE:.0f} s")
            seen = _seen(query.recentProgress)
            live.update(_live(seen))
    return seen


def _seen(progress: list[Any]) -> Seen:
    """Each progress reports the batch before it, which was planned when its own trigger began."""
    rows = dict.fromkeys(QUANTA, 0)
    ready = dict.fromkeys(QUANTA, FILL)
    shares: list[dict[str, float]] = []
    granted: list[tuple[float, int]] = []
    batches: set[int] = set()
    planned = 0.0
    for each in progress:
        before, planned = planned, datetime.fromisoformat(each["timestamp"]).timestamp()
        told = json.loads(each["sources"][0]["latestOffset"] or "null")
        if not told or "queues" not in told or told["batch"] in batches:
            continue
        batches.add(told["batch"])
        ready |= told.get("ready", {})
        for name, entry in told["queues"].items():
            rows[name] += entry["rows"]
        total = sum(rows.values())
        if total:
            shares.append({name: 100 * count / total for name, count in rows.items()})
            granted.append((before, total))
    return Seen(rows, ready, shares, granted)


def _live(seen: Seen) -> Table:
    from rich.table import Table

    total = sum(seen.rows.values())
    table = Table(title=f"{total:,} of {ENOUGH:,} rows in Parquet")
    for column in ("queue", "quantum", "waiting", "rows", "share", "target", ""):
        table.add_column(column, justify="left" if column in ("queue", "") else "right")
    for name, quantum in QUANTA.items():
        share = seen.rows[name] / total if total else 0.0
        bar = "█" * round(150 * share)
        target = quantum / ROUND
        numbers = [
            str(quantum),
            f"{seen.ready[name]:,}",
            f"{seen.rows[name]:,}",
            f"{share:.1%}",
            f"{target:.1%}",
        ]
        table.add_row(name, *numbers, f"[cyan]{bar}[/]")
    return table


def _result(counted: dict[str, int]) -> Table:
    from rich.table import Table

    total = sum(counted.values())
    table = Table(title="Rows in Parquet, against the targets", title_justify="left")
    for column in ("queue", "quantum", "rows", "share", "target", "off by"):
        table.add_column(column, justify="left" if column == "queue" else "right")
    for name, quantum in QUANTA.items():
        count, target = counted.get(name, 0), quantum / ROUND
        off = count / total / target - 1
        table.add_row(
            name, str(quantum), f"{count:,}", f"{count / total:.2%}", f"{target:.2%}", f"{off:+.2%}"
        )
    return table


def _pace(seen: Seen) -> float:
    """Messages per second once the burst is spent: from the second batch, after a warm-up, to the last."""
    (begin, before), (end, after) = seen.granted[1], seen.granted[-1]
    return (after - before) / max(1e-9, end - begin)
