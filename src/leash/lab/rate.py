"""rate: one message a second with bursts of five, for a minute; and two queues under one total."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from leash.flow import Flow, Lane
from leash.lab.clock import Clock
from leash.lab.figures import Claim, Experiment, Progress, Run
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.units import MS, SECOND

RATE, BURST = 1, 5
PREFETCH = 10
LATE = 50 * MS
"""A message due at the end of the span may start this much later: a real worker must wake up first."""

SHORT, LONG = 10, 60
TOTAL_RATE, TOTAL_BURST, TOTAL_SPAN = 50, 5, 10
QUANTA = {"gold": 3, "free": 1}


def simulate(progress: Progress, _: int) -> Run:
    run = Run()
    clock = Clock()
    flow = Flow([Lane("send_mt", rate=RATE, burst=BURST, window=PREFETCH)])
    pool = Pool(clock, flow, [Queue(clock, "send_mt", 10**6)], MS)
    clock.run(LONG * SECOND + LATE)
    starts = [at for at, _, _ in pool.log.starts]
    fill(run, starts)
    run.values["in the first minute"] = bisect_right(starts, LONG * SECOND + LATE)
    progress(0.5)
    clock = Clock()
    flow = Flow(
        [Lane(name, quantum, window=PREFETCH) for name, quantum in QUANTA.items()],
        rate=TOTAL_RATE,
        burst=TOTAL_BURST,
    )
    pool = Pool(clock, flow, [Queue(clock, name, 10**6) for name in QUANTA], MS)
    clock.run(TOTAL_SPAN * SECOND)
    fill_total(run, pool.log.served)
    progress(1)
    return run


def fill(run: Run, starts: Sequence[int]) -> None:
    """`starts` in ns; time begins with the first one."""
    first = starts[0]
    end = first + SHORT * SECOND + LATE
    run.values["at once"] = bisect_right(starts, first + SECOND // 2)
    run.values["in the first 10 s"] = bisect_right(starts, end)
    run.values["most above the line"] = excess(starts)
    run.series["staircase"] = [(at - first) / SECOND for at in starts]


def excess(starts: Sequence[int]) -> float:
    """The most admitted in any interval, minus what the rate alone would give: never above the burst."""
    highest, worst = 0.0, 0.0
    for count, at in enumerate(starts):
        line = RATE * at / SECOND
        highest = max(highest, line - count)
        worst = max(worst, count + 1 - line + highest)
    return round(worst, 6)


def fill_total(run: Run, served: dict[str, int]) -> None:
    run.values["two queues: in 10 s"] = sum(served.values())
    run.values["two queues: gold's share"] = 100 * served["gold"] / sum(served.values())
    run.series["total"] = served


EXPERIMENT = Experiment(
    "rate",
    "A token bucket between the broker and the work",
    "One message a second on average, bursts of up to five, prefetch 10, as in the document; then two queues "
    "with quanta 3 and 1 under a total of 50 a second, with the same burst.",
    [
        Claim("at once", "messages", 5, 5, 5),
        Claim("in the first 10 s", "messages", 15, 15, 15),
        Claim("in the first minute", "messages", 65, 65, 65),
        Claim("most above the line", "messages", 5, 4.9, 5.001),
        Claim("two queues: in 10 s", "messages", None, 495, 505),
        Claim("two queues: gold's share", "%", None, 74, 76),
    ],
    simulate,
    "Steps that touch the dotted line and never cross it: the burst comes at once, and then exactly "
    "the rate.",
)
