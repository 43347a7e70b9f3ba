"""Streams to a stream, while driver, task workers and brokers are killed and leaders move."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from leash.broker import Broker
from leash.errors import AmqpError
from leash.streams import connect, first_and_end
from tests.spark.app import kill
from tests.spark.workers import python_workers
from tests.waiting import LONG

from . import app
from .kit import contents, fill, make

SOURCES = ("a", "b")


def crash(node: Broker) -> None:
    """Kill a node, and start it again."""
    node.kill()
    node.start()


def storm(
    place: str,
    faults: Mapping[str, Callable[[], object]],
    folder: Path,
    count: int,
    per_trigger: int,
    victims: list[str],
    seed: int,
) -> None:
    """`count` messages in all; one victim after the other, each once the output grows again. Then every row
    must be there once, in order per stream.

    A victim is the "driver", a "worker", or one of the `faults`. All of them must come before the end.
    """
    chance = random.Random(seed)
    make(place, *SOURCES, "out")
    each = count // len(SOURCES)
    for number, name in enumerate(SOURCES):
        fill(place, name, number * each, each, pieces=10)
    source = {"url": place, "streams": "a:2,b:1", "maxRecordsPerTrigger": str(per_trigger), "ordered": "true"}
    sink = {"url": place, "stream": "out", "confirmTimeout": "120s"}
    program = app.start(source, sink, folder)
    try:
        for number, victim in enumerate(victims):
            program = _wait(program, source, sink, folder, place, count)
            assert _end(place) < count, f"all was done before kill {number} of {len(victims)}"
            time.sleep(chance.uniform(0, 2))  # any moment will do: that is the point
            if victim == "driver":
                kill(program)
                program = app.start(source, sink, folder)
            elif victim in faults:
                faults[victim]()
            else:
                for pid in python_workers(program.pid)[:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    finally:
        if program.poll() is None:
            kill(program)
    last = app.start(source | {"maxRecordsPerTrigger": str(count)}, sink, folder, available_now=True)
    try:
        assert last.wait(900) == 0, (folder / "errors.txt").read_text()[-3000:]
    finally:
        if last.poll() is None:
            kill(last)
    _check(place, each)


def _wait(
    program: subprocess.Popen[bytes],
    source: dict[str, str],
    sink: dict[str, str],
    folder: Path,
    place: str,
    count: int,
) -> subprocess.Popen[bytes]:
    """Until the output has grown, or is complete; a program that gave up is started again."""
    before, deadline = _end(place), time.monotonic() + LONG
    while (now := _end(place)) == before and now < count:
        if program.poll() is not None:
            program = app.start(source, sink, folder)
        assert time.monotonic() < deadline, (folder / "errors.txt").read_text()[-3000:]
        time.sleep(0.2)
    return program


def _end(place: str) -> int:
    try:
        with connect(place) as link:
            return first_and_end(link, "out").end
    except AmqpError:
        return -1


def _check(place: str, each: int) -> None:
    came = [int(value) for value in contents(place, "out")]
    assert len(came) == each * len(SOURCES)
    for number in range(len(SOURCES)):
        own = range(number * each, (number + 1) * each)
        assert [value for value in came if value in own] == list(own)
