"""What a task does for its split: get the seal, yield its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leash.errors import AccessRefused, AmqpError, Interrupted
from leash.spark import connections
from leash.spark.offsets import Split
from leash.spark.settings import SourceSettings
from leash.spark.staging import notes
from leash.spark.staging.chunks import read_chunks
from leash.spark.staging.files import Files, open_files
from leash.spark.staging.seals import Seal
from leash.spark.task.attempt import Taker, sealed
from leash.spark.task.ordered import OrderedTaker
from leash.spark.task.partitioned import PartitionTaker
from leash.spark.task.records import SplitRecords
from leash.spark.task.rescuing import Rescuer
from leash.spark.task.rows import project
from leash.spark.task.taking import QueueTaker
from leash.units import SECOND

if TYPE_CHECKING:
    import pyarrow as pa


def read_split(split: Split, settings: SourceSettings, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows come from the staged file even right after staging: a replay takes the same path."""
    files = open_files(settings.staging_location)

    def attempt() -> Seal:
        return sealed(split, files, lambda _: _taker(split, settings, files))

    # An exclusive consumer of a lost executor stays until its heartbeats time out.
    wait_for: list[type[AmqpError]] = [Interrupted, AccessRefused] if split.exclusive else [Interrupted]
    seal = connections.patiently(attempt, *wait_for)
    for raw in read_chunks(files, split.seal_path, seal, settings.fail_on_data_loss):
        yield project(raw, seal.queue, columns)
    if settings.target_delay is not None:
        notes.note_done(files, split)


def _taker(split: Split, settings: SourceSettings, files: Files) -> Taker:
    link = connections.connection(settings.broker, "read")
    pause = settings.poll_timeout / SECOND
    rescuer = Rescuer(lambda: connections.connection(settings.broker, "publish"))
    if not split.ordered:
        return QueueTaker(link, split.queue, pause, rescuer)
    limbo = notes.has_limbo(files, split)
    ordered = OrderedTaker(
        link,
        split.queue,
        pause,
        exclusive=split.exclusive and not limbo,
        with_limbo=limbo,
        rescuer=rescuer,
        records=SplitRecords(files, split),
    )
    if settings.partitions is None:
        return ordered
    return PartitionTaker(
        ordered, split, settings.partitions, lambda: connections.connection(settings.broker, "publish")
    )
