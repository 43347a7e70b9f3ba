"""What the live page costs: consumers that report and are looked at beside silent ones; and its redraws.

`python -m bench page` has one consumer that never stops, and switches reports and viewers on and off beside
it: messages a second and CPU for each message, in many short pairs, so that a busy machine harms both alike;
and the CPU of the threads that report and serve.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from bench import harness
from bench.page_redraws import redraws
from leash import Consumer
from leash.amqp import Outgoing, Publisher, connect
from leash.consumer.reporting import COST, Reporter, identity, pace, report
from leash.page.fleet import Fleet
from leash.page.listen import Own
from leash.page.server import Page

PAIRS, VIEWERS, BODY, QUEUES = 16, 5, 100, 10
ENOUGH = 300_000
"""Messages that wait before a run begins; more are published between two pairs."""
_SLICE, _SETTLE = 2.0, 0.3
"""Seconds of a measurement, and before it. Reports come after whole seconds: two of them in each."""
_WORK = range(1500)
"""What a handler adds up: some 20 us. The consumer's process is to be the limit, not the broker."""
OUTSIDE, INSIDE = "reports, and a `leash page` elsewhere", "`leash consume --page`"


def main(uri: str) -> None:
    """Measure, print, and write docs/results.md."""
    with connect(uri) as connection:
        version = str(connection.server["version"])
    rows, data = [], []
    for mode in (OUTSIDE, INSIDE):
        found = pairs(uri, mode, QUEUES)
        data.append({"mode": mode, "queues": QUEUES, **found})
        rates, cpus = ("{:.3f} ({:.3f} to {:.3f})".format(*found[name]) for name in ("rates", "cpus"))
        rows.append(f"| {mode} | {found['rate']:,.0f} | {rates} | {cpus} | {found['own']:.2%} |")
        print(rows[-1], flush=True)
    text = [
        f"## The live page\n\nOne consumer of {QUEUES} queues with one worker, which is always busy. "
        f"Statistics and {VIEWERS} viewers are switched on and off beside it, for {_SLICE:g} s each, in "
        f"{PAIRS} interleaved pairs. Ratios are with over without: the mean of the pairs, without the lowest "
        "and the highest tenth, and where it lies with a probability of 90 %. The last column is the CPU of "
        "the threads that report and serve, over that of the whole process: it is the finer measure.\n",
        "| statistics | messages/s, silent | messages/s, ratio | CPU of a message, ratio | those threads |",
        "|---|--:|--:|--:|--:|",
        *rows,
        "",
    ]
    text.append(
        "CPU of one report, and of one turn of a page inside the consumer's process, in ms. Both come once a "
        f"second, or less often where one would take more than {COST:.1%} of a core.\n"
    )
    text += ["| queues | report, ms | of a core | page, ms | of a core |", "|--:|--:|--:|--:|--:|"]
    turns = [costs(uri, queues) for queues in (10, 100, 1000)]
    for queues, report_ms, page_ms in turns:
        shares = [ms / 1000 / pace(ms / 1000) for ms in (report_ms, page_ms)]
        text.append(f"| {queues:,} | {report_ms:.2f} | {shares[0]:.2%} | {page_ms:.2f} | {shares[1]:.2%} |")
        print(text[-1], flush=True)
    text.append("")
    with served(Consumer("amqp://nowhere.invalid", ["q"])) as (page, url):  # it is never started
        redrawn = redraws(page, url)
    if redrawn:
        text.append("A redraw in Chromium, script and layout, with every number changed:\n")
        text += ["| queues | rows shown | median ms | longest ms |", "|--:|--:|--:|--:|"]
        for each in redrawn:
            text.append(f"| 1,000 | {each['rows']:,} | {each['median']:.1f} | {each['longest']:.1f} |")
            print(text[-1], flush=True)
    harness.publish_section(
        "page", "\n".join(text), version, {"cost": data, "turns": turns, "redraws": redrawn}
    )


# --- the cost of statistics and viewers ---


class Slice(NamedTuple):
    """A few seconds of a running consumer."""

    rate: float  # messages a second
    cpu: float  # seconds of this process for each message
    own: float  # of them, the part of the threads that report and serve


def pairs(uri: str, mode: str, queues: int) -> dict[str, Any]:
    """One consumer that never stops, with reports and viewers switched on and off beside it."""
    names = [f"bench.page.{n}" for n in range(queues)]
    harness.fill(uri, names, ENOUGH, BODY)
    handled = [0]

    def work(_: object) -> None:
        sum(_WORK)
        handled[0] += 1

    consumer = Consumer(uri, names, workers=1, report=False, name="bench")
    consumer.handler(work)
    filled = ENOUGH
    silent: list[Slice] = []
    shown: list[Slice] = []
    with contextlib.ExitStack() as stack:
        stage = stack.enter_context((inside if mode == INSIDE else outside)(uri, consumer))
        consumer.start()
        stack.callback(consumer.stop)
        for number in range(PAIRS + 1):
            if filled - handled[0] < ENOUGH // 2:
                more(uri, names, ENOUGH // 2)
                filled += ENOUGH // 2
            for on in (False, True) if number % 2 else (True, False):
                with stage() if on else contextlib.nullcontext():
                    time.sleep(_SETTLE)
                    measured = measure(handled)
                if filled - handled[0] < ENOUGH // 20:
                    raise SystemExit("the messages ran out: enlarge ENOUGH")
                if number:  # the first pair warms up
                    (shown if on else silent).append(measured)
    return {
        "rate": statistics.median(each.rate for each in silent),
        "cpu": statistics.median(each.cpu for each in silent) * 1e6,
        "rates": spread([with_.rate / without.rate for with_, without in zip(shown, silent, strict=True)]),
        "cpus": spread([with_.cpu / without.cpu for with_, without in zip(shown, silent, strict=True)]),
        "own": statistics.mean(each.own for each in shown),
        "silent": silent,
        "shown": shown,
    }


def spread(ratios: list[float]) -> list[float]:
    """Their mean without the lowest and the highest tenth; and where it would lie in 90 % of such samples."""

    def middle(given: list[float]) -> float:
        cut = len(given) // 10
        return statistics.mean(sorted(given)[cut : len(given) - cut])

    dice = random.Random(1)
    drawn = sorted(middle(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return [middle(ratios), drawn[100], drawn[1900]]


def measure(handled: list[int]) -> Slice:
    began, count, cpu, own = time.perf_counter(), handled[0], time.process_time(), _extras()
    time.sleep(_SLICE)
    seconds, done = time.perf_counter() - began, handled[0] - count
    spent = time.process_time() - cpu
    return Slice(done / seconds, spent / done, (_extras() - own) / spent)


def more(uri: str, names: list[str], count: int) -> None:
    with connect(uri) as connection, Publisher(connection) as publisher:
        body = b"x" * BODY
        publisher.publish(Outgoing(body, "", names[n % len(names)], harness.TRANSIENT) for n in range(count))


def _extras() -> float:
    """CPU seconds of the threads that would not be there without statistics."""
    return sum(_cpu(thread) for thread in threading.enumerate() if _extra(thread))


def _extra(thread: threading.Thread) -> bool:
    return thread.name.startswith(("leash-page", "leash-reporter")) or "process_request" in thread.name


def _cpu(thread: threading.Thread) -> float:
    """Seconds, as Linux counts them."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:  # it has ended
        return 0.0


Stage = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def inside(_: str, consumer: Consumer) -> Iterator[Stage]:
    """As `leash consume --page` does it. Each time a new page, which the viewers have opened."""
    with viewers() as look:

        @contextlib.contextmanager
        def stage() -> Iterator[None]:
            with served(consumer) as (_, url):
                look(url)
                yield

        yield stage


@contextlib.contextmanager
def outside(uri: str, consumer: Consumer) -> Iterator[Stage]:
    """A `leash page` in a process of its own. It and the viewers stand still while nobody is to look."""
    with a_page(uri) as (page, url), viewers() as look:
        look(url)
        others: list[subprocess.Popen[Any]] = [page, look.process]

        @contextlib.contextmanager
        def stage() -> Iterator[None]:
            for each in others:
                each.send_signal(signal.SIGCONT)
            reporter = Reporter(consumer)
            reporter.start()
            try:
                yield
            finally:
                reporter.stop()
                for each in others:
                    each.send_signal(signal.SIGSTOP)

        try:
            for each in others:
                each.send_signal(signal.SIGSTOP)
            yield stage
        finally:
            for each in others:
                each.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def served(consumer: Consumer) -> Iterator[tuple[Page, str]]:
    """The page of a consumer in this process, as `leash consume --page` serves it."""
    page = Page(Fleet({}), lambda heard: Own(consumer, heard))
    try:
        yield page, page.start("127.0.0.1", 0)
    finally:
        page.stop()


@contextlib.contextmanager
def a_page(uri: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A `leash page` in a process of its own."""
    command = [sys.executable, "-m", "leash.cli", "page", "--port", "0"]
    environment = {**os.environ, "LEASH_URI": uri}  # not an argument: others could read the password
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


_VIEWER = """
import os, sys, threading, urllib.request
told = threading.Lock()
def look(url):
    try:
        for number, line in enumerate(urllib.request.urlopen(url + "events")):
            if not number:
                with told:
                    os.write(1, b".")
    except OSError:
        pass
for url in sys.stdin:
    for _ in range(int(sys.argv[1])):
        threading.Thread(target=look, args=(url.strip(),), daemon=True).start()
"""


class Viewers:
    """In a process of their own, so that what they cost themselves is not counted."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _VIEWER, str(VIEWERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, url: str) -> None:
        """Have them look; each has had the first view when this returns."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(url.encode() + b"\n")
        self.process.stdin.flush()
        if self.process.stdout.read(VIEWERS) != b"." * VIEWERS:
            raise SystemExit("the viewers saw nothing")


@contextlib.contextmanager
def viewers() -> Iterator[Viewers]:
    made = Viewers()
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate(timeout=30)


def costs(uri: str, queues: int) -> tuple[int, float, float]:
    """CPU ms of a report, and of a view as an event, of a consumer of so many queues; all had messages."""
    names = [f"bench.page.{n}" for n in range(queues)]
    harness.fill(uri, names, 20 * queues, BODY)
    consumer = Consumer(uri, names, workers=4, report=False)
    consumer.handler(lambda _: None)
    consumer.start()
    try:
        while sum(each.handled for each in consumer.stats().queues.values()) < 20 * queues:
            time.sleep(0.1)
        fleet, who = Fleet({}), identity(consumer)

        def tell() -> None:
            told = who | report(consumer.stats())
            json.dumps(told, separators=(",", ":"))
            fleet.heard(time.time(), told)

        def turn() -> None:
            json.dumps(fleet.tick(time.time()), separators=(",", ":"))

        return queues, _median(tell), _median(turn)
    finally:
        consumer.stop()


def _median(do: Callable[[], None]) -> float:
    took = []
    for _ in range(15):
        began = time.thread_time()
        do()
        took.append(1000 * (time.thread_time() - began))
    return statistics.median(took)
