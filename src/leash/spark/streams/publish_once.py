"""One task's publishing to one stream, each row once: what the stream has already is skipped."""

from __future__ import annotations

from leash.errors import ConfigError, RowsChanged
from leash.spark.streams.ids import ROWS, Id, Numbering, split
from leash.spark.streams.links import patiently, uri_of
from leash.spark.streams.messages import Messages
from leash.spark.streams.settings import StreamSinkSettings
from leash.streams import Publisher, query_sequence
from leash.units import SECOND


class Lane:
    """Asks first what the stream has of this publisher, and holds every row against it."""

    def __init__(self, settings: StreamSinkSettings, stream: str, reference: str, batch: int) -> None:
        self._settings = settings
        self._stream = stream
        self._reference = reference
        self._batch = batch
        self._numbering = Numbering(batch)
        self._last_id = 0
        self._publisher = patiently(self._open, settings.place)
        last = split(self._publisher.last_id)
        if last is not None and last.batch > batch:
            self._publisher.close()
            raise RowsChanged(
                f"stream {stream!r}: it has rows of batch {last.batch} from this query already, so those of "
                f"batch {batch} would be dropped. The checkpoint was set back, or this attempt comes too "
                "late; a new checkpoint starts anew"
            )
        self._there: Id | None = last if last is not None and last.batch == batch else None

    def add(self, found: Messages) -> None:
        """Publish the rows that the stream does not have."""
        before = self._numbering.rows
        ids = self._numbering.next(*found.content)
        if self._numbering.rows >= ROWS:
            raise ConfigError("rows", self._numbering.rows, f"below {ROWS} in a task and batch: repartition")
        if len(ids):
            self._last_id = int(ids[-1])
        if self._there is not None and before < self._there.row:
            skip = min(self._there.row - before, len(ids))
            if before + skip == self._there.row and split(int(ids[skip - 1])) != self._there:
                raise self._changed("has other rows up to this one")
            found, ids = found.slice(skip), ids[skip:]
        if len(ids):
            try:
                self._publisher.send(found.values, ids=ids, sections=found.sections, filters=found.filters)
            except ConfigError as error:
                if error.argument != "values":
                    raise
                raise ConfigError("column value", error.value, str(error).partition(": ")[2]) from None

    def finish(self) -> None:
        """Wait for the confirms, and see that no other attempt got between."""
        if self._there is not None and self._numbering.rows < self._there.row:
            raise self._changed(f"ends after {self._numbering.rows} rows")
        self._publisher.wait()
        if self._numbering.rows:
            last = query_sequence(self._publisher.connection, self._reference, self._stream)
            if last != self._last_id:
                self._there = split(last)
                raise self._changed("ran beside this one with other rows")

    def close(self) -> None:
        self._publisher.close()

    def _open(self) -> Publisher:
        return Publisher(
            uri_of(self._settings.place),
            self._stream,
            reference=self._reference,
            timeout=self._settings.confirm_timeout / SECOND,
            load_balancer=self._settings.place.load_balancer,
            name="leash spark sink",
        )

    def _changed(self, what: str) -> RowsChanged:
        row = 0 if self._there is None else self._there.row
        return RowsChanged(
            f"stream {self._stream!r}: it has batch {self._batch} of this query up to row {row}, and another "
            f"attempt {what}: a retried batch must have the same rows in the same order. Sort the rows, or "
            "use a source and functions that always give the same"
        )
