"""What all measurements share: a virtual host on a broker, filled queues, a run that ends."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from leash.amqp import Properties, Publisher, connect
from leash.amqp.topology import declare_queue, delete_queue, state
from leash.amqp.uri import parse
from leash.amqp.wire import Outgoing
from leash.errors import LabTimeout
from leash.management import Management
from leash.units import SECOND

TRANSIENT = Properties(delivery_mode=1)
"""What the documents publish."""


@contextlib.contextmanager
def place(uri: str, management: Management) -> Iterator[str]:
    """A temporary virtual host, deleted with all its queues at the end."""
    name = f"lab-{secrets.token_hex(4)}"
    management.add_vhost(name)
    try:
        yield replace(parse(uri), vhost=name).reveal()
    finally:
        management.delete_vhost(name)


def turnaround(uri: str) -> int:
    """Ns that a thread oversleeps on this machine, plus the broker's time to answer."""
    took = []
    with connect(uri, name="lab") as connection, connection.channel() as channel:
        declare_queue(channel, "turnaround")
        for _ in range(100):
            began = time.monotonic_ns()
            time.sleep(0.01)
            state(channel, "turnaround")
            took.append(time.monotonic_ns() - began - SECOND // 100)
        delete_queue(channel, "turnaround")
    return round(statistics.median(took))


@contextlib.contextmanager
def prompt_threads() -> Iterator[None]:
    """Switch threads quickly: with several clients in one process, none should wait 5 ms for its turn."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def fill(uri: str, queues: Mapping[str, Iterable[Outgoing]]) -> None:
    """Declare queues and publish to them in turn, so that all grow together."""
    with connect(uri, name="lab") as connection:
        with connection.channel() as channel:
            for name in queues:
                declare_queue(channel, name)
        with Publisher(connection) as publisher:
            for messages in queues.values():
                publisher.publish(messages)


def plain(queue: str, count: int) -> Iterator[Outgoing]:
    return (Outgoing(b"x", "", queue, TRANSIENT) for _ in range(count))


class Server:
    """One worker whose work takes `seconds`: the excess of a sleep is subtracted from the next one.

    Like an ideal server, it begins with a message once it has arrived and the one before is done.
    """

    def __init__(self, seconds: float) -> None:
        self._work = round(seconds * SECOND)
        self._free = time.monotonic_ns()

    def serve(self, arrived: int) -> None:
        """Work on a message that arrived at `arrived`, in ns of the monotonic clock."""
        self._free = max(self._free, arrived) + self._work
        time.sleep(max(0, self._free - time.monotonic_ns()) / SECOND)


class Enough:
    """Counts the handlers' calls in order; set once there are enough."""

    def __init__(self, total: int) -> None:
        self.order: list[str] = []
        self.reached = threading.Event()
        self.began = self.ended = 0.0
        self._total = total

    def add(self, queue: str) -> None:
        order = self.order
        if not order:
            self.began = time.monotonic()
        order.append(queue)
        if len(order) == self._total:
            self.ended = time.monotonic()
            self.reached.set()

    def wait(self, seconds: float, progress: Callable[[float], None]) -> None:
        end = time.monotonic() + seconds
        while not self.reached.wait(0.1):
            progress(min(1.0, len(self.order) / self._total))
            if time.monotonic() > end:
                raise LabTimeout(f"{len(self.order)} of {self._total} messages in {seconds:g} s")
