"""What the live page costs: consumers that report and are looked at beside silent ones; and its redraws.

`python -m bench page` counts the CPU of the consumer's process for each message, in interleaved pairs in one
process, so that a busy machine harms both alike; and the CPU of the threads that report and serve.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import harness
from leash import Consumer
from leash.amqp import connect
from leash.consumer.reporting import COST, identity, pace, report
from leash.page.fleet import Fleet
from leash.page.listen import Own
from leash.page.server import Page

PAIRS, VIEWERS, BODY = 9, 5, 100
COUNTS = {10: 300_000}
"""Messages of one run, by the number of queues."""
OUTSIDE, INSIDE = "reports, and a `leash page` elsewhere", "`leash consume --page`"


def main(uri: str) -> None:
    """Measure, print, and write docs/results.md."""
    with connect(uri) as connection:
        version = str(connection.server["version"])
    rows, data = [], []
    for queues, count in COUNTS.items():
        for mode in (OUTSIDE, INSIDE):
            found = pairs(uri, mode, queues, count)
            data.append({"mode": mode, "queues": queues, **found})
            rows.append(
                f"| {mode} | {queues} | {found['cpu']:.2f} | {found['ratio']:.3f} | {found['own']:.2%} |"
            )
            print(rows[-1], flush=True)
    text = [
        "## The live page\n\nA consumer with an empty handler and one worker: silent, and with statistics "
        f"and {VIEWERS} viewers, in {PAIRS} interleaved pairs in one process. The ratio is the median over "
        "the pairs of client CPU for each message, with over without. The last column is the CPU of the "
        "threads that report and serve, over that of the whole process: it is the finer measure.\n",
        "| statistics | queues | client CPU us/message, silent | ratio | threads of the page |",
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
    redrawn = redraws()
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


def pairs(uri: str, mode: str, queues: int, count: int) -> dict[str, Any]:
    names = [f"bench.page.{n}" for n in range(queues)]
    ratios, silent, own = [], [], []
    for number in range(PAIRS + 1):
        cost: dict[str, tuple[float, float]] = {}
        order = ["", mode] if number % 2 else [mode, ""]
        for each in order:
            cost[each] = run(uri, each, names, count)
        if number:  # the first pair warms up
            ratios.append(cost[mode][0] / cost[""][0])
            silent.append(cost[""][0] / count * 1e6)
            own.append(cost[mode][1] / cost[mode][0])
    return {
        "cpu": statistics.median(silent),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "own": statistics.median(own),
    }


def run(uri: str, mode: str, names: list[str], count: int) -> tuple[float, float]:
    """CPU seconds of this process for `count` messages, and those of the threads that report and serve."""
    harness.fill(uri, names, count, BODY)
    left = [count]
    done = threading.Event()

    def work(_: object) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    consumer = Consumer(uri, names, workers=1, report=mode == OUTSIDE, name="bench")
    consumer.handler(work)
    with contextlib.ExitStack() as stack:
        if mode == INSIDE:
            stack.enter_context(viewers(stack.enter_context(served(consumer))[1]))
        elif mode:
            stack.enter_context(viewers(stack.enter_context(a_page(uri))))
        began = time.process_time()
        consumer.start()
        if not done.wait(600):
            raise SystemExit("the messages did not come")
        spent = time.process_time() - began
        own = sum(_cpu(thread) for thread in threading.enumerate() if _extra(thread))
        consumer.stop()
    return spent, own


def _extra(thread: threading.Thread) -> bool:
    """True if it would not be there without statistics."""
    return thread.name.startswith(("leash-page", "leash-reporter")) or "process_request" in thread.name


def _cpu(thread: threading.Thread) -> float:
    """Seconds, as Linux counts them."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:  # it has ended
        return 0.0


@contextlib.contextmanager
def served(consumer: Consumer) -> Iterator[tuple[Page, str]]:
    """The page of a consumer in this process, as `leash consume --page` serves it."""
    page = Page(Fleet({}), lambda heard: Own(consumer, heard))
    try:
        yield page, page.start("127.0.0.1", 0)
    finally:
        page.stop()


@contextlib.contextmanager
def a_page(uri: str) -> Iterator[str]:
    """A `leash page` in a process of its own."""
    command = [sys.executable, "-m", "leash.cli", "page", "--port", "0"]
    environment = {**os.environ, "LEASH_URI": uri}  # not an argument: others could read the password
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


_VIEWER = """
import sys, urllib.request
for line in urllib.request.urlopen(sys.argv[1] + "events"):
    pass
"""


@contextlib.contextmanager
def viewers(url: str) -> Iterator[None]:
    """Five, in processes of their own; each has had the first view."""
    command = [sys.executable, "-c", _VIEWER, url]
    started = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(VIEWERS)]
    place = urlsplit(url)
    probe = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    probe.request("GET", "/view.json")
    probe.getresponse().read()
    probe.close()
    time.sleep(0.5)
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait(30)


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


# --- redraws ---

_REDRAW = """
(async () => {
  const { draw, state } = await import("/draw.js");
  const view = await (await fetch("/view.json")).json(), took = [];
  const history = [...Array(300).keys()].map((at) => ({ t: at, rate: at, depth: at, windows: { a: at } }));
  state.all = ROWS > 100;
  for (let turn = 0; turn < 31; turn++) {
    for (const q of view.queues) Object.assign(q, { depth: turn, rate: turn, in_work: turn, window: turn });
    const began = performance.now();
    draw(view, history);
    document.body.offsetHeight;
    took.push(performance.now() - began);
  }
  if (document.querySelectorAll("#queues tbody tr").length !== ROWS) throw new Error("rows are missing");
  return took.slice(1);
})()
"""


def redraws() -> list[dict[str, float]]:
    """Of a page with a thousand queues: a hundred of them shown, as by default, and all."""
    from tests.page.browser import CHROMIUM, Browser

    if CHROMIUM is None:
        return []
    found = []
    nobody = Consumer("amqp://nowhere.invalid", ["q"])  # it is never started: the reports are made up
    with tempfile.TemporaryDirectory() as folder, served(nobody) as (page, url):
        browser = Browser(Path(folder) / "profile")
        try:
            browser.open(url, 1600)
            browser.until("document.documentElement.dataset.drawn")
            for rows in (100, 1000):
                for seconds in (0.0, 1.0):
                    page.heard(time.time(), _report(seconds))
                took = sorted(browser.run(_REDRAW.replace("ROWS", str(rows))))
                found.append({"rows": rows, "median": statistics.median(took), "longest": took[-1]})
        finally:
            browser.stop()
    return found


def _report(seconds: float) -> dict[str, Any]:
    from tests.page import kit

    queues = {
        f"tenant-{n:04d}": kit.queue(handled=int(seconds * n), depth=n, took=[n], waited=[n])
        for n in range(1000)
    }
    return kit.report(seconds=seconds, queues=queues)
