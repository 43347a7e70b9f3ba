"""The tables that `leash ring` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from leash.amqp import QueueState
from leash.partitions.layout import Layout
from leash.partitions.layout_store import Pass
from leash.partitions.plan import Plan

_BAR = 30
_MOST_MOVES = 12


def layout(found: Layout, states: Mapping[str, QueueState], awaited: Iterable[Pass] = ()) -> None:
    """Print a layout: a row for each queue."""
    typer.echo(f"{found.name}: {found.shape}, by {found.by}, {found.kind} queues")
    table = Table("queue", "weight", box=None, pad_edge=False)
    columns = ["slots"] if found.shape == "slots" else []
    for column in [*columns, "share", "ready", "consumers"]:
        table.add_column(column, justify="right")
    held, shares, weights = Counter(found.owners), found.shares(), dict(found.weights)
    for queue in found.all_queues:
        state = states.get(queue)
        table.add_row(
            queue,
            str(weights.get(queue, "retired")),
            *([str(held[queue])] if columns else []),
            f"{shares.get(queue, 0.0):.2%}",
            "" if state is None else str(state.ready),
            "" if state is None else str(state.consumers),
        )
    _print(table)
    if found.taking is not None:
        typer.echo(
            f"unfinished: a move of {len(found.taking.slots)} slots to {found.taking.target!r}; "
            f"`leash ring apply {found.name}` finishes it"
        )
    _waiting(awaited)


def _waiting(awaited: Iterable[Pass]) -> None:
    for number, queue in awaited:
        typer.echo(f"gates of move {number} wait until all older messages in {queue!r} are settled")


def difference(plan: Plan, keys: list[Any] | None) -> None:
    """Print what a plan does, and what it moves."""
    for line in plan.lines or ("nothing to do",):
        typer.echo(line)
    if plan.before is not None and not plan.nothing:
        change(plan.before, plan.after, keys)
    tell(plan.notes)


def tell(notes: Iterable[str]) -> None:
    """Print notes."""
    for note in notes:
        typer.echo(f"note: {note}")


def change(before: Layout, after: Layout, keys: list[Any] | None) -> None:
    """Print the share of keys that moves, and from where to where."""
    typer.echo(f"moves {before.moved(after):.1%} of all keys")
    if keys is not None:
        typer.echo(f"moves {before.moved(after, keys):.1%} of the sample's {len(keys)} messages")
    moves = before.moves_to(after)
    for move in moves[:_MOST_MOVES]:
        typer.echo(f"  {move.share:7.2%}  {move.source} -> {move.target}")
    if len(moves) > _MOST_MOVES:
        typer.echo(f"  and {len(moves) - _MOST_MOVES} smaller ones")


def skew(found: Layout, keys: list[Any], top: int) -> None:
    """Print a bar for each queue, with a mark where its share would end, then the hot keys."""
    counts = Counter(found.route_many(keys).tolist()) if keys else Counter()
    shares = found.shares()
    typer.echo(f"{len(keys)} keys, {len(set(keys))} different")
    most = max([*counts.values(), *(share * len(keys) for share in shares.values()), 1])
    table = Table("queue", box=None, pad_edge=False)
    for column in ("messages", "expected", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("")
    for queue, share in shares.items():
        expected = share * len(keys)
        ratio = f"{counts[queue] / expected:.2f}" if expected else ""
        bar = "█" * round(counts[queue] / most * _BAR)
        mark = round(expected / most * _BAR)
        bar = bar.ljust(mark) + "│" if len(bar) <= mark else bar[:mark] + "│" + bar[mark:]
        table.add_row(queue, str(counts[queue]), f"{expected:.0f}", ratio, bar)
    _print(table)
    hot = [(key, times) for key, times in Counter(keys).most_common(top) if times > 1]
    if hot:
        typer.echo("hot keys:")
    for key, times in hot:
        typer.echo(f"  {times / len(keys):6.2%}  {key}  ({times} messages, {found.route(key)})")


def reached(step: str) -> None:
    """Print the progress of an apply."""
    if step in ("declared", "written", "done"):
        typer.echo({"declared": "declared", "written": "moving slots ...", "done": "moved"}[step])


def _print(table: Table) -> None:
    """Print a table in full width: a pipe has no width, and names must not be cut."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
