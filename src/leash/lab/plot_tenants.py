"""The plots of `tenants`: how long each message of a quiet tenant took, in one FIFO and with Leash."""

from __future__ import annotations

from typing import Any

from leash.lab.tenants import KINDS, SLOWER, WAYS

COLOURS = dict(zip(WAYS, ("#8b93a1", "#e11d48", "#f97316", "#3b82f6"), strict=True))
_CAPTIONS = {
    "by count": "One tenant sends nine messages of ten, twice what the workers can do.",
    "by slowness": f"One tenant sends few messages, which take {SLOWER} times as long.",
}


def draw(series: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """One plot for each way to be noisy."""
    return [_latencies(kind.name, series[kind.name], column) for kind in KINDS]


def _latencies(kind: str, ways: dict[str, list[tuple[float, float]]], column: str) -> dict[str, Any]:
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": way,
            "x": [round(at, 3) for at, _ in points],
            "y": [round(took, 2) for _, took in points],
            "marker": {"color": COLOURS[way], "size": 4, "opacity": 0.7},
        }
        for way, points in ways.items()
    ]
    return {
        "title": f"Noisy {kind}: how long quiet tenants' messages took",
        "caption": f"{_CAPTIONS[kind]} Each dot is a message of one of the other 99 ({column}), from "
        "publishing to the end of the work. What still waits after 10 s counts with the "
        "time until then. Orange dots at the top: tenants that share the noisy one's lane.",
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "published, s"}},
            "yaxis": {"title": {"text": "latency, ms (log scale)"}, "type": "log", "dtick": 1},
        },
    }
