"""`codel` on a real broker behind a slow network: a proxy delays every byte, both ways."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import NamedTuple

from leash.amqp import connect
from leash.consumer import Consumer, Message, Queue, QueueStats
from leash.lab import codel
from leash.lab.figures import Progress, Run
from leash.lab.live import Server, fill, plain, prompt_threads
from leash.lab.live_seeds import NackingClient
from leash.lab.proxy import slow_apart
from leash.lab.quiet import QUIET, timed
from leash.units import SECOND

SETTLE = 3.0
"""Seconds until the deepest window, 51 messages of 40 ms, has been served once."""
SPAN = 6.0
STARTING = 8.0
GROUPS = 4
NACKING = 4

LOOKS = 20

_Asked = tuple[str, int, int, int | None]
"""Queue, work, round trip, window."""


class Seen(NamedTuple):
    """Percent busy, ms of waiting, the window that was in force for most of the time, and the last stats."""

    busy: float
    wait: float
    window: float
    last: QueueStats


class Observed:
    """A consumer with one worker that sleeps, and the measurements of its messages."""

    def __init__(self, uri: str, queue: str, work: int, window: int | None) -> None:
        self.starts: list[tuple[int, float]] = []
        self.queue = queue
        self.consumer = Consumer(uri, [Queue(queue, window=window or "auto")], drain=1.0)
        self.consumer.handler(self._handle)
        self._seconds = work / 1000
        self._server = Server(self._seconds)

    def _handle(self, message: Message) -> None:
        begin, wait = time.monotonic_ns(), message.age
        self._server.serve(begin - round(wait * SECOND))
        self.starts.append((begin, wait))

    def busy_and_wait(self, since: int, until: int) -> tuple[float, float]:
        """Percent busy and ms of waiting."""
        seen = [wait for begin, wait in self.starts if since <= begin < until]
        busy = 100 * len(seen) * self._seconds * SECOND / (until - since)
        return busy, 1000 * sum(seen) / max(1, len(seen))


def measure(uri: str, progress: Progress) -> Run:
    run = Run()
    with contextlib.ExitStack() as stack:
        stack.enter_context(prompt_threads())
        far = {}
        for trip in (100, 200):
            far[trip] = stack.enter_context(slow_apart(uri, trip / 2000))
        _cases(run, uri, far, lambda part: progress(0.7 * part))
        _nacking(run, uri, far[100], lambda part: progress(0.7 + 0.3 * part))
    return run


def _cases(run: Run, uri: str, far: dict[int, str], progress: Progress) -> None:
    """Run a few at a time: they mostly sleep, but too many on one machine would wait for each other."""
    cases = [(f"case-{n}", case.work, case.trip, case.window) for n, case in enumerate(codel.CASES)]
    pilots = [(f"autopilot-{work}", work, 100, None) for work in codel.AUTOPILOT]
    every: list[_Asked] = [*cases, *pilots]
    seen: dict[str, Seen] = {}
    for start in range(GROUPS):
        progress(start / GROUPS)
        seen |= timed(run, partial(_together, uri, far, every[start::GROUPS]))
    for (name, *_), case in zip(cases, codel.CASES, strict=True):
        codel.fill(run, case, seen[name].busy, seen[name].wait)
    for work in codel.AUTOPILOT:
        _, wait, window, stats = seen[f"autopilot-{work}"]
        run.values[f"autopilot, {work} ms work: window"] = window
        if work == 40:
            run.values["shrinking: nacks a message"] = stats.counts.get("returned", 0) / max(1, stats.handled)
            run.values["shrinking: wait"] = wait


def _together(uri: str, far: dict[int, str], asked: list[_Asked]) -> dict[str, Seen]:
    """Run consumers in parallel, each with its own queue and connection."""
    span = 1000 * (SETTLE + SPAN + STARTING)
    fill(uri, {name: plain(name, round(span / work)) for name, work, _, _ in asked})
    observed = [Observed(far[trip], name, work, window) for name, work, trip, window in asked]
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(len(observed)) as pool:  # each takes several round trips to start
            list(pool.map(stack.enter_context, [each.consumer for each in observed]))
        time.sleep(SETTLE)
        since = time.monotonic_ns()
        looks = []
        for _ in range(LOOKS):
            time.sleep(SPAN / LOOKS)
            looks.append([each.consumer.stats().queues[each.queue] for each in observed])
        until = time.monotonic_ns()
    return {
        each.queue: Seen(*each.busy_and_wait(since, until), median(look.window for look in stats), stats[-1])
        for each, stats in zip(observed, zip(*looks, strict=True), strict=True)
    }


def _nacking(run: Run, uri: str, far: str, progress: Progress) -> None:
    for window, nacks in timed(run, partial(_nacks, uri, far, progress), QUIET / 2).items():
        codel.fill_nacks(run, window, nacks)


def _nacks(uri: str, far: str, progress: Progress) -> dict[int, float]:
    """The median of several runs: when the machine is away, one loses its rhythm and nacks less."""
    names = {f"nacking-{window}-{copy}": window for window in codel.NACKS for copy in range(NACKING)}
    fill(uri, {name: plain(name, 2000) for name in names})
    with contextlib.ExitStack() as stack:
        clients = []
        for name, window in names.items():
            channel = stack.enter_context(connect(far, name="lab")).channel()
            client = NackingClient(channel, name, window, 0.04, codel.TARGET, codel.INTERVAL)
            stack.callback(client.stop)
            clients.append((window, client))
        time.sleep(codel.NACK_START / SECOND)
        before = [(client.nacks, client.served) for _, client in clients]
        for part in range(20):
            progress(part / 20)
            time.sleep((codel.NACK_END - codel.NACK_START) / SECOND / 20)
        each: dict[int, list[float]] = {window: [] for window in codel.NACKS}
        for (window, client), (nacked, done) in zip(clients, before, strict=True):
            each[window].append((client.nacks - nacked) / (client.served - done))
    return {window: median(nacks) for window, nacks in each.items()}
