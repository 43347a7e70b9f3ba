"""A task in a process of its own that dies, or waits, at a chosen point of the protocol."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_started: list[subprocess.Popen[bytes]] = []


def start(given: dict[str, str], partition: object, point: str, flag: Path) -> subprocess.Popen[bytes]:
    """Runs the split up to `point`, such as "before-seal die" or "after-seal wait" (for the file `flag`)."""
    process = subprocess.Popen([sys.executable, "-m", "tests.spark.victim"], cwd=ROOT, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps((given, pickle.dumps(partition), point, str(flag))))
    process.stdin.close()
    _started.append(process)
    return process


def end_all() -> None:
    for process in _started:
        process.kill()
        process.wait()
    _started.clear()


def die(given: dict[str, str], partition: object, point: str) -> None:
    assert start(given, partition, f"{point} die", Path("unused")).wait(60) == -signal.SIGKILL


def _run(given: dict[str, str], partition: bytes, point: str, flag: str) -> None:
    from leash.spark import seals, taking

    from .harness import make_reader

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        Path(flag + ".there").touch()
        deadline = time.monotonic() + 60
        while not Path(flag).exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    at, what = point.split()
    act = {"wait": wait, "die": kill}[what]
    if at == "before-seal":
        seals.place_seal = _before(seals.place_seal, act)
    elif at == "after-seal":
        seals.place_seal = _after(seals.place_seal, act)
    elif at == "after-ack":
        taking.QueueTaker.ack = _after(taking.QueueTaker.ack, act)  # type: ignore[method-assign]
    task = make_reader(given)
    rows = [row for batch in task.read(pickle.loads(partition)) for row in batch.to_pylist()]  # noqa: S301
    Path(flag + ".rows").write_bytes(pickle.dumps(rows))


def _before(real: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        act()
        return real(*args)

    return wrapped


def _after(real: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        result = real(*args)
        act()
        return result

    return wrapped


if __name__ == "__main__":
    _run(*pickle.load(sys.stdin.buffer))  # noqa: S301
