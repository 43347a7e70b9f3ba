"""fair: ten queues, quanta 4 to 40, one consumer. How closely do shares follow the quanta?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from leash.flow import Flow, Lane
from leash.lab.clock import Clock
from leash.lab.figures import Claim, Experiment, Progress, Run
from leash.lab.seeds import SlotLoop
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.units import MS

NAMES = [f"p{i}" for i in range(10)]
QUANTA = [4 * (i + 1) for i in range(10)]
PUBLISHED = [3741, 7377, 11031, 14556, 18195, 21828, 25408, 29024, 32605, 36250]
TOTAL = sum(PUBLISHED)
PUBLISHED_RATE = 7287.0
"""Messages per second, over all of the document's queues."""

ROUND = sum(QUANTA)
EXACT = [3640, 7280, 10920, 14555, 18180, 21816, 25452, 29088, 32724, 36360]
"""The exact result of round robin for the same number of services, with the last round cut short."""

TINY = 8
COSTLIEST = 8
VARIED = 200 * ROUND
WINDOW = 64
SMALL = 35
"""Just short of the quanta of p8 and p9: p0 then gains about as much as in the published table."""

_WIRE = 100_000
SLOW_WIRE = 40 * MS
SLOW_SERVICE = MS
"""For the published loop: no turn is long enough for a window to refill before it ends."""


def cost_of(number: int) -> int:
    """From 1 to `COSTLIEST`, by a fixed scramble of the message's number."""
    return 1 + (number * 2654435761 >> 7) % COSTLIEST


def spread(sent: Sequence[int]) -> float:
    """How many rounds the first lane is ahead of the last."""
    positions = [count / quantum for count, quantum in zip(sent, QUANTA, strict=True)]
    return max(positions) - min(positions)


def deviation(sent: Sequence[int]) -> list[float]:
    """Percent by which each lane's share is off its target."""
    total = sum(sent)
    return [
        100 * (count * ROUND / (total * quantum) - 1) for count, quantum in zip(sent, QUANTA, strict=True)
    ]


def account(order: Sequence[tuple[str, int]], stop: int) -> tuple[list[int], float, list[list[float]]]:
    """From lanes and costs in the order of service: counts at `stop`, the worst spread, shares over time."""
    index = {name: i for i, name in enumerate(NAMES)}
    lanes = np.array([index[lane] for lane, _ in order[:stop]])
    served = lanes[:, None] == np.arange(len(NAMES))
    sent = served.cumsum(axis=0)
    charged = (served * np.array([cost for _, cost in order[:stop]])[:, None]).cumsum(axis=0)
    positions = charged / np.array(QUANTA)
    worst = float((positions.max(axis=1) - positions.min(axis=1)).max())
    shares = [[float(100 * count / sum(row)) for count in row] for row in sent[ROUND - 1 :: stop // 120]]
    return [int(count) for count in sent[-1]], round(worst, 9), shares


def simulate(progress: Progress, _: int) -> Run:
    run = Run()
    order = [(lane, 1) for _, lane, _ in _serve(TOTAL)]
    progress(0.4)
    sent, worst, shares = account(order, TOTAL)
    fill(run, sent, worst)
    run.series = {"shares": shares, "deviation": deviation(sent)}
    progress(0.6)
    order = costs_in_order([lane for _, lane, _ in _serve(VARIED, cost_of)])
    run.values["varying costs: spread"] = account(order, VARIED)[1]
    progress(0.8)
    small = starved()
    run.values["small window, as published: p0's gain"] = deviation(small)[0]
    run.series["starved"] = deviation(small)
    run.values["small window, Leash: spread"] = account(
        [(lane, 1) for _, lane, _ in _serve(50 * ROUND, window=TINY)], 50 * ROUND
    )[1]
    progress(1)
    return run


def fill(run: Run, sent: Sequence[int], worst: float) -> None:
    for name, count in zip(NAMES, sent, strict=True):
        run.values[f"{name}: messages"] = count
    run.values["spread"] = worst
    run.values["largest deviation"] = max(map(abs, deviation(sent)))


def starved(total: int = 60_000) -> list[int]:
    """The document's loop with a small window and a slow network: lanes run dry here, not at the broker."""
    clock = Clock()
    queues = [Queue(clock, name, 10**9) for name in NAMES]
    loop = SlotLoop(clock, queues, QUANTA, SMALL, SLOW_SERVICE, SLOW_WIRE)
    while sum(loop.served) < total:
        clock.run(clock.now + 100 * MS)
    return loop.served


def _serve(
    total: int, cost: Callable[[int], int] | None = None, window: int = WINDOW
) -> list[tuple[int, str, int]]:
    clock = Clock()
    flow = Flow(
        [Lane(name, quantum, window=window) for name, quantum in zip(NAMES, QUANTA, strict=True)],
        cost="count" if cost is None else "given",
    )
    queues = [Queue(clock, name, 10**9) for name in NAMES]
    costs = None if cost is None else lambda _, number: cost(number)
    pool = Pool(clock, flow, queues, 10_000, up=_WIRE, down=_WIRE, costs=costs)
    while len(pool.log.starts) < total:
        clock.run(clock.now + 10 * MS)
    return pool.log.starts


def costs_in_order(lanes: Sequence[str]) -> list[tuple[str, int]]:
    """Each start with its cost: a lane serves its messages in order, so its n-th start is message n."""
    seen = dict.fromkeys(NAMES, 0)
    order = []
    for lane in lanes:
        order.append((lane, cost_of(seen[lane])))
        seen[lane] += 1
    return order


EXPERIMENT = Experiment(
    "fair",
    "Fair consuming: ten queues, one consumer",
    "Quanta 4 to 40. Published: deficit round robin over local buffers. Leash holds the round for a lane "
    "whose messages are known to be on their way, so a lane that is empty here loses nothing.",
    [
        *[
            Claim(f"{name}: messages", "of 200,015", published, exact - quantum, exact + quantum)
            for name, published, exact, quantum in zip(NAMES, PUBLISHED, EXACT, QUANTA, strict=True)
        ],
        Claim("spread", "rounds", spread(PUBLISHED), 0, 1, compare=False),
        Claim(
            "largest deviation", "% of the share", max(map(abs, deviation(PUBLISHED))), 0, 0.15, compare=False
        ),
        Claim("rate", "messages/s", PUBLISHED_RATE, 1000, 1e6, compare=False),
        Claim("varying costs: spread", "rounds", None, 0, 1 + (COSTLIEST - 1) / QUANTA[0], compare=False),
        Claim(
            "small window, as published: p0's gain",
            "% of the share",
            deviation(PUBLISHED)[0],
            2,
            4,
            compare=False,
        ),
        Claim("small window, Leash: spread", "rounds", None, 0, 1, compare=False),
    ],
    simulate,
    "Ten lines that reach their dotted targets and stay there, and blue and orange bars near zero "
    "where the grey and red ones are not: each queue gets exactly what its quantum says.",
)
