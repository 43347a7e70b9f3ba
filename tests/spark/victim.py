"""A task in a process of its own that dies, or waits, at a chosen point of the protocol."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import LONG

ROOT = Path(__file__).parents[2]
_started: list[subprocess.Popen[bytes]] = []

_UNUSED = Path(tempfile.gettempdir(), "leash-unused")


def start(
    given: dict[str, str], partition: object, point: str, flag: Path, times: int = 0
) -> subprocess.Popen[bytes]:
    """Runs the split up to `point`, such as "before-seal die" or "after-seal wait" (for the file `flag`).

    With several points, "after-copy,before-seal die", up to the first that it comes to.
    """
    process = subprocess.Popen([sys.executable, "-m", "tests.spark.victim"], cwd=ROOT, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps((times, given, pickle.dumps(partition), point, str(flag))))
    process.stdin.close()
    _started.append(process)
    return process


def end_all() -> None:
    for process in _started:
        process.kill()
        process.wait()
    _started.clear()


def die(given: dict[str, str], partition: object, point: str) -> None:
    assert start(given, partition, f"{point} die", _UNUSED).wait(LONG) == -signal.SIGKILL


def die_often(given: dict[str, str], partition: object, point: str, times: int) -> None:
    """One attempt after the other. A process that has loaded everything forks each of them."""
    assert start(given, partition, f"{point} die", _UNUSED, times).wait(LONG) == 0


def crowd(given: dict[str, str], partition: object, times: int, seed: int) -> None:
    """Attempts that overlap, each killed at any moment, or left alone to finish."""
    assert start(given, partition, f"{seed} crowd", _UNUSED, times).wait(LONG) == 0


def _crowd(times: int, seed: str, *told: Any) -> None:
    chance = random.Random(seed)
    alive: list[int] = []
    for number in range(times):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(Exception):
                _run(*told)
            os._exit(0)
        alive.append(child)
        time.sleep(chance.uniform(0, 0.3))
        if len(alive) > 2 or number == times - 1:
            chance.shuffle(alive)
            while len(alive) > chance.randint(0, 2):
                os.kill(alive[0], signal.SIGKILL)
                os.waitpid(alive.pop(0), 0)
    for child in alive:
        os.waitpid(child, 0)


def _load() -> None:
    """What every attempt needs."""
    import pyspark.sql.pandas.types

    import leash.spark.task.read  # noqa: F401

    from . import harness  # noqa: F401

    assert pyspark.sql.pandas.types


def _fork(times: int, *told: Any) -> None:
    for _ in range(times):
        child = os.fork()
        if child == 0:
            _run(*told)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), status


def _run(given: dict[str, str], partition: bytes, point: str, flag: str) -> None:
    from leash.spark.staging import seals
    from leash.spark.task import rescuing, taking

    from .harness import make_reader

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        Path(flag + ".there").touch()
        deadline = time.monotonic() + 60
        while not Path(flag).exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    points, what = point.split()
    act = {"wait": wait, "die": kill}[what]
    for at in points.split(","):
        if at == "before-seal":
            seals.place_seal = _before(seals.place_seal, act)
        elif at == "after-seal":
            seals.place_seal = _after(seals.place_seal, act)
        elif at == "after-copy":
            rescuing.Rescuer.send = _after(rescuing.Rescuer.send, act)  # type: ignore[method-assign]
        elif at == "after-ack":
            taking.QueueTaker.ack = _after(taking.QueueTaker.ack, act)  # type: ignore[method-assign]
    task = make_reader(given)
    rows = [row for batch in task.read(pickle.loads(partition)) for row in batch.to_pylist()]  # noqa: S301
    Path(flag + ".rows").write_bytes(pickle.dumps(rows))


def _before(real: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    def wrapped(*args: Any, **more: Any) -> Any:
        act()
        return real(*args, **more)

    return wrapped


def _after(real: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    def wrapped(*args: Any, **more: Any) -> Any:
        result = real(*args, **more)
        act()
        return result

    return wrapped


if __name__ == "__main__":
    repeats, options, part, where, file = pickle.load(sys.stdin.buffer)  # noqa: S301
    if repeats:
        _load()
    if not repeats:
        _run(options, part, where, file)
    elif where.endswith("crowd"):
        _crowd(repeats, where, options, part, "nowhere die", file)
    else:
        _fork(repeats, options, part, where, file)
