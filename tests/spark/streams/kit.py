"""Drives a reader of streams as Spark does, in this process; streams to fill and to look into."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from leash.spark.streams.columns import source_schema
from leash.spark.streams.offsets import StreamPlan
from leash.spark.streams.settings import stream_read_settings, stream_settings
from leash.spark.streams.source import RangePartition, StreamsBatchReader, StreamsReader
from leash.streams import Publisher, Reader, connect, create_stream, delete_stream, first_and_end

Row = dict[str, Any]


def make_reader(given: dict[str, str]) -> StreamsReader:
    return StreamsReader(stream_settings(given), source_schema(given))


class Query:
    """`log` is the checkpoint: it survives `restart`, the reader does not."""

    def __init__(self, url: str, **given: object) -> None:
        self.given = {"url": url} | {name: str(value) for name, value in given.items()}
        self.log: list[dict[str, Any]] = []
        self.reader = make_reader(self.given)
        self.first = self.reader.initialOffset()

    def restart(self, **changed: object) -> None:
        self.reader.stop()
        self.given |= {name: str(value) for name, value in changed.items()}
        self.reader = make_reader(self.given)
        if len(self.log) < 2:
            self.first = self.reader.initialOffset()

    @property
    def start(self) -> dict[str, Any]:
        return self.log[-1] if self.log else self.first

    def plan(self) -> bool:
        """Plan and log the next batch; False when there is nothing to do."""
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        end = json.loads(json.dumps(end))
        if end == self.start:
            return False
        self.log.append(end)
        return True

    def partitions(self) -> Sequence[RangePartition]:
        start = self.log[-2] if len(self.log) > 1 else self.first
        return cast(Sequence[RangePartition], self.reader.partitions(start, self.log[-1]))

    def read(self, partitions: Iterable[RangePartition] | None = None) -> list[Row]:
        """The last planned batch, by a pickled copy of the reader as a task has it."""
        task: StreamsReader = pickle.loads(pickle.dumps(self.reader))  # noqa: S301
        chosen = self.partitions() if partitions is None else partitions
        return [row for p in chosen for batch in task.read(p) for row in batch.to_pylist()]

    def batch(self, seconds: float = 60) -> list[Row]:
        """The rows of the next batch, as soon as there is one."""
        assert wait_plan(self, seconds)
        return self.read()

    def drain(self, most: int = 100) -> list[Row]:
        """Batches until there is none."""
        rows: list[Row] = []
        for _ in range(most):
            if not wait_plan(self, 0.3):
                break
            rows += self.read()
        return rows

    @property
    def last(self) -> StreamPlan:
        return StreamPlan.from_json(self.log[-1])


def wait_plan(query: Query, seconds: float) -> bool:
    """The reader probes the broker only now and then."""
    deadline = time.monotonic() + seconds
    while not query.plan():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def read_batch(url: str, **given: object) -> list[Row]:
    """What `spark.read` would give."""
    told = {"url": url} | {name: str(value) for name, value in given.items()}
    reader = StreamsBatchReader(stream_read_settings(told), source_schema(told))
    return [row for p in reader.partitions() for batch in reader.read(p) for row in batch.to_pylist()]


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


def make(url: str, *names: str, **arguments: str) -> None:
    with connect(url) as link:
        for name in names:
            create_stream(link, name, {key.replace("_", "-"): value for key, value in arguments.items()})


def remove(url: str, *names: str) -> None:
    with connect(url) as link:
        for name in names:
            delete_stream(link, name)


def fill(url: str, stream: str, first: int, count: int, pieces: int = 1) -> list[bytes]:
    """Numbered and confirmed; each piece ends a chunk."""
    made = bodies(first, count)
    with Publisher(url, stream) as publisher:
        for number in range(pieces):
            publisher.publish(made[number * count // pieces : (number + 1) * count // pieces])
    return made


def contents(url: str, stream: str) -> list[bytes]:
    """All that a stream has now."""
    with connect(url) as link:
        end = first_and_end(link, stream).end
    if not end:
        return []
    with Reader(url, stream, end=end) as reader:
        return [value for batch in reader for value in batch.column("value").to_pylist()]


def values(rows: Iterable[Row]) -> list[bytes]:
    return [row["value"] for row in rows]
