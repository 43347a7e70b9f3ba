"""`leash plan`: 2,000 settings swept on one core and on two."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

from bench.harness import ROOT, publish_section
from leash.amqp import connect

SETTINGS = 2_000
ROUNDS = 3
TARGET = 1.7


def main(uri: str) -> None:
    """Interleaved, each in a process of its own with a warm session; and what the machine itself allows."""
    took: dict[int, list[float]] = {1: [], 2: []}
    bare: list[float] = []
    for _ in range(ROUNDS):
        for cores, times in took.items():
            times.append(*_run([str(cores)]))
        alone, beside = _run(["bare"])[0], max(_run(["bare", "bare"]))
        bare.append(2 * alone / beside)
    seconds = {cores: statistics.median(times) for cores, times in took.items()}
    ratio = statistics.median(one / two for one, two in zip(took[1], took[2], strict=True))
    possible = statistics.median(bare)
    verdict = "met" if ratio >= TARGET else "MISSED"
    text = "\n".join(
        [
            f"## What-if: {SETTINGS:,} settings through the simulator",
            "",
            "| cores | seconds | settings/s |",
            "|--:|--:|--:|",
            *(f"| {cores} | {took:.1f} | {SETTINGS / took:,.0f} |" for cores, took in seconds.items()),
            "",
            f"{ratio:.2f} times faster on two cores than on one, the median of {ROUNDS} pairs; "
            f"at least {TARGET}: {verdict}. "
            f"Two bare processes that simulate, without Spark, do {possible:.2f} times the work of one here.",
        ]
    )
    print("\n" + text, flush=True)
    with connect(uri) as connection:
        version = str(connection.server["version"])
    publish_section("plan", text, version, {"seconds": took, "ratio": ratio, "bare": bare})


def _run(modes: list[str]) -> list[float]:
    """Seconds of each, all at the same time."""
    commands = [[sys.executable, "-m", "bench.plan", mode] for mode in modes]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    found = []
    for process in running:
        out, err = process.communicate(timeout=600)
        if process.returncode:
            raise SystemExit(f"the sweep failed: {err.strip()[-800:]}")
        found.append(float(out.split()[-1]))
    return found


def _plan() -> Any:
    from leash.lab import plan as plans

    return plans.Plan(
        streams=(plans.Stream("work", work=4.0),),
        round_trip=100.0,
        windows=tuple(range(1, 101)),
        workers=tuple(range(1, 21)),
    )


def sweep_on(cores: int) -> float:
    """Seconds of the sweep itself: no start of Spark, no import in the workers."""
    from leash.lab import plan as plans
    from leash.lab import sweep

    spark = sweep.session(f"local[{cores}]", "leash bench")
    try:
        plan = _plan()
        warm = plans.Plan(streams=plan.streams, round_trip=1.0, windows=tuple(range(1, 9)), workers=(1,))
        sweep.sweep(spark, warm)
        began = time.perf_counter()
        outcomes = sweep.sweep(spark, plan)
        took = time.perf_counter() - began
        assert len(outcomes) == SETTINGS
        return took
    finally:
        spark.stop()


def bare() -> float:
    """Seconds of every fifth setting, in this process."""
    from leash.lab import plan as plans

    plan = _plan()
    settings = list(plan.settings())[::5]
    began = time.perf_counter()
    for setting in settings:
        plans.try_out(plan, setting)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(bare() if sys.argv[1] == "bare" else sweep_on(int(sys.argv[1])))
