"""What the demo shows in the terminal."""

from __future__ import annotations

import os
import shutil
import sys

from rich.table import Table

from leash.lab.demo.load import Load
from leash.lab.demo.observed import Seen
from leash.lab.demo.replay import Replay

NEXT = (
    ("leash lab fair", "the ten queues without Spark, beside published figures"),
    ("leash lab tenants", "one noisy customer, 99 quiet ones: who waits?"),
    ("docs/getting-started.md", "your own consumer in ten minutes"),
)
"""Three things to try next: a command or a page, and what it shows."""


def live(seen: Seen, load: Load, note: str) -> Table:
    """While the pipeline runs."""
    table = Table(
        title=f"With Leash: {seen.total:,} of {load.enough:,} rows in Parquet", caption=note or None
    )
    for column in ("queue", "quantum", "waiting", "rows", "share", "target", ""):
        table.add_column(column, justify="left" if column in ("queue", "") else "right")
    for name, quantum in load.quanta.items():
        share = seen.share(name)
        numbers = [f"{seen.ready.get(name, load.fill):,}", f"{seen.rows[name]:,}", f"{share:.1%}"]
        table.add_row(name, str(quantum), *numbers, f"{load.target(name):.1%}", _bar(share, "cyan"))
    return table


def result(load: Load, plain: Seen, counted: Seen) -> Table:
    """Both runs beside each other, against the targets."""
    table = Table(title="Each queue's share of the work, against its target", title_justify="left")
    for column in ("queue", "target", "without Leash", "off by", "with Leash", "off by"):
        table.add_column(column, justify="left" if column == "queue" else "right")
    for name in load.quanta:
        target = load.target(name)
        cells = []
        for run in (plain, counted):
            off = run.share(name) / target - 1
            colour = "green" if abs(off) < 0.05 else "red"
            cells += [f"{run.share(name):.2%}", f"[{colour}]{off:+.1%}[/]"]
        table.add_row(name, f"{target:.2%}", *cells)
    return table


def rates(load: Load, plain: float | None, leash: float | None) -> str:
    """Both rates, beside the limit."""

    def shown(rate: float | None) -> str:
        return "unknown" if rate is None else f"{rate:,.0f}"

    return (
        f"Messages per second: {shown(plain)} without Leash, {shown(leash)} with it; "
        f"the limit is {load.rate:,}, after a burst of {load.burst:,}."
    )


def replayed(told: Replay | None) -> str:
    """What the stream showed."""
    if told is None:
        return "Stream: this broker has none; enable the plugin rabbitmq_stream to see a replay."
    counts = [sum(counts.values()) for counts, _ in told.reads]
    return (
        f"Stream: {told.published:,} rows published, {counts[0]:,} read, and {counts[1]:,} read again: "
        "reading takes nothing away."
    )


def next_steps() -> str:
    """Three things to try next."""
    steps = [(what.replace("leash ", f"{_command()} ", 1), why) for what, why in NEXT]
    width = max(len(what) for what, _ in steps)
    lines = [f"  {number}. {what:{width}}  {why}" for number, (what, why) in enumerate(steps, 1)]
    return "Three things to try next:\n" + "\n".join(lines)


def _command() -> str:
    """`leash` as this user calls it: `make demo` runs the one of its own environment."""
    called = sys.argv[0]
    found = shutil.which("leash")
    return called if called.endswith("/leash") and found != os.path.abspath(called) else "leash"


def _bar(share: float, colour: str) -> str:
    return f"[{colour}]{'█' * round(150 * share)}[/]"
