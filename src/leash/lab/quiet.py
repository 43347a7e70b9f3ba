"""Tells whether the machine lets us measure: a process that only sleeps, and how late it wakes up.

On a shared machine the processor is sometimes away for tens of ms. That spoils every figure in ms, and the
figures cannot show the cause: a process that does nothing else can.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, Self, TypeVar

from leash.lab.figures import Run

T = TypeVar("T")

NAP = 0.002
LATE = 0.001
"""Seconds: less than this is the usual time to wake up."""

QUIET = 0.02
"""The share of time that a machine may be away: with a round trip of 100 ms, 1 % costs a worker 1 %."""

TRIES = 8


class Sleeper:
    """A separate process, so that our own work does not make it late."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "leash.lab.quiet"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._reader = threading.Thread(target=self._read, name="lab sleeper", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._reader.join()  # before its file is closed
        with self._process:
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, late = line.split()
            self._late.append((float(at), float(late)))

    def away(self, since: float, until: float) -> float:
        """The share of this interval of the monotonic clock in which the machine was away."""
        late = sum([late for at, late in self._late if since <= at < until])
        return late / (until - since)


class Quietest(NamedTuple, Generic[T]):
    """The measurement, the share of time that the machine was away meanwhile, and the number of tries."""

    value: T
    away: float
    tries: int


def quietest(measure: Callable[[], T], quiet: float = QUIET) -> Quietest[T]:
    """Repeat a measurement until the machine was quiet meanwhile, or take the quietest.

    It never looks at the measured values.
    """
    tries: list[tuple[T, float]] = []
    with Sleeper() as sleeper:
        while len(tries) < TRIES and not (tries and tries[-1][1] <= quiet):
            since = time.monotonic()
            value = measure()
            tries.append((value, sleeper.away(since, time.monotonic())))
    return Quietest(*min(tries, key=lambda tried: tried[1]), len(tries))


def timed(run: Run, measure: Callable[[], T], quiet: float = QUIET) -> T:
    """The same for a lab's run, which records the largest share of time away, and the repetitions."""
    value, away, tries = quietest(measure, quiet)
    run.away = max(run.away, away)
    run.again += tries - 1
    return value


def _sleep() -> None:
    """Report every sleep that was too long, until the reader is gone."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    before = time.monotonic()
    while True:
        time.sleep(NAP)
        now = time.monotonic()
        late = now - before - NAP
        if late > LATE:
            sys.stdout.write(f"{now} {late}\n")
            sys.stdout.flush()
            now = time.monotonic()
        before = now


if __name__ == "__main__":
    _sleep()
