"""What tests of a cluster's faults share: what can happen to a node, and a ledger of numbered messages."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from leash.amqp import Outgoing, Properties, Publisher, connect
from leash.broker import Broker, Cluster
from leash.errors import AmqpError, BrokerError
from tests.consumer.kit import until

ORDERED = {"x-single-active-consumer": True}
_PERSISTENT = Properties(delivery_mode=2)

# --- the ledger ---


class Feed(threading.Thread):
    """Publishes numbers to a queue, at any node that takes them, some at a time, until it is ended."""

    def __init__(self, uri: str, queue: str, burst: int = 1, pause: float = 0.02) -> None:
        super().__init__(daemon=True)
        self.queue = queue
        self.next = 0
        self.confirmed: dict[int, float] = {}
        """The numbers that the broker took, and when it said so."""
        self._uri, self._burst, self._pause = uri, burst, pause
        self._ended = threading.Event()

    def run(self) -> None:
        left = ""
        while not self._ended.is_set():
            try:
                with connect(self._uri, avoid=left) as link:
                    left = link.where
                    self._publish_on(Publisher(link, timeout=3))
            except AmqpError:  # those in doubt are never sent again: their numbers are given up
                self._ended.wait(0.1)

    def _publish_on(self, publisher: Publisher) -> None:
        while not self._ended.wait(self._pause):
            numbers = range(self.next, self.next + self._burst)
            self.next = numbers.stop
            publisher.publish(Outgoing(b"%d" % number, "", self.queue, _PERSISTENT) for number in numbers)
            self.confirmed.update(dict.fromkeys(numbers, time.monotonic()))

    def end(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(120)


class Handled(NamedTuple):
    number: int
    flagged: bool
    at: float
    """By the monotonic clock, which all processes share."""


def check_repeats(handled: list[Handled], queue: str) -> int:
    """Nothing came twice but what is flagged; returns how many did."""
    seen: set[int] = set()
    for each in handled:
        assert each.number not in seen or each.flagged, f"{each} of {queue} came twice, unflagged"
        seen.add(each.number)
    return len(handled) - len(seen)


def check_order(numbers: list[int], confirmed: Collection[int]) -> None:
    """One that was not confirmed may still lie at a frozen node, and come when that is back."""
    first = list(dict.fromkeys(number for number in numbers if number in confirmed))
    assert first == sorted(first)


# --- what can happen to a node ---


def killed(_: Cluster, node: Broker) -> Iterator[None]:
    node.kill()
    try:
        yield
    finally:
        node.start()


def stopped(_: Cluster, node: Broker) -> Iterator[None]:
    node.stop()
    try:
        yield
    finally:
        node.start()


def frozen(_: Cluster, node: Broker) -> Iterator[None]:
    node.pause()
    try:
        yield
    finally:
        node.resume()


def drained(_: Cluster, node: Broker) -> Iterator[None]:
    node.drain()
    try:
        yield
    finally:
        node.revive()


def cut_off(cluster: Cluster, node: Broker) -> Iterator[None]:
    with cluster.split(node):
        yield


FAULTS = {
    fault.__name__: contextlib.contextmanager(fault) for fault in (killed, stopped, frozen, drained, cut_off)
}


def add_vhost(cluster: Cluster, name: str) -> None:
    """RabbitMQ 3.10 may not answer while its nodes have just joined; asked again, it does."""

    def answered() -> bool:
        try:
            cluster.management.add_vhost(name)
        except BrokerError:
            return False
        return True

    until(answered)
