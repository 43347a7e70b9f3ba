"""A process that changes partitions and kills itself at a step."""

from __future__ import annotations

import multiprocessing
import os
import signal

from leash.partitions import Partitions
from tests.partitions.helpers import weights

SLOTS = 20
SETTLE = 0.1

# Forked from a process that has everything imported: a second saved for every step.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["leash.partitions.partitions"])


def die_at(step: str, uri: str, count: int) -> int | None:
    """Change the partitions to so many queues, up to that step; the process's exit status."""
    process = _processes.Process(target=_change, args=(uri, count, step))
    process.start()
    process.join(120)
    return process.exitcode


def _change(uri: str, count: int, step: str) -> None:
    def reached(now: str) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Partitions("orders", weights(count), slots=SLOTS).apply(uri, settle=SETTLE, reached=reached)
