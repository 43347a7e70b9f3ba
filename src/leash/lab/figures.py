"""An experiment's claims and results, and whether they agree: the three columns of the lab."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

AGREE = 0.05
"""Simulated and measured figures may differ by this much."""

TURNAROUND = 500_000
"""Ns that a machine takes to wake a thread and get an answer from its broker, if not measured."""

Progress = Callable[[float], None]
"""Called with the part that is done, from 0 to 1."""


def silent(_: float) -> None:
    """Report no progress."""


class Claim(NamedTuple):
    """A figure, the published value if there is one, and the bounds that every run must keep."""

    name: str
    unit: str
    published: float | None
    low: float
    high: float
    compare: bool = True
    """True if simulated and measured must agree; not if both are near 0, or the machine sets the pace."""


@dataclass
class Run:
    """One run's figures by the claims' names, and the data for the report's plots."""

    values: dict[str, float] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)
    away: float = 0.0
    """The largest share of time that the machine was away while figures in ms were measured."""
    again: int = 0
    """Measurements discarded, unseen, because the machine was away too much."""


@dataclass(frozen=True)
class Experiment:
    """One document's experiment. `simulate` gets the machine's turnaround."""

    name: str
    title: str
    about: str
    claims: list[Claim]
    simulate: Callable[[Progress, int], Run]
    see: str = ""
    """One sentence: what to see in its plots."""


@dataclass
class Result:
    """An experiment's claims and results; a column that was not run is None."""

    experiment: Experiment
    simulated: Run | None = None
    measured: Run | None = None

    def faults(self) -> list[str]:
        """One sentence for every figure that is not as claimed."""
        found = []
        for claim in self.experiment.claims:
            values = {"simulated": _value(self.simulated, claim), "measured": _value(self.measured, claim)}
            for column, value in values.items():
                if value is not None and not claim.low <= value <= claim.high:
                    found.append(f"{claim.name}: {column} {value:g}, not {bounds(claim)}")
            simulated, measured = values.values()
            if claim.compare and simulated is not None and measured is not None:
                room = AGREE * max(abs(simulated), abs(measured))
                if abs(simulated - measured) > room:
                    found.append(f"{claim.name}: simulated {simulated:g} and measured {measured:g} differ")
        return found

    def counted(self) -> tuple[int, int]:
        """How many figures passed, and how many missed. A pair that differs too much is a miss of its own."""
        values = [value for row in self.rows() for value in row[1:] if value is not None]
        misses = len(self.faults())
        return max(0, len(values) - misses), misses

    def rows(self) -> list[tuple[Claim, float | None, float | None]]:
        claims = self.experiment.claims
        return [(claim, _value(self.simulated, claim), _value(self.measured, claim)) for claim in claims]

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "figures": [
                {
                    "name": claim.name,
                    "unit": claim.unit,
                    "published": claim.published,
                    "simulated": simulated,
                    "measured": measured,
                    "low": claim.low,
                    "high": claim.high,
                }
                for claim, simulated, measured in self.rows()
            ],
            "faults": self.faults(),
        }


def number(value: float | None) -> str:
    """A number with a readable count of digits."""
    if value is None:
        return "-"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def bounds(claim: Claim) -> str:
    """The bounds as text."""
    low, high = number(claim.low), number(claim.high)
    return low if claim.low == claim.high else f"{low} to {high}"


def dumps(results: list[Result], about: dict[str, Any]) -> str:
    """The JSON result of a lab run."""
    document = {**about, "experiments": [result.to_json() for result in results]}
    return json.dumps(document, indent=2) + "\n"


def _value(run: Run | None, claim: Claim) -> float | None:
    return None if run is None else run.values.get(claim.name)
