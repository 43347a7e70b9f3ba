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

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash.errors import ConfigError
from leash.spark.settings import sink_settings, source_settings
from leash.spark.streams.settings import are_for_streams, stream_settings, stream_sink_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.table import Table

SINKS = ("parquet", "delta", "console", "rabbitmq")
_SECTIONS = ("source", "transform", "sink", "spark")
_MASTER = "local[*,4]"  # plain local[*] fails the query at a task's first failure


@dataclass(frozen=True)
class Pipeline:
    """A pipeline. Its options hold passwords, so they are not printed."""

    source: dict[str, str] = field(repr=False)
    sql: str | None
    format: str
    path: str | None
    trigger: str | None
    sink: dict[str, str] = field(repr=False)
    master: str
    conf: dict[str, str]


def load(path: Path) -> Pipeline:
    """Read and check a file; an error names the file and the line."""
    text = path.read_text()
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), error, "is not TOML") from None
    checked = _Checked(path, text, table)
    for section in table:
        if section not in _SECTIONS or not isinstance(table[section], dict):
            checked.refuse(section, "", f"sections are {', '.join(_SECTIONS)}")
    source, sink, spark = (checked.strings(name) for name in ("source", "sink", "spark"))
    transform = checked.strings("transform")
    for key in transform:
        if key != "sql":
            checked.refuse("transform", key, "only sql")
    kind, folder, trigger = (sink.pop(key, None) for key in ("format", "path", "trigger"))
    if kind not in SINKS:
        checked.refuse("sink", "format", f"must be one of {', '.join(SINKS)}")
    if kind in ("parquet", "delta") and folder is None:
        checked.refuse("sink", "path", f"is needed for {kind}")
    if kind != "console" and "checkpointLocation" not in sink:
        checked.refuse("sink", "checkpointLocation", "is needed: without it a restart starts over")
    checked.options("source", lambda: _check_source(source))
    if kind == "rabbitmq":
        checked.options("sink", lambda: _check_sink(sink))
    return Pipeline(
        source, transform.get("sql"), str(kind), folder, trigger, sink, spark.pop("master", _MASTER), spark
    )


def _check_source(given: dict[str, str]) -> object:
    return stream_settings(given) if are_for_streams(given) else source_settings(given)


def _check_sink(given: dict[str, str]) -> object:
    return stream_sink_settings(given) if are_for_streams(given) else sink_settings(given)


class _Checked:
    def __init__(self, path: Path, text: str, table: dict[str, Any]) -> None:
        self._path, self._lines, self._table = path, text.splitlines(), table

    def strings(self, section: str) -> dict[str, str]:
        """Spark's options are text: `true` rather than `True`."""
        found = self._table.get(section, {})
        if not isinstance(found, dict):
            self.refuse(section, "", "must be a section")
        return {key: _text(value) for key, value in found.items()}

    def options(self, section: str, check: Callable[[], object]) -> None:
        try:
            check()
        except ConfigError as error:
            raise ConfigError(
                f"{self._path}:{self._line(section, error.argument)}", _Shown(error), "see above"
            ) from None

    def refuse(self, section: str, key: str, why: str) -> None:
        name = f"{section}.{key}" if key else section
        raise ConfigError(f"{self._path}:{self._line(section, key)}", name, why)

    def _line(self, section: str, key: str) -> int:
        """The line of the key, or of its section, or 1."""
        inside, found = "", 1
        for number, line in enumerate(self._lines, 1):
            if header := re.match(r"\s*\[\s*([^\]]+?)\s*\]", line):
                inside = header[1]
                found = number if inside == section else found
            elif (
                inside == section
                and key
                and re.match(rf'\s*["\']?{re.escape(key)}["\']?\s*=', line, re.IGNORECASE)
            ):
                return number
        return found


class _Shown:
    def __init__(self, error: ConfigError) -> None:
        self._text = str(error)

    def __repr__(self) -> str:
        return self._text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def start(pipeline: Pipeline) -> StreamingQuery:
    """Start the query, in a new Spark session unless one exists."""
    # Workers need the interpreter in which leash is installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(pipeline.master).appName("leash run")
    for key, value in pipeline.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    frame = spark.readStream.format("rabbitmq").options(**pipeline.source).load()
    if pipeline.sql is not None:
        frame = _transform(spark, frame, pipeline.sql)
    writer = frame.writeStream.format(pipeline.format).options(**pipeline.sink)
    if pipeline.trigger == "availableNow":
        writer = writer.trigger(availableNow=True)
    elif pipeline.trigger is not None:
        writer = writer.trigger(processingTime=pipeline.trigger)
    return writer.start(pipeline.path) if pipeline.path is not None else writer.start()


def _transform(spark: SparkSession, frame: DataFrame, sql: str) -> DataFrame:
    frame.createOrReplaceTempView("source")
    return spark.sql(sql)


def run(path: Path, every: float = 0.5) -> None:
    """Run until the query ends, with a live table of its progress; an interrupt stops it cleanly."""
    from rich.live import Live

    query = start(load(path))
    with Live(progress_table(None), refresh_per_second=4) as live:
        try:
            while not query.awaitTermination(every):  # type: ignore[arg-type]
                live.update(progress_table(query.lastProgress))
        except KeyboardInterrupt:
            query.stop()
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
