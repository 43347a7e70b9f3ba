"""What part of a budget's rate eight processes reach together, and how near the bound they come.

`python -m bench budgets`. Each process notes when its handlers start. The rate is taken over whole turns of
the wheel: between a start and the one that is a multiple of the burst later.
"""

from __future__ import annotations

import array
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from bench.harness import ROOT, fill, publish_section
from leash import Budget, Consumer, Message, Queue
from leash.amqp import connect

PROCESSES, WORKERS = 8, 2
BEGIN = 6.0
"""Seconds for all processes to start."""

QUEUE = "bench.budgets"
LEASE = 0.1


class Case(NamedTuple):
    rate: float
    burst: int
    seconds: float


CASES = [
    Case(0.5, 1, 16.0),
    Case(50, 50, 8.0),
    Case(50, 5, 6.0),
    Case(1000, 1000, 8.0),
    Case(1000, 100, 6.0),
    Case(20_000, 20_000, 6.0),
]


def main(uri: str) -> None:
    with connect(uri) as connection:
        broker = ".".join(map(str, connection.version))
    rows = [measure(uri, case) for case in CASES]
    lines = [
        f"## A budget over {PROCESSES} processes",
        "",
        "| rate per second | burst | T in s | part of the rate | most above the bound |",
        "|--:|--:|--:|--:|--:|",
    ]
    for case, (reached, above) in zip(CASES, rows, strict=True):
        period = case.burst / case.rate
        lines.append(f"| {case.rate:g} | {case.burst} | {period:g} | {reached:.3f} | {above:.1f} |")
        print(lines[-1], flush=True)
    lines += ["", f"The bound is burst + rate x (t + {LEASE}); a number below 0 is within it."]
    data = [
        {**case._asdict(), "reached": reached, "above": above}
        for case, (reached, above) in zip(CASES, rows, strict=True)
    ]
    publish_section("budgets", "\n".join(lines), broker, data)


def measure(uri: str, case: Case) -> tuple[float, float]:
    """The part of the rate that was reached, and the most permits above the bound in any interval."""
    fill(uri, [QUEUE], int(case.rate * (BEGIN + case.seconds + 6)) + 2 * case.burst, 10)
    with tempfile.TemporaryDirectory() as folder:
        books = [Path(folder) / str(at) for at in range(PROCESSES)]
        command = [sys.executable, "-m", "bench.budgets", uri, str(case.rate), str(case.burst)]
        running = [subprocess.Popen([*command, str(book)], cwd=ROOT) for book in books]
        time.sleep(BEGIN)
        settled = time.monotonic_ns()
        time.sleep(case.seconds)
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)
        starts = array.array("q")
        for book in books:
            starts.frombytes(book.read_bytes())
    ordered = sorted(starts)
    first = bisect_left(ordered, settled)
    turns = (len(ordered) - 1 - first) // case.burst
    last = first + turns * case.burst
    seconds = (ordered[last] - ordered[first]) / 1e9
    return turns * case.burst / case.rate / seconds, above(ordered, case)


def above(starts: list[int], case: Case) -> float:
    """By how many starts the worst interval is above the bound."""
    worst = best = float("-inf")
    for count, at in enumerate(starts):
        earned = case.rate * (at - starts[0]) / 1e9
        best = max(best, earned - count)
        worst = max(worst, count + 1 - earned + best)
    return worst - case.burst - case.rate * LEASE


def work(uri: str, rate: str, burst: str, book: str) -> None:
    """One process: notes its handlers' starts, and writes them at the end."""
    starts = array.array("q")
    budget = Budget(f"bench-{rate}-{burst}", rate=rate, burst=int(burst), lease=LEASE)
    consumer = Consumer(uri, [Queue(QUEUE, budget=budget)], workers=WORKERS)

    @consumer.handler
    def handle(_: Message) -> None:
        starts.append(time.monotonic_ns())

    consumer.run()
    Path(book).write_bytes(starts.tobytes())


if __name__ == "__main__":
    work(*sys.argv[1:])
