"""A batch read that only looks: messages are taken, shown, and returned to their places."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leash.amqp import Connection, topology
from leash.amqp.delivery_limit import limit_of
from leash.amqp.queue_traits import traits
from leash.errors import ConfigError, NotFound, QueueHeld, QueueMissing
from leash.spark import connections
from leash.spark.driver.checks import refuse_stream
from leash.spark.settings import BrowseSettings
from leash.spark.staging.chunks import raw_batch
from leash.spark.task.rescuing import Rescuer
from leash.spark.task.rows import project
from leash.spark.task.taking import QueueTaker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUIET = 0.25  # seconds without a message before the queue counts as read
_OTHERS_LEAVE = 3.0  # seconds
_LOOK = 0.05  # seconds between two looks at the consumers


class BrowseReader(DataSourceReader):
    """One task: a queue has one order."""

    def __init__(self, settings: BrowseSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._settings.queue)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        from pyspark.sql.pandas.types import to_arrow_schema

        return _look(self._settings, to_arrow_schema(self._schema, timezone="UTC"))


def _look(settings: BrowseSettings, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    link = connections.connection(settings.broker, "browse")
    try:
        found = traits(link, settings.queue)
    except NotFound:
        raise QueueMissing(f"queue {settings.queue!r} does not exist") from None
    refuse_stream("queue", settings.queue, found)
    rescuer = Rescuer(lambda: connections.connection(settings.broker, "publish"))
    limit = limit_of(found, link.version)
    quorum = found is not None and found.kind == "quorum"
    if quorum and limit == 0:
        raise ConfigError(
            "queue",
            settings.queue,
            "has a delivery limit of 0: the broker would drop messages that are looked at and returned",
        )
    if found is not None and found.single_active:
        _wait_for_others(link, settings.queue)
    limited = limit is not None and (quorum or found is None)
    taker = QueueTaker(link, settings.queue, _QUIET, rescuer, looking=limited, in_place=quorum)
    try:
        shown = 0
        for lot in taker.lots(settings.limit):
            shown += len(lot)
            yield project(raw_batch(lot), settings.queue, columns)
        if taker.ended == "gone":
            raise QueueMissing(f"queue {settings.queue!r} does not exist")
        if taker.ended == "deadline" and not shown:
            raise QueueHeld(f"queue {settings.queue!r} has messages, but another consumer holds them")
    finally:
        taker.give_back()


def _wait_for_others(link: Connection, queue: str) -> None:
    """Wait a moment: consumers of an earlier look may be about to leave."""
    deadline = time.monotonic() + _OTHERS_LEAVE
    while True:
        with link.channel() as channel:
            if not topology.state(channel, queue).consumers:
                return
        if time.monotonic() > deadline:
            raise QueueHeld(
                f"queue {queue!r} has a single active consumer, which is another client: nothing can be seen "
                "while it consumes"
            )
        time.sleep(_LOOK)
