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
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash.errors import LeashError
from leash.spark.pipeline_file import Pipeline, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.table import Table

__all__ = ["Pipeline", "load", "progress_table", "run", "start"]

_OURS = re.compile(r"leash\.errors\.\w+: (.+)")


def start(pipeline: Pipeline) -> StreamingQuery:
    """Start the query, in a new Spark session unless one exists."""
    # Workers need the interpreter in which leash is installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(pipeline.master).appName("leash run")
    for key, value in pipeline.conf.items():
        builder = builder.config(key, value)
    with plainly("Spark did not start; is a Java 17 runtime installed?"):
        spark = builder.getOrCreate()
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
    from pyspark.errors import StreamingQueryException
    from rich.live import Live

    query = start(load(path))
    with Live(progress_table(None), refresh_per_second=4) as live:
        try:
            while not query.awaitTermination(every):  # type: ignore[arg-type]
                live.update(progress_table(query.lastProgress))
        except KeyboardInterrupt:
            query.stop()
        except StreamingQueryException as error:
            if not _OURS.search(str(error)):
                raise  # Spark's, or the data's: the whole story is needed
            raise LeashError(f"the pipeline ended: {sentence(str(error))}") from error
        live.update(progress_table(query.lastProgress))


def progress_table(progress: Any) -> Table:
    """One line per queue or stream."""
    from rich.table import Table

    from leash.spark.metrics import report_of

    table = Table(title="waiting for the first batch")
    for column in ("queue", "ready", "granted", "rows", "share", "redelivered", "dropped"):
        table.add_column(column, justify="left" if column == "queue" else "right")
    told = report_of(progress["sources"][0]["latestOffset"]) if progress else None
    if told is None:
        return table
    rate = progress["processedRowsPerSecond"]
    table.title = f"batch {told['batch']}, {progress['numInputRows']} rows, {rate:.0f} per second"
    for queue, entry in told["queues"].items():
        numbers = [
            told["ready"].get(queue, 0),
            entry["granted"],
            entry.get("rows", ""),
            f"{entry['share']:.1%}",
        ]
        table.add_row(queue, *map(str, [*numbers, entry.get("redelivered", ""), entry.get("dropped", "")]))
    return table
