"""qos: a fast and a slow worker on one queue, for ten seconds. Which one gets the work?"""

from __future__ import annotations

from leash.flow import Flow, Lane
from leash.lab.clock import Clock
from leash.lab.figures import Claim, Experiment, Progress, Run
from leash.lab.seeds import SharedThreads
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.units import MS, SECOND

FAST, SLOW = 10 * MS, 1000 * MS
GAP = 10 * MS
SPAN = 10 * SECOND
THREADS = 4
"""The document's pool has five threads, and its producer keeps one."""


def simulate(progress: Progress, turnaround: int) -> Run:
    run = Run()
    one_way = turnaround // 2
    for prefetch in (0, 1):
        clock = Clock()
        queue = Queue(clock, "work")
        threads = SharedThreads(clock, queue, {"fast": FAST, "slow": SLOW}, prefetch, THREADS, one_way)
        queue.publish_every(GAP, SPAN)
        clock.run(SPAN)
        fill(run, f"prefetch {prefetch}", threads.done["fast"], threads.done["slow"])
        progress(0.3 * (prefetch + 1))
    _autopilot(run, one_way)
    progress(1)
    return run


def fill(run: Run, setting: str, fast: int, slow: int) -> None:
    run.values[f"{setting}: fast"] = fast
    run.values[f"{setting}: slow"] = slow
    run.series.setdefault("done", {})[setting] = [fast, slow]


def _autopilot(run: Run, one_way: int) -> None:
    """Two Leash consumers with one worker each, that start with a window of 16."""
    clock = Clock()
    queue = Queue(clock, "work")
    fast = Pool(clock, Flow([Lane("work")]), [queue], FAST, up=one_way, down=one_way)
    slow = Pool(clock, Flow([Lane("work")]), [queue], SLOW, up=one_way, down=one_way)
    queue.publish_every(GAP, SPAN)
    held: list[tuple[float, int]] = []
    while clock.now < SPAN:
        clock.run(clock.now + 100 * MS)
        held.append((clock.now / SECOND, slow.links["work"].unsettled))
    fill(run, "autopilot", fast.total - fast.in_work, slow.total - slow.in_work)
    run.series["held"] = held


EXPERIMENT = Experiment(
    "qos",
    "Prefetch is credit: a fast and a slow worker",
    "One message every 10 ms for ten seconds; the fast worker takes 10 ms a message, the slow one 1000. "
    "Without a window the broker deals them out in turn, and slow tasks fill the pool.",
    [
        Claim("prefetch 0: fast", "messages", 40, 36, 44),
        Claim("prefetch 0: slow", "messages", 36, 36, 40),
        Claim("prefetch 1: fast", "messages", 945, 850, 1000),
        Claim("prefetch 1: slow", "messages", 9, 9, 10, compare=False),
        Claim("autopilot: fast", "messages", None, 900, 1000),
        Claim("autopilot: slow", "messages", None, 9, 10, compare=False),
    ],
    simulate,
    "With prefetch 0 both workers do about as much, and the fast one waits most of the time; with a "
    "window of 1, or on autopilot, the fast worker does a hundred times as much as the slow one.",
)
