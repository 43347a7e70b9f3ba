"""The demo's report: the same load without Leash and with it, as far as the run got."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leash.lab import glossary
from leash.lab.demo.load import Load
from leash.lab.demo.observed import Point, Seen, pace, steady
from leash.lab.demo.replay import Replay
from leash.lab.demo.tables import NEXT
from leash.lab.plots import ALERT, LANES, MEASURED, PUBLISHED
from leash.lab.report import about, figure, see, write_page

Plot = dict[str, Any]

_WORDS = ("quantum", "round", "share", "prefetch", "rate and burst", "stream")


def _nothing() -> Seen:
    return Seen({})


@dataclass
class Story:
    """All that the report can tell; what did not happen stays empty."""

    load: Load
    plain: Seen = field(default_factory=_nothing)
    leash: Seen = field(default_factory=_nothing)
    """As the pipeline reported it."""
    counted: Seen = field(default_factory=_nothing)
    """As Parquet has it in the end."""
    replay: Replay | None = None
    rabbitmq: tuple[str, str] | None = None
    """The broker's version, and which one it is."""
    trouble: str | None = None
    """Why it did not finish."""

    @property
    def got(self) -> Seen:
        """With Leash: what is in Parquet, or what was reported if it did not get that far."""
        return self.counted if self.counted.rows else self.leash


def write(path: Path, story: Story) -> None:
    """Write the page."""
    drawn: list[Plot] = []
    sections = [_trouble(story.trouble), _at_a_glance(story)]
    for make in (_shares, _rate):
        text, plots = make(story)
        sections.append(text)
        drawn += plots
    sections += [_replayed(story.replay), _next(), glossary.section(_WORDS)]
    lead = "Ten queues, equally full, drained twice: by a plain consumer, and by Leash and Spark to Parquet."
    machine = about(*(story.rabbitmq or ()))
    write_page(path, "Leash demo", lead, [part for part in sections if part], drawn, machine)


def _trouble(reason: str | None) -> str:
    if reason is None:
        return ""
    return f'<p class="verdict bad">The demo did not come to its end: {html.escape(reason)}</p>'


def _at_a_glance(story: Story) -> str:
    """The difference, in two cards."""
    load = story.load
    cards = []
    for title, run, points in (
        ("Without Leash", story.plain, story.plain.points),
        ("With Leash", story.got, steady(story.leash.points)),
    ):
        if run.total:
            worst = max(load.quanta, key=lambda name: abs(run.share(name) / load.target(name) - 1))
            off = run.share(worst) / load.target(worst) - 1
            rate = pace(points)
            lines = [
                f"Largest error of a share: {off:+.1%} ({worst})",
                f"{rate:,.0f} messages per second; the limit is {load.rate:,}" if rate is not None else "",
            ]
            cards.append(
                f"<div><b>{title}</b>{''.join(f'<span>{line}</span>' for line in lines if line)}</div>"
            )
    return f'<div class="scale">{"".join(cards)}</div>' if cards else ""


def _shares(story: Story) -> tuple[str, list[Plot]]:
    load = story.load
    drawn = [_at_the_end(story)] if story.plain.total else []
    for title, run, plain in (("Without Leash", story.plain, True), ("With Leash", story.leash, False)):
        if run.shares:
            drawn.append(_over_time(title, load, run, plain))
    if not drawn:
        return "", []
    sentence = (
        "The grey bars are what each queue should get. Without Leash all queues get the same, whatever they "
        "should; with Leash each bar is as high as its grey one."
    )
    return _section("shares", "Who gets how much", sentence, drawn), drawn


def _at_the_end(story: Story) -> Plot:
    names = list(story.load.quanta)
    data = [_bar("target", PUBLISHED, names, [100 * story.load.target(name) for name in names])]
    for title, run, colour in (("without Leash", story.plain, ALERT), ("with Leash", story.got, MEASURED)):
        if run.total:
            data.append(_bar(title, colour, names, [100 * run.share(name) for name in names]))
    caption = f"Each queue's share of about {story.load.enough:,} messages, against its target."
    return _plot("Shares at the end", caption, data, "", "share, %", barmode="group")


def _over_time(title: str, load: Load, run: Seen, plain: bool) -> Plot:
    batches = list(range(1, len(run.shares) + 1))
    data = [
        _line(name, colour, batches, [share[name] for share in run.shares])
        for name, colour in zip(load.quanta, LANES, strict=True)
    ]
    what = "after each file that the plain consumer wrote" if plain else "after each batch of the pipeline"
    plot = _plot(
        f"{title}: shares over time", f"Each queue's share of all rows, {what}.", data, "", "share, %"
    )
    plot["layout"]["showlegend"] = False
    plot["layout"]["xaxis"] |= {"tickformat": ",d", "title": {"text": "file" if plain else "batch"}}
    plot["layout"]["yaxis"]["range"] = [0, 110 * max(load.quanta.values()) / load.round]
    if not plain:
        plot["layout"]["annotations"] = [
            {"x": 1, "xref": "paper", "xanchor": "left", "y": share, "text": f" {name}", "showarrow": False}
            for name, share in run.shares[-1].items()
        ]
    return plot


def _rate(story: Story) -> tuple[str, list[Plot]]:
    load = story.load
    runs = {
        "without Leash": (ALERT, _from_zero(story.plain.points)),
        "with Leash": (MEASURED, steady(story.leash.points)),
    }
    ends = [points[-1][0] for _, points in runs.values() if points]
    if not ends:
        return "", []
    end = max(ends)
    label = f"limit: {load.burst:,} + {load.rate:,} per second"
    limit = _line(label, PUBLISHED, [0, end], [load.burst, load.burst + load.rate * end])
    limit["line"]["dash"], limit["mode"] = "dot", "lines"
    data = [limit]
    for name, (colour, points) in runs.items():
        if points:
            data.append(_line(name, colour, [at for at, _ in points], [rows for _, rows in points]))
    caption = "Messages taken after the first file, or the first batch, which takes longer."
    plot = _plot("Messages over time, against the limit", caption, data, "seconds", "messages")
    sentence = (
        f"Say that the next system takes {load.rate:,} messages per second. The red line goes straight up "
        "through the dotted limit; the orange one stays below it, and as close to it as it may."
    )
    return _section("rate", "How fast it goes", sentence, [plot]), [plot]


def _from_zero(points: list[Point]) -> list[Point]:
    return [(when - points[0][0], rows - points[0][1]) for when, rows in points]


def _replayed(told: Replay | None) -> str:
    if told is None:
        return ""
    head = "<thead><tr><th></th><th>rows</th><th>seconds</th></tr></thead>"
    rows = [f"<tr><th>published to the stream</th><td>{told.published:,}</td><td></td></tr>"]
    for name, (counts, seconds) in zip(("read from it", "read again"), told.reads, strict=True):
        rows.append(f"<tr><th>{name}</th><td>{sum(counts.values()):,}</td><td>{seconds:.1f}</td></tr>")
    table = f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
    sentence = "The same number three times: reading a stream takes nothing away, so a job can be repeated."
    return f'<section id="stream"><h2>The result in a stream</h2>{see(sentence)}{table}</section>'


def _next() -> str:
    items = "".join(f"<li><code>{html.escape(what)}</code>: {html.escape(why)}</li>" for what, why in NEXT)
    return f'<section id="next"><h2>Three things to try next</h2><ol>{items}</ol></section>'


def _section(name: str, title: str, sentence: str, drawn: list[Plot]) -> str:
    """The first plot has a row of its own."""
    rows = [drawn[:1], drawn[1:]] if len(drawn) > 1 else [drawn]
    plots = "".join(f'<div class="plots">{"".join(map(figure, row))}</div>' for row in rows)
    return f'<section id="{name}"><h2>{title}</h2>{see(sentence)}{plots}</section>'


def _line(name: str, colour: str, x: list[Any], y: list[Any]) -> Plot:
    line = {"color": colour, "width": 2}
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "line": line}


def _bar(name: str, colour: str, x: list[Any], y: list[Any]) -> Plot:
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}}


def _plot(title: str, caption: str, data: list[Plot], x: str, y: str, **layout: Any) -> Plot:
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, "rangemode": "tozero"}}
    return {"title": title, "caption": caption, "data": data, "layout": {**axes, **layout}}
