"""The order of events: without Leash, with Leash, a replay, and a report of all that was seen.

The report is written whatever happens, and says why it is not complete. The broker, its data and the staging
folder are deleted, whatever happens.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from leash.errors import LeashError
from leash.lab.demo import page, pipeline, tables
from leash.lab.demo.load import Load, Place, fill, place
from leash.lab.demo.observed import Seen, pace, steady
from leash.lab.demo.page import Story
from leash.lab.demo.plain import drain
from leash.lab.demo.replay import replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console


def run(folder: Path = Path("leash-demo"), load: Load | None = None) -> Path:
    """Run the demo; returns the report's path."""
    from rich.console import Console

    console = Console()
    story = Story(load or Load())
    report = folder.absolute() / "report.html"
    began = time.monotonic()
    try:
        _play(story, folder.absolute(), console)
    except BaseException as error:
        story.trouble = _sentence(error)
        raise
    finally:
        page.write(report, story)
        console.print(f"Report:  {report}", soft_wrap=True)
    console.print(tables.next_steps(), highlight=False)
    console.print(f"Done in {time.monotonic() - began:.0f} s.")
    return report


def _sentence(error: BaseException) -> str:
    if isinstance(error, LeashError):
        return str(error)
    return (
        "it was interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
    )


def _play(story: Story, folder: Path, console: Console) -> None:
    load = story.load
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leash-demo-")))
        console.print("Starting RabbitMQ and Spark, each a private one (about 15 s) ...")
        with ThreadPoolExecutor(1) as pool:
            # In this thread, because Spark finds a sink only in the one that made the session.
            filling = pool.submit(_without, story, stack, scratch, console)
            spark = pipeline.session()
            stack.callback(spark.stop)
            broker = filling.result()
        target = folder / "parquet"
        shutil.rmtree(target, ignore_errors=True)
        _stream(story, spark, broker, scratch, target, console)
        counts = spark.read.parquet(str(target)).groupBy("queue").count().collect()
        story.counted = Seen({row["queue"]: row["count"] for row in counts})
        story.replay = replay(spark, broker, target)
        console.print(tables.result(load, story.plain, story.counted))
        console.print(tables.rates(load, pace(story.plain.points), pace(steady(story.leash.points))))
        console.print(tables.replayed(story.replay))
        console.print(f"Parquet: {target} ({story.counted.total:,} rows)", soft_wrap=True)
        console.print("Cleaning up ...")


def _without(story: Story, stack: ExitStack, scratch: Path, console: Console) -> Place:
    """Start the broker, and drain the queues without Leash; then they are filled again."""
    load = story.load
    broker = stack.enter_context(place(scratch / "broker"))
    story.rabbitmq = broker.version, broker.shown
    console.print(f"Filling {len(load.quanta)} queues with {load.fill:,} messages each ...")
    fill(broker.uri, load)
    console.print("Without Leash: a plain consumer, first come, first served ...")
    story.plain = drain(broker.uri, load, scratch / "plain")
    console.print("With Leash: the same queues, filled again, through Spark to Parquet ...")
    fill(broker.uri, load)
    return broker


def _stream(
    story: Story, spark: SparkSession, broker: Place, scratch: Path, target: Path, console: Console
) -> None:
    from rich.live import Live

    load = story.load
    query = pipeline.start(spark, broker, load, scratch, target)
    try:
        with Live(console=console, refresh_per_second=4, transient=True) as live:

            def show(seen: Seen, note: str) -> None:
                story.leash = seen  # so that the report has it, whatever happens next
                live.update(tables.live(seen, load, note))

            story.leash = pipeline.watch(query, broker, load, show)
    finally:
        spark.sparkContext.setLogLevel("OFF")  # a cancelled batch is expected here
        query.stop()
