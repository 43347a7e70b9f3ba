"""What `leash run` shows: each batch with its own figures, the last one too, and what there was in all.

The source's report, in the query's progress, is a batch behind: it is made when the next one is planned. So
the figures are read from the batch's seals, which stay until the batch after it has ended.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from leash.spark.driver import progress as sealed
from leash.spark.driver.settling import Settled
from leash.spark.metrics import report_of
from leash.spark.offsets import Plan, splits_of
from leash.spark.settings import SourceSettings, source_settings
from leash.spark.staging.files import Files, open_files
from leash.spark.staging.seals import Seal, read_seal
from leash.spark.streams.offsets import StreamPlan
from leash.spark.streams.settings import StreamSettings, are_for_streams, stream_settings

if TYPE_CHECKING:
    from rich.table import Table

Figures = Callable[[dict[str, Any]], Mapping[str, Mapping[str, Any]]]
"""From a batch's end offset, per queue: what was granted and, if it is known, what was read."""

_PARALLEL = 16
_NAMED = 3  # queues that a sentence names


class Heard(StreamingQueryListener):
    """Counts the batches of the first query that starts: Spark itself remembers only the last hundred."""

    def __init__(self) -> None:
        self.last: Any = None
        """Spark's progress of the last batch that ended."""
        self.rows = 0
        self.batches = 0
        self.ended = threading.Event()
        self._run = ""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._run = self._run or str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if str(event.progress.runId) == self._run:
            self.rows += event.progress.numInputRows or 0
            self.batches += 1
            self.last = event.progress

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if str(event.runId) == self._run:
            self.ended.set()

    def told(self) -> str:
        return f"{_counted(self.rows, 'row', 'rows')} in {_counted(self.batches, 'batch', 'batches')}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


# --- the figures ---


def figures_of(source: Mapping[str, str]) -> Figures:
    """How to find a batch's figures, by the options of the source."""
    if are_for_streams(source):
        return stream_figures
    files = open_files(source_settings(source).staging_location)
    return lambda offset: queue_figures(offset, files)


def stream_figures(offset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    granted = StreamPlan.from_json(offset).granted
    total = sum(granted.values())
    return {name: {"granted": count, "share": count / total} for name, count in granted.items() if count}


def queue_figures(offset: dict[str, Any], files: Files) -> dict[str, dict[str, Any]]:
    """Only the grants if the seals are deleted already, which means that a later batch has ended."""
    plan = Plan.from_json(offset)
    splits = tuple(splits_of(plan))
    with ThreadPoolExecutor(_PARALLEL) as pool:
        found = list(pool.map(lambda split: read_seal(files, split.seal_path), splits))
    if any(seal is None and not split.adopted for split, seal in zip(splits, found, strict=True)):
        granted: dict[str, int] = sealed.of(plan, Settled((), (), acked=True), plan)["next"]
        return {queue: {"granted": count} for queue, count in granted.items()}
    there = tuple(seal or Seal(attempt="gone", void=True) for seal in found)
    figures: dict[str, dict[str, Any]] = sealed.of(plan, Settled(splits, there, acked=True), plan)["queues"]
    return figures


# --- the words ---


def progress_table(progress: Any, figures: Figures) -> Table:
    """A batch, with one line per queue or stream that it read."""
    from rich.table import Table

    source = progress["sources"][0]
    offset = json.loads(source["endOffset"])
    rate = progress["processedRowsPerSecond"] or 0.0
    rows = _counted(progress["numInputRows"] or 0, "row", "rows")
    table = Table(title=f"batch {offset['seq']}: {rows}, {rate:,.0f} per second")
    for column in ("queue", "ready", "granted", "rows", "share", "redelivered", "dropped"):
        table.add_column(column, justify="left" if column == "queue" else "right")
    ready = (report_of(source["latestOffset"]) or {}).get("ready", {})
    for queue, entry in _seen(figures, offset).items():
        numbers = [ready.get(queue, ""), entry["granted"], entry.get("rows", "")]
        share = f"{entry['share']:.1%}" if "share" in entry else ""
        more = [entry.get("redelivered", ""), entry.get("dropped", "")]
        table.add_row(queue, *map(str, [*numbers, share, *more]))
    return table


def _seen(figures: Figures, offset: dict[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    try:
        return figures(offset)
    except Exception:  # whatever the folder's error is: a table must not end a query
        return {}


def nothing_in(source: Mapping[str, str]) -> str:
    """What a source that had no message was to read."""
    if are_for_streams(source):
        return _nothing_new(stream_settings(source))
    return _empty(source_settings(source))


def _nothing_new(told: StreamSettings) -> str:
    if told.super_stream is not None:
        return f"super stream {told.super_stream} has nothing new"
    names, verb = _listed([spec.name for spec in told.queues], "streams", "has", "have")
    return f"{names} {verb} nothing new"


def _empty(told: SourceSettings) -> str:
    if told.partitions is not None:
        return f"the partitions {told.partitions} are empty"
    if told.tenants is not None:
        return f"the lanes of tenants {told.tenants} are empty"
    names, verb = _listed([spec.name for spec in told.queues], "queues", "is", "are")
    return f"{names} {verb} empty"


def _listed(names: list[str], noun: str, one: str, many: str) -> tuple[str, str]:
    if len(names) > _NAMED:
        return f"all {len(names):,} {noun}", many
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])), one if len(names) == 1 else many
