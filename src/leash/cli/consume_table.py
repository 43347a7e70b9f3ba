"""Shows a running consumer: rows from looks at its stats, as a table or as one line for a log.

The table fits the terminal, however many queues there are: queues with trouble come first, then the busiest,
and a last row counts those that do not fit. Totals are always shown.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.table import Table
from rich.text import Text

from leash import logfmt
from leash.cli.looks import Looks, Wrong
from leash.consumer.stats import QueueStats, Stats

_NAME = 20
"""A name that is longer is cut in the middle: what tells queues apart is mostly at its ends."""
_CUT_AT = (0.5, 0.7, 0.3, 0.9, 0.1)
_AROUND = 8
"""Lines of the table that are not queues: borders, heads, the rest, the totals and the caption."""
_LATE = 1.0  # seconds in the buffer, or in a handler's hands, that are worth a word
_TOLD = 3  # troubled queues that a log line names


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
    trouble: int
    """0: none; the higher the worse."""


def rows(looks: Looks) -> list[Row]:
    """The troubled first, then the busiest; equal ones as the consumer has them."""
    found = [_row(looks, each) for each in looks.now.queues.values()]
    return sorted(found, key=lambda row: (-row.trouble, -row.rate, -(row.depth or 0)))


def _row(looks: Looks, each: QueueStats) -> Row:
    before, now = looks.before, looks.now
    then = before.queues.get(each.name) if before else None
    seconds = now.seconds - (before.seconds if before else 0.0)
    handled = each.handled - (then.handled if then else 0)
    waited = each.wait_seconds - (then.wait_seconds if then else 0.0)
    trouble, note = _note(each, looks.lately(each.name), now)
    return Row(
        each.name,
        each.depth,
        handled / seconds if seconds > 0 else 0.0,
        each.share,
        each.target_share,
        each.window,
        waited / handled if handled else None,
        each.counts.get("failed", 0),
        note,
        trouble,
    )


def _note(each: QueueStats, lately: Wrong, now: Stats) -> tuple[int, str]:
    """What is the matter with a queue, and how bad it is."""
    if each.why == "paused":
        return 1, "paused"
    if not each.connected and not now.stopping:
        return 6, "not consumed"
    if each.name in now.unfair:
        return 5, "unfair"
    if each.running is not None and each.running > 10 * _LATE:
        return 4, f"busy {each.running:.0f} s"
    if each.breaker not in ("", "closed"):
        return 4, "breaker open"
    if lately.parked:
        return 3, f"{lately.parked} parked"
    if lately.failed:
        return 3, f"{lately.failed} failed"
    if each.why == "throttled" or (each.tokens is not None and each.tokens < 1):
        return 2, "at its rate"
    if each.why == "no permit":
        return 2, "no permit"
    return 0, ""


def _parked(stats: Stats) -> int:
    """Since the start: some of them may have been sent back or purged."""
    return sum(each.counts.get("parked", 0) for each in stats.queues.values())


def summary(stats: Stats, ended: str = "") -> str:
    """The consumer as a whole, in one line; `ended` is how it ended."""
    state = "stopping" if stats.stopping else "connected" if stats.connected else "NOT CONNECTED"
    parts = [f"{stats.seconds:.0f} s", ended or state]
    if stats.round_trip is not None and not ended:
        parts.append(f"round trip {_time(stats.round_trip)}")
    parts.append(f"spread {stats.spread:.2f} of {stats.bound:.2f} rounds")
    if parked := _parked(stats):
        parts.append(f"{parked} parked since start")
    if stats.reconnects:
        parts.append(f"{stats.reconnects} reconnects")
    if stats.blocked is not None:
        parts.append(f"blocked: {stats.blocked}")
    if stats.republish_trouble:
        parts.append(f"{stats.republishing} failed messages wait: {stats.republish_trouble}")
    return ", ".join(parts)


_COLUMNS = ("depth", "rate", "share", "target", "window", "wait", "failed")


def table(looks: Looks, width: int = 80, height: int = 24, ended: str = "") -> Group:
    """As large as fits."""
    found = rows(looks)
    room = max(1, height - _AROUND)
    shown = found if len(found) <= room else found[:room]
    made = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    made.add_column("queue", no_wrap=True)
    tight = width < 100
    columns = [name for name in _COLUMNS if not (tight and name == "window")]
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    name_width = _NAME if tight else width - 74
    for row, name in zip(shown, cuts([row.queue for row in shown], name_width), strict=True):
        cells = _cells(row)
        style = "bold red" if row.trouble > 2 else "yellow" if row.trouble else ""
        made.add_row(Text(name), *(cells[each] for each in columns), row.note, style=style)
    if len(found) > len(shown):
        rest = found[len(shown) :]
        made.add_row(Text(f"... {len(rest)} more"), *_totals(rest, columns), style="dim")
    made.add_section()
    made.add_row(Text(f"all {len(found)}"), *_totals(found, columns), _troubled(found), style="bold")
    return Group(made, Text(cut(summary(looks.now, ended), width), no_wrap=True))


def _totals(found: list[Row], columns: list[str]) -> list[str]:
    cells = {
        "depth": _count(sum(row.depth or 0 for row in found)),
        "rate": f"{sum(row.rate for row in found):.1f}",
        "share": f"{sum(row.share for row in found):.0%}",
        "target": f"{sum(row.target for row in found):.0%}",
        "window": _count(sum(row.window for row in found)),
        "wait": _mean_wait(found),
        "failed": _count(sum(row.failed for row in found)),
    }
    return [cells[name] for name in columns]


def _mean_wait(found: list[Row]) -> str:
    rate = sum(row.rate for row in found if row.wait is not None)
    return _time(sum(row.wait * row.rate for row in found if row.wait is not None) / rate) if rate else "-"


def _troubled(found: list[Row]) -> str:
    count = sum(row.trouble > 0 for row in found)
    return f"{count} troubled" if count else ""


def cuts(names: list[str], most: int) -> list[str]:
    """Names that fit, cut at the same place: where the fewest of them look alike, best in the middle."""
    tried = [[cut(name, most, part) for name in names] for part in _CUT_AT]
    return max(tried, key=lambda found: len(set(found)))


def cut(name: str, most: int, part: float = 0.5) -> str:
    """A name that fits into this many columns of a terminal: something is left out, `part` of the way through
    it. Control characters are shown escaped.
    """
    shown = "".join([char if char.isprintable() else ascii(char)[1:-1] for char in name])
    if cell_len(shown) <= most:
        return shown
    head = int((most - 1) * part)
    tail = shown[-most:]
    while cell_len(tail) > most - 1 - head:
        tail = tail[1:]
    return f"{set_cell_size(shown, head).rstrip()}…{tail}"


def line(looks: Looks) -> str:
    """For a log: the consumer as a whole, and the queues that somebody should look at."""
    now, found = looks.now, rows(looks)
    troubled = [row for row in found if row.trouble]
    fields: dict[str, object] = {
        "event": "summary",
        "seconds": round(now.seconds),
        "connected": now.connected,
        "queues": len(found),
        "depth": sum(row.depth or 0 for row in found),
        "rate": f"{sum(row.rate for row in found):.1f}",
        "handled": sum(each.handled for each in now.queues.values()),
        "in_work": sum(each.in_work for each in now.queues.values()),
        "wait": _mean_wait(found),
        "failed": sum(row.failed for row in found),
        "parked": _parked(now),
        "spread": f"{now.spread:.2f}",
        "bound": f"{now.bound:.2f}",
        "troubled": len(troubled),
    }
    if now.blocked is not None:
        fields["blocked"] = now.blocked
    if now.republish_trouble:
        fields["waiting"] = now.republish_trouble
    for row in troubled[:_TOLD]:
        fields.setdefault("worst", "")
        fields["worst"] = f"{fields['worst']}{', ' if fields['worst'] else ''}{row.queue}: {row.note}"
    return logfmt.line(**fields)


def lines(looks: Looks) -> list[str]:
    """Lines for a log: one per queue, and the summary."""
    found = []
    for row in rows(looks):
        note: dict[str, object] = {"note": row.note} if row.note else {}
        cells = _cells(row) | {"depth": "?" if row.depth is None else str(row.depth)}
        found.append(logfmt.line(event="queue", queue=row.queue, **cells, **note))
    return [*found, line(looks)]


def _cells(row: Row) -> dict[str, str]:
    return {
        "depth": "?" if row.depth is None else _count(row.depth),
        "rate": f"{row.rate:.1f}",
        "share": f"{row.share:.1%}",
        "target": f"{row.target:.1%}",
        "window": str(row.window),
        "wait": "-" if row.wait is None else _time(row.wait),
        "failed": _count(row.failed),
    }


def _count(number: int) -> str:
    """In five characters at most, until it is absurd."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 10 * size:
            return f"{number / size:.0f}{unit}" if number >= 100 * size else f"{number / size:.1f}{unit}"
    return str(number)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.1f}s"
