"""The report's plots: plain plotly figures as JSON. The page sets the colours of text and grid."""

from __future__ import annotations

from typing import Any

from leash.lab import codel, fair, hashing, plot_tenants, rate
from leash.lab.figures import Result, Run
from leash.policies.window.credit import standing_wait, utilisation

Plot = dict[str, Any]

PUBLISHED, SIMULATED, MEASURED = "#8b93a1", "#3b82f6", "#f97316"
"""Grey for published, blue for virtual time, orange for the real broker; on light and on dark."""

ALERT = "#e11d48"
LANES = [
    *("#7c3aed", "#4f46e5", "#2563eb", "#0284c7", "#0891b2"),
    *("#0d9488", "#16a34a", "#65a30d", "#ca8a04", "#ea580c"),
]


def plots(result: Result) -> list[Plot]:
    """The plots of one experiment."""
    return _DRAWN[result.experiment.name](result)


def _plot(title: str, caption: str, data: list[Plot], x: str, y: str, **layout: Any) -> Plot:
    axes = {
        "xaxis": {"title": {"text": x}, **layout.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **layout.pop("yaxis", {})},
    }
    return {"title": title, "caption": caption, "data": data, "layout": {**axes, **layout}}


def _columns(result: Result) -> list[tuple[str, str, Run]]:
    found = [("simulated", SIMULATED, result.simulated), ("measured", MEASURED, result.measured)]
    return [(name, colour, run) for name, colour, run in found if run is not None]


def _bar(name: str, colour: str, x: list[Any], y: list[Any]) -> Plot:
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}}


def _line(name: str, colour: str, x: list[Any], y: list[Any], **more: Any) -> Plot:
    line = {"color": colour, "width": 2, **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line, **more}


def _dots(name: str, colour: str, x: list[Any], y: list[Any], symbol: str = "circle", **more: Any) -> Plot:
    marker = {"color": colour, "size": 9, "symbol": symbol, "line": {"width": 1, "color": "#ffffff"}}
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker, **more}


# --- fair ---


def _fair(result: Result) -> list[Plot]:
    column, _, run = _columns(result)[-1]
    return [_shares(column, run), _deviations(result)]


def _shares(column: str, run: Run) -> Plot:
    shares = run.series["shares"]
    step = fair.TOTAL // 120
    served = [fair.ROUND + step * index for index in range(len(shares))]
    data = []
    for lane, colour in enumerate(LANES):
        target = 100 * fair.QUANTA[lane] / fair.ROUND
        name = f"{fair.NAMES[lane]} ({fair.QUANTA[lane]})"
        data.append(_line(name, colour, served, [row[lane] for row in shares], showlegend=False))
        ends = {"x": [served[0], served[-1]], "y": [target, target]}
        dotted = {"color": PUBLISHED, "width": 1, "dash": "dot"}
        data.append(
            {"type": "scatter", "mode": "lines", "line": dotted, "showlegend": False, **ends, **_QUIET}
        )
    published = [100 * count / fair.TOTAL for count in fair.PUBLISHED]
    end = [served[-1]] * len(published)
    data.append(_dots("published, at the end", PUBLISHED, end, published, "diamond"))
    return _plot(
        "Shares over time, against their targets",
        f"Each line is a queue's share of all that was served so far ({column}); dotted: its quantum's.",
        data,
        "messages served",
        "share, %",
        yaxis={"rangemode": "tozero"},
        annotations=[
            {"x": 1, "xref": "paper", "xanchor": "left", "y": share, "text": f" {name}", "showarrow": False}
            for name, share in zip(fair.NAMES, published, strict=True)
        ],
    )


def _deviations(result: Result) -> Plot:
    data = [_bar("published", PUBLISHED, fair.NAMES, fair.deviation(fair.PUBLISHED))]
    for name, colour, run in _columns(result):
        data.append(_bar(f"Leash, {name}", colour, fair.NAMES, run.series["deviation"]))
    _, _, run = _columns(result)[-1]
    label = f"published loop, window {fair.SMALL}"
    data.append(_line(label, ALERT, fair.NAMES, run.series["starved"], mode="lines+markers"))
    return _plot(
        "How far each share is off",
        f"The red line is the published loop, made to run with a window of {fair.SMALL} and 40 ms each way: "
        "queues with larger quanta run dry here and lose their turn, and the others gain what p0 gained in "
        "the published table.",
        data,
        "queue",
        "off its target, %",
        barmode="group",
    )


# --- qos ---


def _qos(result: Result) -> list[Plot]:
    settings = ["prefetch 0", "prefetch 1", "autopilot"]
    ticks = [f"{who},<br>{setting}" for setting in settings for who in ("fast", "slow")]
    published = {claim.name: claim.published for claim in result.experiment.claims}
    names = [f"{setting}: {who}" for setting in settings for who in ("fast", "slow")]
    data = [_bar("published", PUBLISHED, ticks, [published[name] for name in names])]
    for column, colour, run in _columns(result):
        data.append(_bar(column, colour, ticks, [run.values[name] for name in names]))
    done = _plot(
        "Who got the work in ten seconds",
        "With prefetch 0 both get the same number of messages, and the slow one's fill the pool.",
        data,
        "",
        "messages done (log scale)",
        barmode="group",
        yaxis={"type": "log", "dtick": 1},
    )
    data = []
    for column, colour, run in _columns(result):
        held = run.series["held"]
        data.append(_line(column, colour, [at for at, _ in held], [count for _, count in held]))
    held = _plot(
        "What the slow worker sits on",
        "Messages delivered to it and not yet done, on autopilot. The window starts at 16 and is looked at "
        "again after some ten messages: at one a second, that is the whole experiment.",
        data,
        "seconds",
        "messages",
        yaxis={"rangemode": "tozero"},
    )
    return [done, held]


# --- codel ---


def _codel(result: Result) -> list[Plot]:
    found = [_windows(result, 4, "busy"), _windows(result, 40, "wait")]
    if result.simulated is not None:
        found += [_jump(result.simulated), _sojourn(result.simulated)]
    return found


def _windows(result: Result, work: int, what: str) -> Plot:
    """Wait and busy time against the window, for one service time; formulas as lines."""
    at = 3 if what == "busy" else 4
    windows = list(range(1, 61))
    if what == "busy":
        model = [100 * utilisation(window, 100, work) for window in windows]
    else:
        model = [float(standing_wait(window, 100, work)) for window in windows]
    cases = [case for case in codel.CASES if case.work == work and case.trip == 100]
    stated = [(case.window, case.busy if what == "busy" else case.wait) for case in cases]
    stated = [(window, value) for window, value in stated if value is not None]
    data = [_line("formula", "#a855f7", windows, model, line={"dash": "dot"})]
    if result.simulated is not None:
        curve = result.simulated.series["curve"][work]
        values = [point[at - 2] for point in curve]
        data.append(_line("simulated", SIMULATED, [point[0] for point in curve], values))
    data.append(_dots("published", PUBLISHED, [w for w, _ in stated], [v for _, v in stated], "diamond"))
    if result.measured is not None:
        rows = [row for row in result.measured.series["cases"] if row[0] == work and row[1] == 100]
        data.append(_dots("measured", MEASURED, [row[2] for row in rows], [row[at] for row in rows]))
    best = codel.AUTOPILOT[work]
    title = "How busy the worker is" if what == "busy" else "How long messages wait in the buffer"
    return _plot(
        f"{title}: {work} ms of work",
        f"50 ms each way. {best} is the least window that keeps the worker busy: the autopilot's choice.",
        data,
        "window",
        "busy, %" if what == "busy" else "wait, ms",
        yaxis={"rangemode": "tozero"},
        shapes=[_upright(best)],
    )


def _jump(run: Run) -> Plot:
    waits, windows = run.series["jump"]["waits"], run.series["jump"]["windows"]
    steps = [*windows, (waits[-1][0], windows[-1][1])]
    data = [
        _line("wait in the buffer, ms", SIMULATED, [at for at, _ in waits], [wait for _, wait in waits]),
        _line(
            "window",
            MEASURED,
            [at for at, _ in steps],
            [window for _, window in steps],
            line={"shape": "hv"},
            yaxis="y2",
        ),
    ]
    return _plot(
        "Shrinking the window: the autopilot when work gets ten times slower",
        "Work takes 4 ms, then 40 ms from second 4 on (simulated). The window goes to 26, then to 4; not one "
        "message is returned.",
        data,
        "seconds",
        "wait, ms",
        yaxis={"rangemode": "tozero"},
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "rangemode": "tozero",
            "tickmode": "auto",
            "title": {"text": "window"},
        },
        shapes=[_upright(4)],
    )


def _sojourn(run: Run) -> Plot:
    states = run.series["codel"]
    kept = [(at, wait) for at, shed, wait in states if not shed]
    shed = [(at, wait) for at, shed, wait in states if shed]
    small = {"size": 5, "line": {"width": 0}}
    data = [
        {
            **_dots("at rest", SIMULATED, [at for at, _ in kept], [wait for _, wait in kept]),
            "marker": {"color": SIMULATED, **small},
        },
        {
            **_dots("shedding", ALERT, [at for at, _ in shed], [wait for _, wait in shed]),
            "marker": {"color": ALERT, **small},
        },
    ]
    target = codel.TARGET / 1e6
    return _plot(
        "CoDel's state, with nacks as published",
        "Window 51, 40 ms of work, target 100 ms: every head that CoDel judges, and whether it was shedding. "
        "It never leaves that state for long, because what it returns comes back.",
        data,
        "seconds",
        "the head waited, ms",
        yaxis={"rangemode": "tozero"},
        shapes=[
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target, "line": _THIN}
        ],
    )


# --- rate and hash ---


def _rate(result: Result) -> list[Plot]:
    limit = [0, 12]
    bound = [rate.BURST + rate.RATE * at for at in limit]
    data = [_line("burst + rate * time (published)", PUBLISHED, limit, bound, line={"dash": "dot"})]
    for column, colour, run in _columns(result):
        starts = [at for at in run.series["staircase"] if at <= 12]
        data.append(
            _line(
                column,
                colour,
                [0, *starts],
                list(range(len(starts) + 1)),
                line={"shape": "hv", "width": 3 if column == "simulated" else 2},
            )
        )
    staircase = _plot(
        "The token bucket's staircase",
        "One message a second, bursts of five: five at once, then one each second.",
        data,
        "seconds",
        "messages admitted",
        yaxis={"rangemode": "tozero"},
    )
    names = list(rate.QUANTA)
    quanta = sum(rate.QUANTA.values())
    whole = rate.TOTAL_RATE * rate.TOTAL_SPAN
    data = [_bar("target", PUBLISHED, names, [whole * rate.QUANTA[name] / quanta for name in names])]
    for column, colour, run in _columns(result):
        data.append(_bar(column, colour, names, [run.series["total"][name] for name in names]))
    total = _plot(
        "Two queues under one total",
        "50 a second for both together, quanta 3 and 1: the limit is kept, and shared as the quanta say.",
        data,
        "",
        "messages in ten seconds",
        barmode="group",
    )
    return [staircase, total]


def _hash(result: Result) -> list[Plot]:
    names = [f"{name}<br>weight {weight}" for name, weight in hashing.WEIGHTS.items()]
    published = [claim.published for claim in result.experiment.claims if claim.published]
    data = [_bar("published (by weight)", PUBLISHED, names, published)]
    labels = {"simulated": "predicted", "measured": "measured"}
    for column, colour, run in _columns(result):
        data.append(_bar(labels[column], colour, names, run.series["occupancy"]))
    return [
        _plot(
            "Ring occupancy: 100,000 messages",
            "Predicted is computed from the keys alone, with the broker's own hash.",
            data,
            "",
            "messages",
            barmode="group",
        )
    ]


_QUIET = {"hoverinfo": "skip"}
_THIN = {"color": PUBLISHED, "width": 1, "dash": "dash"}


def _upright(x: float) -> Plot:
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": _THIN}


def _tenants(result: Result) -> list[Plot]:
    column, _, run = _columns(result)[-1]
    return plot_tenants.draw(run.series, column)


_DRAWN = {"fair": _fair, "qos": _qos, "codel": _codel, "rate": _rate, "hash": _hash, "tenants": _tenants}
