"""`leash lab`: runs experiments and prints their figures."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from leash.cli import which
from leash.cli.output import need
from leash.lab.figures import TURNAROUND, Experiment, Result, Run, bounds, dumps, number
from leash.management import Management

if TYPE_CHECKING:
    from leash.lab.experiments import Measure

lab_app = typer.Typer(
    help="Repeat the experiments of five documents: published, simulated and measured figures side by side.",
    no_args_is_help=True,
)

Simulate = Annotated[bool, typer.Option("--simulate", help="Virtual time only: no broker, a few seconds.")]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json", help="Write the figures to this file; - prints them instead of tables.", dir_okay=False
    ),
]
Report = Annotated[
    Path | None, typer.Option("--report", help="Write the HTML report to this file.", dir_okay=False)
]


@lab_app.command()
def fair(simulate: Simulate = False, json: Json = None, report: Report = None) -> None:
    """Ten queues with quanta 4 to 40: shares, deviation, spread in rounds."""
    run(["fair"], simulate, json, report)


@lab_app.command()
def qos(simulate: Simulate = False, json: Json = None, report: Report = None) -> None:
    """A fast and a slow worker, with prefetch 0 and 1, and on autopilot."""
    run(["qos"], simulate, json, report)


@lab_app.command()
def codel(simulate: Simulate = False, json: Json = None, report: Report = None) -> None:
    """Windows behind a slow network: how busy, how long messages wait, and what CoDel does about it."""
    run(["codel"], simulate, json, report)


@lab_app.command()
def rate(simulate: Simulate = False, json: Json = None, report: Report = None) -> None:
    """One message a second with bursts of five, and two queues under one total."""
    run(["rate"], simulate, json, report)


@lab_app.command(name="hash")
def hash_(simulate: Simulate = False, json: Json = None, report: Report = None) -> None:
    """100,000 messages through a consistent hash exchange: predicted, measured, misrouted."""
    run(["hash"], simulate, json, report)


@lab_app.command()
def tenants(simulate: Simulate = False, json: Json = None, report: Report = None) -> None:
    """A noisy tenant and 99 quiet ones: one FIFO against lanes by tenant. Not part of `all`."""
    run(["tenants"], simulate, json, report)


@lab_app.command(name="all")
def all_(
    simulate: Simulate = False, json: Json = Path("leash-lab.json"), report: Report = Path("leash-lab.html")
) -> None:
    """Run all five, and write a report."""
    run(["fair", "qos", "codel", "rate", "hash"], simulate, json, report)


def run(names: Sequence[str], simulate: bool, json: Path | None, report: Path | None) -> None:
    """Run experiments; exit status 1 if a figure is out of its bounds."""
    from leash.lab import experiments
    from leash.lab import report as pages
    from leash.lab.quiet import QUIET

    if report is not None:
        need("plotly", "lab", "--report")
    printed = json == Path("-")
    chosen = experiments.chosen(names)
    results: list[Result] = []
    with contextlib.ExitStack() as stack:
        node = None if simulate else stack.enter_context(node_of_ours())
        for experiment, measure in chosen:
            results.append(_result(experiment, measure, node))
            machine = pages.about(node.version if node else None, node.shown if node else "")
            machine |= _away(results)
            # What has ended is kept, whatever becomes of the next one.
            if json is not None and not printed:
                json.write_text(dumps(results, machine))
            if report is not None:
                pages.write(report, results, machine)
            if not printed:
                _show(results[-1])
    if printed:
        typer.echo(dumps(results, machine))
    elif json is not None:
        typer.echo(f"Figures: {json}")
    if report is not None:
        typer.echo(f"Report: {report}", err=printed)
    faults = [fault for result in results for fault in result.faults()]
    for fault in faults:
        typer.echo(f"out of bounds: {fault}", err=True)
    away = max([result.measured.away for result in results if result.measured], default=0.0)
    if away > QUIET:
        typer.echo(f"{away:.1%} of the time was lost on this machine: no figure in ms is certain.", err=True)
    typer.echo(f"{pages.counted(results)}.", err=printed)
    if faults:
        raise typer.Exit(1)


def _away(results: Sequence[Result]) -> dict[str, str]:
    """How much of the time the machine did something else, if it did."""
    measured = [result.measured for result in results if result.measured]
    away = max([each.away for each in measured], default=0.0)
    again = sum([each.again for each in measured])
    if not away and not again:
        return {}
    return {"away": f"{away:.1%} of the time; {again} measurements repeated because of it"}


class Node(NamedTuple):
    """A broker to measure on; `shown` has no password."""

    uri: str
    management: Management
    version: str
    shown: str


@contextlib.contextmanager
def node_of_ours() -> Iterator[Node]:
    """LEASH_URI's broker, the private node if it runs, or a temporary one."""
    from leash.broker import Broker

    found = which.known()
    if found is not None:
        yield _node(*found)
        return
    with tempfile.TemporaryDirectory(prefix="leash-lab-") as folder:
        typer.echo("Starting RabbitMQ (about 10 s) ...", err=True)
        with Broker(Path(folder) / "broker", owned=True) as node:
            yield _node(node.uri, node.management, "a private node")


def _node(uri: str, management: Management, shown: str) -> Node:
    from leash.amqp import connect

    with connect(uri, name="leash lab") as connection:
        version = ".".join(map(str, connection.version))
    return Node(uri, management, version, shown)


def _result(experiment: Experiment, measure: Measure, node: Node | None) -> Result:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from leash.lab.live import place, turnaround

    columns = (TextColumn("{task.description:18}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(f"{experiment.name}: simulated", total=1.0)

        def simulate(took: int) -> Run:
            return experiment.simulate(lambda part: bars.update(task, completed=part), took)

        if node is None:
            return Result(experiment, simulate(TURNAROUND))
        with place(node.uri, node.management) as uri:
            simulated = simulate(turnaround(uri))
            live = bars.add_task(f"{experiment.name}: measured", total=1.0)
            measured = measure(uri, lambda part: bars.update(live, completed=part))
    return Result(experiment, simulated, measured)


def _show(result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=result.experiment.title, title_justify="left")
    table.add_column("figure")
    for column in ("published", "simulated", "measured", "bounds"):
        table.add_column(column, justify="right")
    for claim, simulated, measured in result.rows():
        cells = []
        for value in (simulated, measured):
            good = value is None or claim.low <= value <= claim.high
            cells.append(number(value) if good else f"[bold red]{number(value)}[/]")
        name = f"{claim.name} [dim]{claim.unit}[/]"
        table.add_row(name, number(claim.published), *cells, f"[dim]{bounds(claim)}[/]")
    passes, misses = result.counted()
    table.caption = f"{passes} passed, {misses} missed"
    table.caption_justify = "left"
    Console().print(table)
