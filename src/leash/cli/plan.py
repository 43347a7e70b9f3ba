"""`leash plan`: finds the cheapest setting that meets the goals, by trying them all in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from leash.cli.output import Json, need, say
from leash.errors import ConfigError
from leash.lab.figures import number
from leash.lab.plan import Outcome, Plan, Stream, cheapest, load, meets, numbers, stream

_DEFAULT = Plan()

File = Annotated[
    Path | None, typer.Argument(help="A description in TOML instead of the flags; see docs/lab.md.")
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        help="name=orders,work=4,rate=200,quantum=1-4,spread=0.5: work in ms, messages per second (without: "
        "the queue never runs dry), quanta to try, variation of the work. Repeat it for several queues.",
    ),
]


def plan(
    file: File = None,
    queue: Queues = None,
    work: Annotated[float, typer.Option(help="For a single queue: ms of work per message.")] = 10.0,
    rate: Annotated[float | None, typer.Option(help="For a single queue: messages per second.")] = None,
    round_trip: Annotated[float, typer.Option(help="Round trip to the broker, in ms.")] = _DEFAULT.round_trip,
    latency: Annotated[
        float | None, typer.Option(help="99 % of messages must be faster than this, in ms.")
    ] = None,
    windows: Annotated[str, typer.Option(help="Windows to try.")] = "1-64",
    workers: Annotated[str, typer.Option(help="Numbers of workers to try.")] = "1",
    master: Annotated[str, typer.Option(help="The Spark master to use.")] = "local[*]",
    report: Annotated[
        Path | None, typer.Option(help="Write the plot to this HTML file.", dir_okay=False)
    ] = None,
    json: Json = False,
) -> None:
    """Find the cheapest window, quanta and number of workers for your queues, by simulation on Spark."""
    need("pyspark", "spark", "leash plan")
    if report is not None:
        need("plotly", "lab", "--report")
    if file is not None:
        asked = load(file)
    else:
        streams = [stream(_fields(text)) for text in queue or []] or [Stream(work=work, rate=rate)]
        asked = Plan(
            tuple(streams), round_trip, numbers("windows", windows), numbers("workers", workers), latency
        )
    outcomes = _swept(asked, master)
    best = cheapest(asked, outcomes)
    if json:
        say(_told(outcomes, best))
    else:
        _show(asked, outcomes, best)
    if report is not None:
        _write(report, asked, outcomes, best)
        typer.echo(f"Report: {report}", err=json)
    if best is None:
        raise typer.Exit(1)


def _fields(text: str) -> dict[str, str]:
    """Parse name=a,work=4,quantum=1-4; a part without = continues the one before, as in quantum=1,2."""
    fields: dict[str, str] = {}
    last = None
    for part in text.split(","):
        key, found, value = part.partition("=")
        if found:
            last = key.strip()
            fields[last] = value.strip()
        elif last is None:
            raise ConfigError("queue", text, "name=value pairs like name=orders,work=4,rate=200")
        else:
            fields[last] += f",{part.strip()}"
    return fields


def _swept(asked: Plan, master: str) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from leash.lab.sweep import session, sweep

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting Spark", total=1.0)
        spark = session(master)
        try:
            bars.update(task, description=f"{sum(1 for _ in asked.settings()):,} settings")
            return sweep(spark, asked, lambda part: bars.update(task, completed=part))
        finally:
            spark.stop()


def _told(outcomes: list[Outcome], best: Outcome | None) -> dict[str, Any]:
    """Settings and what they do, one flat entry each."""
    rows = [
        {
            "workers": each.setting.workers,
            "window": each.setting.window,
            "quanta": list(each.setting.quanta),
            "messages_per_second": each.throughput,
            "busy_percent": each.busy,
            "median_ms": each.median,
            "slowest_ms": each.slowest,
            "kept_up": each.kept_up,
        }
        for each in outcomes
    ]
    return {"cheapest": None if best is None else rows[outcomes.index(best)], "tried": rows}


def _show(asked: Plan, outcomes: list[Outcome], best: Outcome | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if best is None:
        console.print(f"None of {len(outcomes):,} settings meets the goals. The closest:")
        near = sorted(outcomes, key=lambda each: (not each.kept_up, -each.busy, each.slowest))[:5]
    else:
        near = [each for each in outcomes if _beside(each, best)]
    table = Table(title=f"{len(outcomes):,} settings tried", title_justify="left")
    for column in ("workers", "window", "quanta", "messages/s", "busy %", "median ms", "99 % ms", ""):
        table.add_column(column, justify="right")
    for outcome in near:
        setting = outcome.setting
        style = "bold green" if outcome is best else "" if meets(asked, outcome) else "dim"
        table.add_row(
            str(setting.workers),
            str(setting.window),
            " ".join(map(str, setting.quanta)),
            *(number(value) for value in outcome[1:5]),
            "cheapest" if outcome is best else "" if meets(asked, outcome) else "not enough",
            style=style,
        )
    console.print(table)
    if best is not None:
        workers, window, quanta = best.setting
        console.print(
            f"Cheapest: {workers} worker{'s'[: workers > 1]}, window {window}, quanta {list(quanta)}"
        )


def _beside(outcome: Outcome, best: Outcome) -> bool:
    """True for the neighbours of the best: what a little more or less would do."""
    same = outcome.setting.workers == best.setting.workers and outcome.setting.quanta == best.setting.quanta
    return same and abs(outcome.setting.window - best.setting.window) <= 3


def _write(path: Path, asked: Plan, outcomes: list[Outcome], best: Outcome | None) -> None:
    from leash.lab.plots import LANES
    from leash.lab.report import about, figure, write_page

    drawn = [
        _plot("Latency, 99 % of messages", "ms", outcomes, best, "slowest", LANES),
        _plot("How busy the workers are", "%", outcomes, best, "busy", LANES),
    ]
    says = "No setting meets the goals."
    if best is not None:
        says = f"Cheapest: {best.setting.workers} workers, window {best.setting.window}."
    section = (
        f'<section id="plan"><h2>{says}</h2><div class="plots">{"".join(map(figure, drawn))}</div></section>'
    )
    lead = f"{len(outcomes):,} settings, a round trip of {asked.round_trip:g} ms, in virtual time."
    write_page(path, "Leash plan", lead, [section], drawn, about())


def _plot(
    title: str, unit: str, outcomes: list[Outcome], best: Outcome | None, what: str, colours: list[str]
) -> dict[str, Any]:
    """A line for each number of workers, at the best quanta (or the first)."""
    quanta = (best or outcomes[0]).setting.quanta
    data: list[dict[str, Any]] = []
    for index, workers in enumerate(sorted({outcome.setting.workers for outcome in outcomes})):
        points = [
            each for each in outcomes if each.setting.workers == workers and each.setting.quanta == quanta
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{workers} workers",
                "x": [each.setting.window for each in points],
                "y": [getattr(each, what) for each in points],
                "line": {"color": colours[(3 * index) % len(colours)]},
            }
        )
    if best is not None:
        star = {"size": 14, "symbol": "star", "color": "#f59e0b"}
        at = {"x": [best.setting.window], "y": [getattr(best, what)]}
        data.append({"type": "scatter", "mode": "markers", "name": "cheapest", "marker": star, **at})
    axes = {"xaxis": {"title": {"text": "window"}}, "yaxis": {"title": {"text": unit}, "rangemode": "tozero"}}
    return {"title": title, "caption": f"Quanta {list(quanta)}.", "data": data, "layout": axes}
