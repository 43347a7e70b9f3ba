"""How tests wait: for a condition, and for so long that only a hang runs into the limit."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONG = 300.0
"""Seconds. A machine that is busy with other things may need most of them."""


def until(condition: Callable[[], object], seconds: float = LONG, what: str = "") -> None:
    """Wait until `condition` is true; the test fails if it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s{': ' if what else ''}{what}")
        time.sleep(0.005)


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that is killed at the end. `with Popen` waits for it, even after a failed assertion."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
