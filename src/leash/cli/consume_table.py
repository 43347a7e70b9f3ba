"""Shows a running consumer: rows from two looks at its stats, as a table or as plain lines."""

from __future__ import annotations

from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from leash.consumer.stats import QueueStats, Stats


class Row(NamedTuple):
    """One queue, since the previous look."""

    queue: str
    depth: int | None
    rate: float
    """Messages handled per second."""
    share: float
    target: float
    window: int
    wait: float | None
    """Mean seconds in the buffer; None if nothing was handled."""
    failed: int
    note: str


def rows(before: Stats | None, now: Stats) -> list[Row]:
    return [
        _row(before.queues.get(name) if before else None, before, each, now)
        for name, each in now.queues.items()
    ]


def _row(then: QueueStats | None, before: Stats | None, each: QueueStats, now: Stats) -> Row:
    seconds = now.seconds - (before.seconds if before else 0.0)
    handled = each.handled - (then.handled if then else 0)
    waited = each.wait_seconds - (then.wait_seconds if then else 0.0)
    return Row(
        each.name,
        each.depth,
        handled / seconds if seconds > 0 else 0.0,
        each.share,
        each.target_share,
        each.window,
        waited / handled if handled else None,
        each.counts.get("failed", 0),
        _note(each),
    )


def _note(each: QueueStats) -> str:
    if not each.connected:
        return "not connected"
    if each.tokens is not None and each.tokens < 1:
        return "at its rate"
    parked = each.counts.get("parked", 0)
    return f"{parked} parked" if parked else ""


def summary(stats: Stats) -> str:
    """The consumer as a whole, in one line."""
    parts = [f"{stats.seconds:.0f} s", "connected" if stats.connected else "not connected"]
    if stats.round_trip is not None:
        parts.append(f"round trip {_time(stats.round_trip)}")
    parts.append(f"spread {stats.spread:.2f} of {stats.bound:.2f} rounds")
    if stats.reconnects:
        parts.append(f"{stats.reconnects} reconnects")
    if stats.blocked is not None:
        parts.append(f"blocked: {stats.blocked}")
    if stats.republish_trouble:
        parts.append(f"{stats.republishing} failed messages wait: {stats.republish_trouble}")
    return ", ".join(parts)


_COLUMNS = ("depth", "rate", "share", "target", "window", "wait", "failed")


def table(before: Stats | None, now: Stats) -> Table:
    made = Table(caption=Text(summary(now)), caption_justify="left")
    made.add_column("queue")
    for name in _COLUMNS:
        made.add_column(name, justify="right")
    made.add_column("")
    for row in rows(before, now):
        cells = _cells(row)
        made.add_row(Text(row.queue), *(cells[name] for name in _COLUMNS), row.note)
    return made


def lines(before: Stats | None, now: Stats) -> list[str]:
    """Lines for a log: one per queue, of `name=value`, and one for the consumer."""
    found = []
    for row in rows(before, now):
        cells = " ".join(f"{name}={value}" for name, value in _cells(row).items())
        found.append(f"queue={row.queue!r} {cells}" + (f" note={row.note!r}" if row.note else ""))
    return [*found, f"consumer={summary(now)!r}"]


def _cells(row: Row) -> dict[str, str]:
    return {
        "depth": "?" if row.depth is None else f"{row.depth:,}".replace(",", "_"),
        "rate": f"{row.rate:.1f}/s",
        "share": f"{row.share:.1%}",
        "target": f"{row.target:.1%}",
        "window": str(row.window),
        "wait": "-" if row.wait is None else _time(row.wait),
        "failed": str(row.failed),
    }


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.1f}s"
