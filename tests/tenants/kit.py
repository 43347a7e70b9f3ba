"""Publishers, worker processes and the ledgers of both."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from leash import Tenants
from leash.amqp import Outgoing, Properties, Publisher, connect

ROOT = Path(__file__).parents[2]

JOBS = Tenants("jobs", by="header:tenant", lanes=8, own=2)
"""As the worker processes have it, too."""


def message(
    tenant: str, body: bytes = b"", exchange: str = "jobs", key: str = "", user: str | None = None
) -> Outgoing:
    properties = Properties(headers={"tenant": tenant}, delivery_mode=2, user_id=user)
    return Outgoing(body, exchange, key, properties, mandatory=True)


def send(uri: str, messages: list[Outgoing]) -> None:
    with connect(uri) as connection, Publisher(connection) as publisher:
        publisher.publish(messages)


def apart(tenants: Tenants, uri: str, count: int, *keys: str) -> list[str]:
    """Names of tenants, each in a lane of its own, none of them that of one of `keys`."""
    state = tenants.state(uri)
    taken = {state.lane(key) for key in keys}
    names: list[str] = []
    for number in range(10_000):
        lane = state.lane(f"t{number}")
        if lane not in taken:
            taken.add(lane)
            names.append(f"t{number}")
            if len(names) == count:
                return names
    raise AssertionError(f"there are no {count} lanes left")


def together(tenants: Tenants, uri: str, key: str) -> str:
    """The name of another tenant in the lane of `key`."""
    state = tenants.state(uri)
    return next(f"t{n}" for n in range(10_000) if state.lane(f"t{n}") == state.lane(key))


class Ledger(threading.Thread):
    """Publishes numbers of several tenants until it is ended, and keeps those that were confirmed."""

    def __init__(self, uri: str, exchange: str, key: str, tenants: list[str], first: int = 0) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[int] = []
        self._uri, self._exchange, self._key, self._tenants = uri, exchange, key, tenants
        self._next = first
        self._ended = threading.Event()

    def run(self) -> None:
        with connect(self._uri) as connection, Publisher(connection) as publisher:
            while not self._ended.wait(0.005):
                numbers = range(self._next, self._next + 10)
                self._next = numbers.stop
                publisher.publish(
                    message(self._tenants[n % len(self._tenants)], b"%d" % n, self._exchange, self._key)
                    for n in numbers
                )
                self.confirmed += numbers

    def end(self) -> list[int]:
        self._ended.set()
        self.join(120)
        assert not self.is_alive()
        return self.confirmed


class Workers:
    """Consumers of the tenants in processes of their own, and what they handled."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self.ledger = folder / "handled.txt"
        self.ledger.touch()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.tenants.app", self._uri, str(self.ledger)]
        self.processes.append(subprocess.Popen(command, cwd=ROOT))

    def kill(self) -> None:
        process = self.processes.pop(0)
        process.kill()
        process.wait()

    def handled(self) -> Counter[int]:
        return Counter(int(line.split()[0]) for line in self.ledger.read_text().splitlines())

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            assert process.wait(120) == 0
        self.processes.clear()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
