"""Which driver owns a run, and whether it is alive.

In the same process namespace of the same machine the kernel knows exactly, whatever the host is called now.
For all others only heartbeats count: the owner's file changes every few seconds. They are timed by our own
clock, from the moment we look: another machine's clock may be wrong.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from leash.spark.staging import paths
from leash.spark.staging.files import Files

CLAIM_EVERY = 10.0  # seconds
SILENT = 60.0
"""Seconds without a sign of life until a run counts as abandoned; earlier versions gave one in 30."""
_LOOK_EVERY = 0.5


def claim(files: Files, run: str) -> None:
    """Record that this process drives the run now."""
    told = {
        "host": socket.gethostname(),
        "place": _place(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "at": time.time_ns(),
    }
    files.replace(paths.owner(run), json.dumps(told).encode())


def keep_claiming(files: Files, run: str, stop: threading.Event) -> None:
    """Claim a run now, and again in the background until `stop` is set."""

    def again() -> None:
        while not stop.wait(CLAIM_EVERY):
            with suppress(Exception):  # object stores raise many kinds of errors, and the next try is soon
                claim(files, run)

    claim(files, run)
    threading.Thread(target=again, daemon=True).start()


def alive(files: Files, run: str) -> bool | None:
    """True if the run's owner is alive; None if we cannot see its machine."""
    data = files.read(paths.owner(run))
    if data is None:
        return False
    told = json.loads(data)
    place = _place()
    if not place or told.get("place") != place:
        return None
    return bool(told["born"] == _born(told["pid"]))


def silent(
    files: Files,
    runs: Iterable[str],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> set[str]:
    """The runs whose owners show no heartbeat for a minute; returns early if all do."""
    quiet = {run: files.read(paths.owner(run)) for run in runs}
    deadline = clock() + SILENT
    while quiet and clock() < deadline:
        sleep(_LOOK_EVERY)
        quiet = {run: data for run, data in quiet.items() if files.read(paths.owner(run)) == data}
    return set(quiet)


def _place() -> str:
    """The scope in which process ids are unique and visible: one boot, one namespace, one user."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:
        return ""


def _born(pid: int) -> str:
    """When the process started, according to the kernel: a process id alone may have been reused."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return "gone"
