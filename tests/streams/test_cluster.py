"""Streams on three nodes: leaders move, nodes are killed, and every row is there once."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from leash import Consumer, Message, Stream
from leash.broker import Broker, Cluster
from leash.errors import AmqpError
from leash.lab.proxy import Proxy
from leash.streams import (
    Publisher,
    Reader,
    connect,
    create_stream,
    first_and_end,
    open_leader,
    open_member,
    parse,
)
from leash.streams import reader as reader_module
from leash.streams.wire import Member, Placement
from tests.consumer.kit import running, until
from tests.faults.kit import add_vhost
from tests.streams.kit import move_leader, placed

STREAM = "s"
REPLICAS = 2


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%0100d" % number for number in range(start, stop)]


class Place:
    """A stream with a member on each node."""

    def __init__(self, cluster: Cluster, vhost: str) -> None:
        self.cluster = cluster
        self.vhost = vhost
        self.uri = cluster.stream_place(vhost).reveal()
        with connect(self.uri) as connection:
            create_stream(connection, STREAM)
        self.settle()

    def found(self) -> Placement:
        return placed(self.uri, STREAM)

    def settle(self) -> None:
        """Until the stream has a leader and two replicas."""

        def whole() -> bool:
            now = self.found()
            return now.leader is not None and len(now.replicas) == REPLICAS

        until(whole, 180, "the stream has not all of its members")

    def node(self, member: Member | None) -> Broker:
        assert member is not None
        return next(each for each in self.cluster.nodes if each.port("stream") == member.port)

    def move(self) -> None:
        """Another node leads from now on."""
        move_leader(self.cluster, self.vhost, STREAM)

    def read(self, start: int, end: int, during: Callable[[Reader], None] | None = None) -> list[bytes]:
        """Messages of offsets; `during` once, when some of them are read, which ends the connection."""
        found: list[bytes] = []
        used, called = set(), False
        with Reader(self.uri, STREAM, start, end=end, batch_bytes=100_000, patience=180) as reader:
            for batch in reader:
                found += batch.column("value").to_pylist()
                used.add(reader.connection)
                if during is not None and not called:
                    during(reader)
                    called = True
        assert during is None or len(used) > 1
        return found

    def end(self) -> int:
        found: list[int] = []

        def known() -> bool:
            with contextlib.suppress(AmqpError), open_leader(self.uri, STREAM) as connection:
                found.append(first_and_end(connection, STREAM).end)
            return bool(found)

        until(known, what="the stream has no leader")
        return found[0]


@pytest.fixture
def place(coordinated_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", 100_000)  # so that a reader has not all at once
    cluster = coordinated_cluster
    vhost = f"streams-{secrets.token_hex(3)}"
    add_vhost(cluster, vhost)
    yield Place(cluster, vhost)
    cluster.management.delete_vhost(vhost)


def publish_through(place: Place, fault: Callable[[], None]) -> int:
    """Publish before, during and after a fault; returns how many messages there were."""
    over = threading.Event()

    def run() -> None:
        try:
            fault()
        finally:
            over.set()

    with Publisher(place.uri, STREAM, reference="me", in_flight=2000, timeout=180) as publisher:
        publisher.publish(numbers(0, 1000))
        thread = threading.Thread(target=run)
        thread.start()
        at = 1000
        while not over.is_set() or at < 5000:
            publisher.send(numbers(at, at + 500))
            at += 500
        publisher.publish(numbers(at, at + 500))
        thread.join()
    return at + 500


def killed(place: Place, node: Broker) -> None:
    node.kill()
    node.start()
    place.cluster.wait_joined()


def test_a_replica_is_read_and_the_leader_is_written_to(place: Place) -> None:
    found = place.found()
    for _ in range(5):
        with open_member(place.uri, STREAM) as connection:
            assert connection.itself in found.replicas
        with open_leader(place.uri, STREAM) as connection:
            assert connection.itself == found.leader


def test_leaders_that_move_while_publishing_and_reading(place: Place) -> None:
    with connect(place.uri) as connection:
        if connection.version < (3, 12):
            pytest.skip("rabbitmq-streams cannot move a leader there; it moves when its node is killed")
    count = publish_through(place, place.move)
    read = place.read(0, place.end(), lambda _: place.move())
    assert read == numbers(0, count)


def test_the_leader_is_killed_while_publishing(place: Place) -> None:
    count = publish_through(place, lambda: killed(place, place.node(place.found().leader)))
    assert place.read(0, place.end()) == numbers(0, count)


def test_the_node_that_is_read_is_killed(place: Place) -> None:
    with Publisher(place.uri, STREAM) as publisher:
        for at in range(0, 20_000, 500):  # many chunks
            publisher.publish(numbers(at, at + 500))

    def kill(reader: Reader) -> None:
        assert reader.connection is not None
        place.node(reader.connection.itself).kill()

    try:
        assert place.read(0, 20_000, kill) == numbers(0, 20_000)
    finally:
        place.cluster.start()
        place.cluster.wait_joined()


@pytest.mark.parametrize("one", [True, False], ids=["one host", "a host for each node"])
def test_behind_a_load_balancer_the_right_node_is_found(place: Place, one: bool) -> None:
    targets = parse(place.uri).hosts
    found = place.found()
    with contextlib.ExitStack() as stack:
        if one:
            made = [Proxy(*targets[0], more=targets[1:])]
        else:
            made = [Proxy(*target) for target in targets]
        proxies = [stack.enter_context(each) for each in made]
        hosts = tuple(("127.0.0.1", proxy.port) for proxy in proxies)
        uri = replace(parse(place.uri), hosts=hosts)
        for _ in range(3):
            with open_leader(uri, STREAM, load_balancer=True) as connection:
                assert connection.itself == found.leader
                assert connection.where in {f"127.0.0.1:{proxy.port}" for proxy in proxies}
        with Publisher(uri, STREAM, load_balancer=True, reference="me", timeout=120) as publisher:
            publisher.publish(numbers(0, 1000))
            for proxy in proxies:
                proxy.cut()
            publisher.publish(numbers(1000, 2000))
        with Reader(uri, STREAM, end=place.end(), load_balancer=True) as reader:
            assert [v for batch in reader for v in batch.column("value").to_pylist()] == numbers(0, 2000)


@pytest.mark.parametrize("load_balancer", [True, False])
def test_a_live_consumer_goes_on_while_nodes_are_killed(place: Place, load_balancer: bool) -> None:
    """One port in front of all nodes, where the URI of AMQP has three hosts and streams have one port."""
    with Publisher(place.uri, STREAM) as publisher:
        for at in range(0, 5_000, 100):
            publisher.publish(numbers(at, at + 100))
    seen: list[int] = []
    first, *more = parse(place.uri).hosts
    with Proxy(*first, more=more) as proxy:
        consumer = Consumer(
            place.cluster.uri_of(place.vhost),
            streams=[Stream(STREAM, ordered=True)],
            name="n",
            stream_port=proxy.port,
            load_balancer=load_balancer,
        )

        @consumer.handler
        def work(message: Message) -> None:
            time.sleep(0.0002)
            seen.append(int(message.body))

        with running(consumer):
            for number in (1, 2):
                until(lambda number=number: len(seen) > 1_000 * number)  # type: ignore[misc]
                proxy.cut()
                killed(place, place.node(place.found().leader))
                place.settle()
            with Publisher(place.uri, STREAM, timeout=180) as publisher:
                publisher.publish(numbers(5_000, 6_000))
            until(lambda: len(seen) >= 6_000)
    assert seen == list(range(6_000))
