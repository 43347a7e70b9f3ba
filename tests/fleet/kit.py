"""Processes under one budget, and the ledger of what their handlers did."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from leash.amqp import Outgoing, Properties, Publisher, connect, topology
from tests.waiting import until

APP = Path(__file__).parent / "app.py"


def publish(uri: str, queue: str, count: int, lasting: bool = False) -> None:
    with connect(uri) as connection:
        with connection.channel() as channel:
            topology.declare_queue(channel, queue)
        mode = Properties(delivery_mode=2 if lasting else 1)
        with Publisher(connection) as publisher:
            publisher.publish([Outgoing(b"x", "", queue, mode) for _ in range(count)])


class Fleet:
    """Consumers of their own processes."""

    def __init__(self, uri: str, ledger: Path, *numbers: str) -> None:
        self.uri = uri
        self.ledger = ledger
        self._numbers = numbers
        self.processes: list[subprocess.Popen[bytes]] = []
        self.dead: dict[int, int] = {}
        """When those that were killed did nothing any more."""
        self._read = 0
        self._rows: list[tuple[int, str, int]] = []

    def start(self, queue: str, workers: int = 2, seconds: float = 0) -> subprocess.Popen[bytes]:
        arguments = [self.uri, str(self.ledger), queue, str(workers), str(seconds), *self._numbers]
        process = subprocess.Popen([sys.executable, str(APP), *arguments])
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes] | None = None) -> None:
        """One of them, as a crash would end it. It is stopped first, so that its last moment is known."""
        process = process or random.choice(self.processes)
        self.processes.remove(process)
        assert process.poll() is None, "a process ended by itself"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        self.dead[process.pid] = time.monotonic_ns()
        process.kill()
        process.wait()

    def stop_and_continue(self, seconds: float) -> None:
        """One of them does nothing for a while, and does not know it."""
        process = random.choice(self.processes)
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.processes.clear()

    def rows(self) -> list[tuple[int, str, int]]:
        """When, begin or end, and by whom, in the order of time."""
        if self.ledger.exists():
            with self.ledger.open("rb") as ledger:
                ledger.seek(self._read)
                text = ledger.read()
            text = text[: text.rfind(b"\n") + 1]
            self._read += len(text)
            lines = [line.split() for line in text.decode().splitlines()]
            self._rows.extend((int(line[0]), line[1], int(line[2])) for line in lines)
            self._rows.sort()
        return list(self._rows)

    def starts(self) -> list[int]:
        return [at for at, what, _ in self.rows() if what == "begin"]

    def wait_for(self, starts: int) -> None:
        """Wait until so many handlers have begun."""
        until(lambda: len(self.starts()) >= starts, what=f"{starts} handlers begin")


def excess(starts: list[int], rate: float, burst: int, lease: float) -> float:
    """By how much the worst of all intervals is above `burst + rate * (t + lease)`; below 0 is within."""
    worst, best_begin = float("-inf"), float("-inf")
    for count, at in enumerate(starts):
        earned = rate * (at - starts[0]) / 1e9
        best_begin = max(best_begin, earned - count)
        worst = max(worst, count + 1 - earned + best_begin)
    return worst - burst - rate * lease


def most_at_once(rows: list[tuple[int, str, int]], dead: dict[int, int]) -> int:
    """How many handlers were at work at the same time; those of a process end when it died."""
    at_work: dict[int, int] = {}
    most = 0
    for at, what, process in sorted([*rows, *[(when, "dead", who) for who, when in dead.items()]]):
        if what == "dead":
            at_work[process] = 0
        else:
            at_work[process] = at_work.get(process, 0) + (1 if what == "begin" else -1)
        most = max(most, sum(at_work.values()))
        assert at
    return most
