"""Drives a stream reader as Spark does, in this process: plan, read, remember the offset, plan, commit."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from leash.amqp import Outgoing, Properties, Publisher, connect, topology
from leash.spark.columns import source_schema
from leash.spark.offsets import Plan
from leash.spark.settings import source_settings
from leash.spark.source import QueueStreamReader, SplitPartition
from tests.waiting import until

Row = dict[str, Any]

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


def options(uri: str, staging: Path, **more: object) -> dict[str, str]:
    given = {"url": uri, "stagingLocation": str(staging), "pollTimeout": "100ms", "queue": "q"}
    if "queues" in more:
        del given["queue"]
    return given | {name: str(value) for name, value in more.items()}


def make_reader(given: dict[str, str]) -> QueueStreamReader:
    settings = source_settings(given)
    return QueueStreamReader(settings, source_schema(settings.include_headers))


class Query:
    """`log` is the checkpoint: it survives `restart`, the reader does not."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.log: list[dict[str, Any]] = []
        self.reader = make_reader(given)
        self.first = self.reader.initialOffset()

    def restart(self, **changed: object) -> None:
        self.reader.stop()
        self.given |= {name: str(value) for name, value in changed.items()}
        self.reader = make_reader(self.given)
        if not self.log or len(self.log) == 1:
            self.first = self.reader.initialOffset()

    @property
    def start(self) -> dict[str, Any]:
        return self.log[-1] if self.log else self.first

    def plan(self) -> bool:
        """Plan and log the next batch, and commit the one before; False when there is nothing to do."""
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        end = json.loads(json.dumps(end))
        if end == self.start:
            return False
        before = self.log[-1] if self.log else None
        self.log.append(end)
        if before is not None:
            self.reader.commit(before)
        return True

    def partitions(self) -> Sequence[SplitPartition]:
        start = self.log[-2] if len(self.log) > 1 else self.first
        found = self.reader.partitions(start, self.log[-1])
        return cast(Sequence[SplitPartition], found)

    def read(self, partitions: Iterable[SplitPartition] | None = None) -> list[Row]:
        """The last planned batch, by a pickled copy of the reader as a task has it."""
        task: QueueStreamReader = pickle.loads(pickle.dumps(self.reader))  # noqa: S301
        chosen = self.partitions() if partitions is None else partitions
        return [row for p in chosen for batch in task.read(p) for row in batch.to_pylist()]

    def batch(self) -> list[Row] | None:
        return self.read() if self.plan() else None

    def drain(self, most: int = 50) -> list[Row]:
        """Batches until one is empty or there is none."""
        rows: list[Row] = []
        for _ in range(most):
            if not wait_plan(self):
                break
            rows += self.read()
        return rows

    @property
    def last(self) -> Plan:
        return Plan.from_json(self.log[-1])


def wait_plan(query: Query, seconds: float = 0.3) -> bool:
    """The reader probes the broker only now and then."""
    deadline = time.monotonic() + seconds
    while True:
        last = time.monotonic() > deadline  # its probe is due, whatever happened in between
        if query.plan():
            return True
        if last:
            return False
        time.sleep(0.02)


def declare(uri: str, *names: str, kind: str = "classic", **arguments: object) -> None:
    with connect(uri) as link, link.channel() as channel:
        for name in names or ("q",):
            table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
            topology.declare_queue(channel, name, kind=kind, arguments=table)


def publish(
    uri: str, count: int, queue: str = "q", first: int = 0, ids: bool = True, size: int = 0
) -> list[bytes]:
    """Numbered, persistent, confirmed."""
    bodies = [b"%06d" % number + b"." * size for number in range(first, first + count)]
    with connect(uri) as link, Publisher(link) as publisher:
        publisher.publish(
            Outgoing(
                body,
                "",
                queue,
                Properties(delivery_mode=2, message_id=body[:6].decode() if ids else None),
                mandatory=True,
            )
            for body in bodies
        )
    return bodies


def ready(uri: str, queue: str = "q", expect: int | None = None) -> int:
    """The ready count; waits for it to become what is expected."""
    deadline = time.monotonic() + 60
    with connect(uri) as link:
        while True:
            with link.channel() as channel:
                found = topology.state(channel, queue).ready
            if expect is None or found == expect or time.monotonic() > deadline:
                return found
            time.sleep(0.02)


def values(rows: Iterable[Row]) -> list[bytes]:
    return [row["value"] for row in rows]


def unflagged(rows: Iterable[Row]) -> list[bytes]:
    return [row["value"] for row in rows if not row["redelivered"]]


def until_there(path: Path) -> None:
    until(path.exists)


def delete(uri: str, queue: str) -> None:
    with connect(uri) as link, link.channel() as channel:
        topology.delete_queue(channel, queue)


def abandon(staging: Path, query: Query) -> None:
    """As if the driver had died: its process id belongs to nobody."""
    query.reader.stop()
    owner = staging / query.last.run / "owner.json"
    owner.write_text(owner.read_text().replace('"born": "', '"born": "1'))
