"""`leash plan`: 2,000 settings swept on one core and on two."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench.harness import ROOT, publish_section
from leash.amqp import connect

SETTINGS = 2_000
ROUNDS = 3
TARGET = 1.7


def main(uri: str) -> None:
    """Interleaved, each in a process of its own with a warm session."""
    took: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for cores, times in took.items():
            command = [sys.executable, "-m", "bench.plan", str(cores)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
            if done.returncode:
                raise SystemExit(f"the sweep failed: {done.stderr.strip()[-800:]}")
            times.append(float(done.stdout.split()[-1]))
    seconds = {cores: statistics.median(times) for cores, times in took.items()}
    ratio = seconds[1] / seconds[2]
    verdict = "met" if ratio >= TARGET else "MISSED"
    text = "\n".join(
        [
            f"## What-if: {SETTINGS:,} settings through the simulator",
            "",
            "| cores | seconds | settings/s |",
            "|--:|--:|--:|",
            *(f"| {cores} | {took:.1f} | {SETTINGS / took:,.0f} |" for cores, took in seconds.items()),
            "",
            f"{ratio:.2f} times faster on two cores than on one; at least {TARGET}: {verdict}.",
        ]
    )
    print("\n" + text, flush=True)
    with connect(uri) as connection:
        version = str(connection.server["version"])
    publish_section("plan", text, version, {"seconds": seconds, "ratio": ratio})


def sweep_on(cores: int) -> float:
    """Seconds of the sweep itself: no start of Spark, no import in the workers."""
    from leash.lab import sweep, whatif

    spark = sweep.session(f"local[{cores}]", "leash bench")
    try:
        plan = whatif.Plan(
            streams=(whatif.Stream("work", work=4.0),),
            round_trip=100.0,
            windows=tuple(range(1, 101)),
            workers=tuple(range(1, 21)),
        )
        warm = whatif.Plan(streams=plan.streams, round_trip=1.0, windows=tuple(range(1, 9)), workers=(1,))
        sweep.sweep(spark, warm)
        began = time.perf_counter()
        outcomes = sweep.sweep(spark, plan)
        took = time.perf_counter() - began
        assert len(outcomes) == SETTINGS
        return took
    finally:
        spark.stop()


if __name__ == "__main__":
    print(sweep_on(int(sys.argv[1])))
