"""`leash run pipeline.toml`: queues or streams to a sink, described in a file.

[source]                        # options of the source, see docs/spark.md
url = "amqp://..."
queues = "gold:10,free:1"
stagingLocation = "data/staging"

[transform]                     # optional
sql = "select cast(value as string) as text, queue from source"

[sink]
format = "parquet"              # parquet, delta, console or rabbitmq
path = "data/orders"
checkpointLocation = "data/checkpoint"
trigger = "10 seconds"          # optional; or "availableNow"

[spark]                         # optional
master = "local[*,4]"
"spark.sql.shuffle.partitions" = 8
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from leash.errors import LeashError
from leash.spark import pipeline_checks
from leash.spark.pipeline_file import Pipeline, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from leash.spark.pipeline_progress import Figures, Heard

__all__ = ["Pipeline", "load", "run", "session", "start"]

_OURS = re.compile(r"leash\.errors\.\w+: (.+)")
_STREAMING = "org.apache.spark.sql.execution.streaming"
_REPEAT = (
    f"{_STREAMING}.runtime.MicroBatchExecution",
    f"{_STREAMING}.MicroBatchExecution",  # before Spark 4.1
    "org.apache.spark.SQLQueryContextLogger",
    "SQLQueryContextLogger",
)
"""Loggers of Spark's that print the error which ends a query."""
_LATER = 5.0  # seconds that a listener may hear later of a query's end


def session(pipeline: Pipeline) -> SparkSession:
    """A new Spark session unless one exists."""
    # Workers need the interpreter in which leash is installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(pipeline.master).appName("leash run")
    for key, value in pipeline.conf.items():
        builder = builder.config(key, value)
    with plainly("Spark did not start; is a Java 17 runtime installed?"):
        spark = builder.getOrCreate()
    if not _own_logging(pipeline.conf):
        _hush(spark)
    return spark


def _own_logging(conf: Mapping[str, str]) -> bool:
    """True if the user has arranged Spark's logging."""
    return "SPARK_CONF_DIR" in os.environ or any("log4j" in value for value in conf.values())


def _hush(spark: SparkSession) -> None:
    """Keep the traces of a query that fails off the terminal: `run` says all that they say."""
    with suppress(Exception):  # another way of logging, or another version's: then they are shown
        log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        for name in _REPEAT:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def start(pipeline: Pipeline, spark: SparkSession) -> StreamingQuery:
    frame = spark.readStream.format("rabbitmq").options(**pipeline.source).load()
    if pipeline.sql is not None:
        with plainly(f"{pipeline.sql_line}: transform.sql:"):
            frame = _transform(spark, frame, pipeline.sql)
    writer = frame.writeStream.format(pipeline.format).options(**pipeline.sink)
    if pipeline.trigger == "availableNow":
        writer = writer.trigger(availableNow=True)
    elif pipeline.trigger is not None:
        writer = writer.trigger(processingTime=pipeline.trigger)
    with plainly(f"the sink {pipeline.format} did not start:"):
        return writer.start(pipeline.path) if pipeline.path is not None else writer.start()


def _transform(spark: SparkSession, frame: DataFrame, sql: str) -> DataFrame:
    frame.createOrReplaceTempView("source")
    return spark.sql(sql)


@contextmanager
def plainly(what: str) -> Iterator[None]:
    """What Spark refuses is for the user to fix, so it is reported in one sentence, without a traceback."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise LeashError(f"{what} {sentence(str(error))}") from error
    except Py4JJavaError as error:  # those that PySpark has no class for, such as of a missing sink
        raise LeashError(f"{what} {sentence(str(error.java_exception.getMessage()))}") from error


def sentence(text: str) -> str:
    """What an error of Spark's says: the error of ours that is within it, or else its beginning."""
    ours = _OURS.findall(text)
    return str(ours[-1] if ours else text.strip().splitlines()[0]).strip()


def run(path: Path, every: float = 0.5) -> None:
    """Run until the query ends, with a live table of its progress; an interrupt stops it cleanly."""
    pipeline = load(path)
    pipeline_checks.check(pipeline)
    from rich.console import Console

    from leash.spark.pipeline_progress import Heard, figures_of, nothing_in, progress_table

    heard, figures, console = Heard(), figures_of(pipeline.source), Console()
    spark = session(pipeline)
    spark.streams.addListener(heard)
    try:
        whole = _follow(start(pipeline, spark), heard, figures, every)
    finally:
        with suppress(Exception):  # a lost JVM has an error of its own, which is the one to tell
            spark.streams.removeListener(heard)
        if heard.batches:
            console.print(progress_table(heard.last, figures))
            console.print(heard.told(), highlight=False)
    if not heard.batches:
        nothing = f"nothing to read: {nothing_in(pipeline.source)}"
        console.print(nothing if whole else "stopped before the first batch had ended", highlight=False)


def _follow(query: StreamingQuery, heard: Heard, figures: Figures, every: float) -> bool:
    """Show each batch until the query ends; False if it was interrupted."""
    from pyspark.errors import StreamingQueryException
    from rich.live import Live

    from leash.spark.pipeline_progress import progress_table

    shown = None
    with Live("waiting for the first batch", refresh_per_second=4, transient=True) as live, _asked() as asked:
        try:
            while not query.awaitTermination(every):  # type: ignore[arg-type]
                if asked.is_set():
                    query.stop()
                    return False
                if heard.last is not shown:
                    shown = heard.last
                    live.update(progress_table(shown, figures))
            return True
        except StreamingQueryException as error:
            if not _OURS.search(str(error)):
                raise  # Spark's, or the data's: the whole story is needed
            raise LeashError(f"the pipeline ended: {sentence(str(error))}") from error
        finally:
            heard.ended.wait(_LATER)


@contextmanager
def _asked() -> Iterator[threading.Event]:
    """Set by Ctrl-C; a second one interrupts. PySpark's own handler calls Spark from within another call,
    which ends in traces."""
    asked = threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
