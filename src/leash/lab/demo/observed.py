"""What was seen of a run: rows by queue, how the shares developed, and how many rows there were when."""

from __future__ import annotations

from dataclasses import dataclass, field

Point = tuple[float, int]
"""A time in seconds, and the rows by then."""


@dataclass
class Seen:
    """A run so far."""

    rows: dict[str, int]
    ready: dict[str, int] = field(default_factory=dict)
    """Messages that wait in the queues."""
    shares: list[dict[str, float]] = field(default_factory=list)
    """Percentages of all rows so far, after each batch."""
    points: list[Point] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.rows.values())

    def share(self, queue: str) -> float:
        """A queue's part of all rows, from 0 to 1."""
        return self.rows.get(queue, 0) / max(1, self.total)

    def add(self, rows: dict[str, int], when: float) -> None:
        """A batch, and when it came."""
        for name, count in rows.items():
            self.rows[name] += count
        if self.total:
            self.shares.append({name: 100 * self.share(name) for name in self.rows})
            self.points.append((when, self.total))


def steady(points: list[Point]) -> list[Point]:
    """Without the first batch of a pipeline, which takes seconds to warm up and leaves the bucket full: from
    the second one's beginning on, counted from 0.
    """
    if len(points) < 3:
        return []
    (_, warm), (start, _) = points[:2]
    return [(when - start, rows - warm) for when, rows in points[1:]]


def pace(points: list[Point]) -> float | None:
    """Rows per second from the first point to the last; None: there are too few to tell."""
    if len(points) < 2:
        return None
    (begin, before), (end, after) = points[0], points[-1]
    return (after - before) / max(1e-9, end - begin)
