"""codel: 50 ms each way, 4 and 40 ms of work, windows 1, 26 and 51: how busy is the worker, how long is the
wait?

Then what to do about waiting: return messages, as published, or ask for fewer.
"""

from __future__ import annotations

from typing import NamedTuple

from leash.flow import Flow, Lane
from leash.lab.clock import Clock
from leash.lab.figures import Claim, Experiment, Progress, Run
from leash.lab.seeds import NackingClient
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.policies.window.credit import standing_wait, utilisation
from leash.units import MS, SECOND

TARGET, INTERVAL = 100 * MS, 20 * MS
"""The document's settings for CoDel by nack."""

NACKS = {26: 2.87, 51: 6.4}
NACK_WIRE = 50 * MS + MS // 2
"""A real network is never exactly 50 ms. It matters: at exactly 50, arrivals and the ends of the work
coincide, and the same client returns 3.5 and 7.7 messages for each that it handles.
"""

NACK_START, NACK_END = 3 * SECOND, 15 * SECOND


class Case(NamedTuple):
    """Work and round trip in ms, a window, and what the document says: percent busy, ms of waiting."""

    work: int
    trip: int
    window: int
    busy: float | None = None
    wait: float | None = None

    @property
    def name(self) -> str:
        return f"{self.work} ms work, trip {self.trip}, window {self.window}"

    @property
    def model_busy(self) -> float:
        return 100 * utilisation(self.window, self.trip, self.work)

    @property
    def model_wait(self) -> float:
        return standing_wait(self.window, self.trip, self.work)


CASES = [
    Case(4, 100, 1, busy=3.8, wait=0),
    Case(4, 100, 26, busy=100, wait=0),
    Case(4, 100, 51, busy=100, wait=100),
    Case(4, 200, 26),
    Case(4, 200, 51, busy=100),
    Case(40, 100, 26, wait=880),
    Case(40, 100, 51, wait=1880),
    Case(40, 100, 4),
]
AUTOPILOT = {4: 26, 40: 4}


def simulate(progress: Progress, _: int) -> Run:
    run = Run()
    for done, case in enumerate(CASES):
        pool = consume(case.work, case.trip, case.window)
        busy = 100 * len(pool.log.waits(2 * SECOND)) * case.work * MS / (8 * SECOND)
        fill(run, case, busy, pool.log.mean_wait(2 * SECOND) / MS)
        progress(done / len(CASES) / 2)
    for work in AUTOPILOT:
        pool = consume(work, 100, None)
        run.values[f"autopilot, {work} ms work: window"] = pool.state.lanes["work"].credit
    run.series["jump"] = jump()
    run.series["curve"] = {work: curve(work) for work in AUTOPILOT}
    progress(0.8)
    for window in NACKS:
        clock = Clock()
        client = NackingClient(
            clock, Queue(clock, "work", 10**9), window, 40 * MS, NACK_WIRE, TARGET, INTERVAL
        )
        clock.run(NACK_START)
        nacks, served = client.nacks, client.served
        clock.run(NACK_END)
        fill_nacks(run, window, (client.nacks - nacks) / (client.served - served))
        if window == 51:
            run.series["codel"] = [
                (at / SECOND, shed, wait / MS) for at, shed, wait in client.states if at < 5 * SECOND
            ]
    fill_shrinking(run, consume(40, 100, None))
    progress(1)
    return run


def fill(run: Run, case: Case, busy: float, wait: float) -> None:
    run.values[f"{case.name}: busy"] = busy
    run.values[f"{case.name}: wait"] = wait
    run.series.setdefault("cases", []).append([case.work, case.trip, case.window, busy, wait])


def fill_nacks(run: Run, window: int, nacks: float) -> None:
    run.values[f"CoDel by nack, window {window}: nacks a message"] = nacks


def fill_shrinking(run: Run, pool: Pool) -> None:
    run.values["shrinking: nacks a message"] = len(pool.log.sheds) / pool.total
    run.values["shrinking: wait"] = pool.log.mean_wait(5 * SECOND) / MS


def consume(work: int, trip: int, window: int | None, span: int = 10 * SECOND) -> Pool:
    """One lane that never runs dry; window None is the autopilot."""
    clock = Clock()
    flow = Flow([Lane("work", window=window)])
    one_way = trip * MS // 2
    pool = Pool(clock, flow, [Queue(clock, "work", 10**9)], work * MS, up=one_way, down=one_way)
    clock.run(span - 1)  # a start at the very end would count without being done
    return pool


def curve(work: int) -> list[tuple[int, float, float]]:
    """For each window, how busy the worker is, and how long messages wait: measured in virtual time."""
    points = []
    for window in [1, 2, 3, 4, 5, 8, 13, 20, 26, 32, 40, 51, 60]:
        pool = consume(work, 100, window, 4 * SECOND)
        late = 2500 * MS
        busy = len(pool.log.waits(late)) * work * MS / (4 * SECOND - late)
        points.append((window, 100 * min(1.0, busy), pool.log.mean_wait(late) / MS))
    return points


def jump() -> dict[str, list[tuple[float, float]]]:
    """How the autopilot reacts when work takes ten times longer from 4 s on."""
    clock = Clock()
    flow = Flow([Lane("work")])
    pool = Pool(clock, flow, [Queue(clock, "work", 10**9)], 4 * MS, up=50 * MS, down=50 * MS)
    clock.run(4 * SECOND)
    pool.service = 40 * MS
    clock.run(12 * SECOND)
    waits = [(at / SECOND, wait / MS) for at, _, wait in pool.log.starts]
    windows = [(0.0, 16.0)] + [(at / SECOND, float(window)) for at, _, window, _ in pool.log.windows]
    return {"waits": waits[:: max(1, len(waits) // 400)], "windows": windows}


def _claims(case: Case) -> list[Claim]:
    busy, wait = case.model_busy, case.model_wait
    low, high = max(0, 0.95 * wait - 5), 1.125 * wait + 12  # a real network and a real sleep are not exact
    return [
        Claim(f"{case.name}: busy", "%", case.busy, 0.93 * busy, min(101.5, 1.05 * busy)),
        Claim(f"{case.name}: wait", "ms", case.wait, low, high, compare=wait > 500),
    ]


EXPERIMENT = Experiment(
    "codel",
    "How much to ask for, and what to do about waiting",
    "A saturated queue behind a network of 50 (or 100) ms each way. Too small a window idles the worker, too "
    "large a one lets messages wait. The document says 880 and 1880 ms where the exact figures are 900 and "
    "1900: it drops half a message. A nack is no cure: the broker sends the same message again.",
    [
        *[claim for case in CASES for claim in _claims(case)],
        Claim("autopilot, 4 ms work: window", "messages", 26, 24, 30, compare=False),
        Claim("autopilot, 40 ms work: window", "messages", None, 4, 6, compare=False),
        *[
            Claim(f"CoDel by nack, window {window}: nacks a message", "", None, 0.85 * nacks, 1.15 * nacks)
            for window, nacks in NACKS.items()
        ],
        Claim("shrinking: nacks a message", "", None, 0, 0, compare=False),
        Claim("shrinking: wait", "ms", None, 15, 70, compare=False),
    ],
    simulate,
    "Below the right window the worker idles, above it messages wait for nothing; the autopilot finds"
    " it, and where returning messages costs several nacks for each one done, a smaller window costs "
    "none.",
)
