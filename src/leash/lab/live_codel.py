"""`codel` on a real broker behind a slow network: a proxy delays every byte, both ways."""

from __future__ import annotations

import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from leash.amqp import connect
from leash.consumer import Consumer, Message, Queue
from leash.lab import codel
from leash.lab.clock import SECOND
from leash.lab.figures import Progress, Run
from leash.lab.live import Server, fill, plain
from leash.lab.live_seeds import NackingClient
from leash.lab.proxy import slow_apart

SETTLE = 3.0
"""Seconds until the deepest window, 51 messages of 40 ms, has gone round once."""
SPAN = 6.0
STARTING = 8.0


class Observed:
    """A consumer with one worker that sleeps, and what its messages saw."""

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
        """Percent and ms."""
        seen = [wait for begin, wait in self.starts if since <= begin < until]
        busy = 100 * len(seen) * self._seconds * SECOND / (until - since)
        return busy, 1000 * sum(seen) / max(1, len(seen))


def measure(uri: str, progress: Progress) -> Run:
    run = Run()
    with contextlib.ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(0.0005)  # ten consumers in one process: nobody should wait 5 ms for his turn
        far = {}
        for trip in (100, 200):
            far[trip] = stack.enter_context(slow_apart(uri, trip / 2000))
        _cases(run, uri, far, lambda part: progress(0.5 * part))
        _nacking(run, uri, far[100], lambda part: progress(0.5 + 0.5 * part))
    return run


def _cases(run: Run, uri: str, far: dict[int, str], progress: Progress) -> None:
    """All at once: they sleep most of the time, each on a queue and a connection of its own."""
    cases = [(f"case-{n}", case.work, case.trip, case.window) for n, case in enumerate(codel.CASES)]
    pilots = [(f"autopilot-{work}", work, 100, None) for work in codel.AUTOPILOT]
    every = [*cases, *pilots]
    fill(
        uri,
        {name: plain(name, round((SETTLE + SPAN + STARTING) * 1000 / work)) for name, work, _, _ in every},
    )
    observed = [Observed(far[trip], name, work, window) for name, work, trip, window in every]
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(len(observed)) as pool:  # each takes several round trips to start
            list(pool.map(stack.enter_context, [each.consumer for each in observed]))
        time.sleep(SETTLE)
        since = time.monotonic_ns()
        for part in range(20):
            progress(part / 20)
            time.sleep(SPAN / 20)
        until = time.monotonic_ns()
        stats = [each.consumer.stats().queues[each.queue] for each in observed]
    for case, each in zip(codel.CASES, observed, strict=False):
        codel.fill(run, case, *each.busy_and_wait(since, until))
    for work, each, after in zip(codel.AUTOPILOT, observed[len(cases) :], stats[len(cases) :], strict=True):
        run.values[f"autopilot, {work} ms work: window"] = after.window
        if work == 40:
            handled = max(1, after.handled)
            run.values["shrinking: nacks a message"] = after.counts.get("returned", 0) / handled
            run.values["shrinking: wait"] = each.busy_and_wait(since, until)[1]


def _nacking(run: Run, uri: str, far: str, progress: Progress) -> None:
    names = {window: f"nacking-{window}" for window in codel.NACKS}
    fill(uri, {name: plain(name, 2000) for name in names.values()})
    with contextlib.ExitStack() as stack:
        clients = {}
        for window, name in names.items():
            channel = stack.enter_context(connect(far, name="lab")).channel()
            clients[window] = NackingClient(channel, name, window, 0.04, codel.TARGET, codel.INTERVAL)
            stack.callback(clients[window].stop)
        time.sleep(codel.NACK_START / SECOND)
        before = {window: (client.nacks, client.served) for window, client in clients.items()}
        for part in range(20):
            progress(part / 20)
            time.sleep((codel.NACK_END - codel.NACK_START) / SECOND / 20)
        for window, client in clients.items():
            nacks, served = before[window]
            codel.fill_nacks(run, window, (client.nacks - nacks) / (client.served - served))
