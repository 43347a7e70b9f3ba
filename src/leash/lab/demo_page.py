"""The demo's report: shares and rate of one run of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leash.lab.plots import LANES, MEASURED, PUBLISHED
from leash.lab.report import about, figure, write_page

Plot = dict[str, Any]


def write(
    path: Path,
    quanta: Mapping[str, int],
    limit: tuple[int, int],
    shares: Sequence[Mapping[str, float]],
    granted: Sequence[tuple[float, int]],
    counted: Mapping[str, int],
) -> None:
    """Write the page. `limit` is rate and burst; `shares` are percentages after each batch; `granted` has the
    time of each batch's plan and the rows granted so far; `counted` are the rows in Parquet."""
    drawn = [_over_time(quanta, shares), _at_the_end(quanta, counted), _rate(*limit, granted)]
    places = "".join(figure(plot) for plot in drawn)
    heading = f"<h2>{sum(counted.values()):,} rows from {len(quanta)} queues</h2>"
    section = f'<section id="demo">{heading}<div class="plots">{places}</div></section>'
    lead = "Ten queues, one Spark pipeline to Parquet: shares by quantum, and a rate limit over all."
    write_page(path, "Leash demo", lead, [section], drawn, about())


def _over_time(quanta: Mapping[str, int], shares: Sequence[Mapping[str, float]]) -> Plot:
    batches = list(range(1, len(shares) + 1))
    data = [
        _line(name, colour, batches, [share[name] for share in shares])
        for name, colour in zip(quanta, LANES, strict=True)
    ]
    plot = _plot("Shares over time", "Each queue's share of all rows so far.", data, "batch", "share, %")
    plot["layout"]["showlegend"] = False
    plot["layout"]["xaxis"]["tickformat"] = ",d"
    plot["layout"]["annotations"] = [
        {"x": 1, "xref": "paper", "xanchor": "left", "y": share, "text": f" {name}", "showarrow": False}
        for name, share in shares[-1].items()
    ]
    return plot


def _at_the_end(quanta: Mapping[str, int], counted: Mapping[str, int]) -> Plot:
    names = list(quanta)
    whole, total = sum(quanta.values()), max(1, sum(counted.values()))
    targets = [100 * quantum / whole for quantum in quanta.values()]
    got = [100 * counted.get(name, 0) / total for name in names]
    data = [_bar("target", PUBLISHED, names, targets), _bar("in Parquet", MEASURED, names, got)]
    return _plot("Shares at the end", "What is in Parquet, against the quanta.", data, "", "share, %")


def _rate(rate: int, burst: int, granted: Sequence[tuple[float, int]]) -> Plot:
    """The rate from the second batch on: the first takes seconds, and leaves the bucket full."""
    warm = granted[0][1]
    start = granted[1][0]
    times = [at - start for at, _ in granted[1:]]
    limit = _line(f"{burst:,} + {rate:,} a second", PUBLISHED, times, [burst + rate * at for at in times])
    limit["line"]["dash"], limit["mode"] = "dot", "lines"
    data = [limit, _line("rows", MEASURED, times, [rows - warm for _, rows in granted[1:]])]
    caption = "Rows granted after the batch that warms Spark up, against the limit."
    return _plot("The rate limit", caption, data, "seconds", "rows")


def _line(name: str, colour: str, x: list[Any], y: list[Any]) -> Plot:
    line = {"color": colour, "width": 2}
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "line": line}


def _bar(name: str, colour: str, x: list[Any], y: list[Any]) -> Plot:
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}}


def _plot(title: str, caption: str, data: list[Plot], x: str, y: str) -> Plot:
    layout = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, "rangemode": "tozero"}}
    return {"title": title, "caption": caption, "data": data, "layout": layout}
