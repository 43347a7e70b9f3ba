"""What a task does for its split: get the seal, yield its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leash.errors import AccessRefused

from . import links, run
from .attempt import sealed
from .chunks import read_chunks
from .files import open_files
from .offsets import Split
from .partitioned import PartitionTaker
from .rows import project
from .settings import SourceSettings
from .taking import QueueTaker
from .units import SECOND

if TYPE_CHECKING:
    import pyarrow as pa


def read_split(split: Split, settings: SourceSettings, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows come from the staged file even right after staging: a replay takes the very same path."""
    files = open_files(settings.staging_location)

    def taker(split: Split) -> QueueTaker:
        link = links.connection(settings.broker, "read")
        pause = settings.poll_timeout / SECOND
        if settings.partitions is not None:
            return PartitionTaker(link, split, pause, settings.partitions)
        return QueueTaker(link, split.queue, pause, split.ordered, split.exclusive)

    # An exclusive consumer of a lost executor stays until the broker misses its heartbeats.
    wait_for = (AccessRefused,) if split.exclusive else ()
    seal = links.patiently(lambda: sealed(split, files, taker), *wait_for)
    for raw in read_chunks(files, split.seal_path, seal, settings.fail_on_data_loss):
        yield project(raw, seal.queue, columns)
    if settings.target_delay is not None:
        run.note_done(files, split)
