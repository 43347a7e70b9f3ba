"""A consumer that knows three nodes goes on while one of them is away, frozen, in maintenance or cut off.

The ledger: what was confirmed is handled, nothing twice but what is flagged, and the ordered queue in order.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import connect
from leash.amqp.topology import declare_queue
from leash.broker import Broker, Cluster
from tests.consumer.kit import running, until
from tests.faults.kit import FAULTS, ORDERED, Feed, Handled, add_vhost, check_order, check_repeats


class Line:
    """Numbered messages go in at one end, at any node that takes them, and come out at the other."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.handled: dict[str, list[Handled]] = {"plain": [], "ordered": []}
        self.feeds = [Feed(uri, name) for name in self.handled]
        with connect(uri) as link, link.channel() as channel:
            declare_queue(channel, "plain", kind="quorum")
            declare_queue(channel, "ordered", kind="quorum", arguments=ORDERED)
        self.consumer = Consumer(uri, [Queue("plain"), Queue("ordered", ordered=True)], workers=2)
        self.consumer.handler(self._work)

    def _work(self, message: Message) -> None:
        self.handled[message.queue].append(Handled(int(message.body), message.redelivered, time.monotonic()))

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        with running(self.consumer):
            for feed in self.feeds:
                feed.start()
            try:
                self.goes_on("before any fault")
                yield
                for feed in self.feeds:
                    feed.end()
                until(self._all_handled, what="not everything was handled")
            finally:
                for feed in self.feeds:
                    feed.end()
        self._check()

    def goes_on(self, when: str) -> None:
        """What is published from now on comes out, of both queues."""
        firsts = {feed.queue: feed.next for feed in self.feeds}

        def both() -> bool:
            return all(
                any(each.number >= first for each in self.handled[name]) for name, first in firsts.items()
            )

        until(both, what=f"stands still {when}")

    def node(self, cluster: Cluster) -> Broker:
        """The node that the consumer is connected to."""
        port = self.consumer.stats().host.rpartition(":")[2]
        return next(node for node in cluster.nodes if node.port("amqp") == int(port))

    def _all_handled(self) -> bool:
        return all(
            feed.confirmed.keys() <= {each.number for each in self.handled[feed.queue]} for feed in self.feeds
        )

    def _check(self) -> None:
        for feed in self.feeds:
            handled = self.handled[feed.queue]
            check_repeats(handled, feed.queue)
            if feed.queue == "ordered":
                check_order([each.number for each in handled], feed.confirmed)


def version(uri: str) -> tuple[int, ...]:
    with connect(uri) as link:
        return link.version


@pytest.fixture
def line(cluster: Cluster) -> Iterator[Line]:
    name = f"line-{secrets.token_hex(3)}"
    add_vhost(cluster, name)
    yield Line(cluster.uri_of(name))
    cluster.management.delete_vhost(name)


@pytest.mark.parametrize("name", FAULTS)
def test_it_goes_on_elsewhere_while_its_node_is(name: str, cluster: Cluster, line: Line) -> None:
    if name == "frozen" and version(line.uri) < (4, 2):
        pytest.skip("before Khepri, a node that was frozen for long does not find back to its cluster")
    with line.moving():
        node = line.node(cluster)
        fault: AbstractContextManager[None] = FAULTS[name](cluster, node)
        with fault:
            line.goes_on(f"while {node.name} was {name}")
            assert line.node(cluster) is not node
        cluster.wait_joined()
        line.goes_on("afterwards")


def test_it_does_not_come_back_to_a_node_in_maintenance(cluster: Cluster, line: Line) -> None:
    with line.moving():
        first = line.node(cluster)
        with FAULTS["drained"](cluster, first):
            line.goes_on("during the maintenance of its node")
            second = line.node(cluster)
            second.ctl("close_all_connections", "--global", "a test")
            until(lambda: line.node(cluster) not in (first, second))
            line.goes_on("at the third node")


def test_without_a_majority_it_waits_and_nothing_is_lost(cluster: Cluster, line: Line) -> None:
    with line.moving():
        node = line.node(cluster)
        for other in cluster.nodes:
            if other is not node:
                other.kill()
        time.sleep(3)
        cluster.start()
        line.goes_on("once all three are back")
