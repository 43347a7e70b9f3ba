"""An end offset holds what its batch reads, as ranges of offsets: reading is a pure function of it.

The law of ends: a range ends at or below the end of a chunk with messages that was seen when it was planned.
So a task that waits for its end will see it. It need not be the end of a chunk: a chunk that two ranges share
goes to both tasks, and each keeps what is its own. That costs as much as asking where chunks end would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from leash.errors import OffsetError
from leash.streams import Chunk

VERSION = "streams 1"


class Mark(NamedTuple):
    """A chunk that was there: if another one is in its place, the stream was deleted and made again."""

    first: int
    timestamp: int
    crc: int

    @staticmethod
    def of(chunk: Chunk) -> Mark:
        return Mark(chunk.first, chunk.timestamp, chunk.crc)


class Range(NamedTuple):
    """What one task reads: the messages with `start <= offset < end`. `mark` lies at or beyond its end."""

    stream: str
    start: int
    end: int
    mark: Mark | None


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A batch. `splits` are (index of the stream, start, end)."""

    seq: int
    streams: tuple[str, ...] = ()
    splits: tuple[tuple[int, int, int], ...] = ()
    next: dict[str, int] = field(default_factory=dict)
    """Where the batch after it begins, for every stream that was ever read."""
    marks: dict[str, Mark] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "seq": self.seq,
            "streams": list(self.streams),
            "splits": [list(split) for split in self.splits],
            "next": self.next,
            "marks": {name: list(mark) for name, mark in self.marks.items()},
            "state": self.state,
        }

    @staticmethod
    def from_json(offset: dict[str, Any]) -> StreamPlan:
        if offset.get("version") != VERSION:
            raise OffsetError(
                f"the checkpoint holds a version {offset.get('version')!r} offset, and this is {VERSION!r}: "
                "it belongs to a query on queues, or to another release"
            )
        return StreamPlan(
            offset["seq"],
            tuple(offset["streams"]),
            tuple((stream, start, end) for stream, start, end in offset["splits"]),
            dict(offset["next"]),
            {name: Mark(*mark) for name, mark in offset["marks"].items()},
            offset["state"],
        )

    @property
    def granted(self) -> dict[str, int]:
        """How many offsets of each stream are in the batch."""
        found = dict.fromkeys(self.streams, 0)
        for number, start, end in self.splits:
            found[self.streams[number]] += end - start
        return found

    def ranges(self) -> list[Range]:
        return [
            Range(self.streams[number], start, end, self.marks.get(self.streams[number]))
            for number, start, end in self.splits
        ]


def ranges_between(start: StreamPlan, end: StreamPlan) -> list[Range]:
    """The ranges of `end`, if it directly follows `start`. A restarted first batch may have another start."""
    if start == end:
        return []
    if end.seq != start.seq + 1:
        raise OffsetError(
            f"batch {end.seq} does not follow batch {start.seq}: offsets were skipped or mixed; restore the "
            "checkpoint, or start a new one"
        )
    return end.ranges()
