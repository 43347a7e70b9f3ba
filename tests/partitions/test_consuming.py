"""Consuming partitions live: in order for every key, through resizes and deaths."""

from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leash.amqp import Connection, Outgoing, Publisher, connect, topology
from leash.consumer import Consumer, Message
from leash.consumer.metrics import ConsumerCollector
from leash.consumer.partitioned import PartitionedSession
from leash.errors import ConfigError, TopologyError
from leash.partitions import Partitions, gates
from tests.partitions.helpers import publish, random_keys, weights
from tests.waiting import until

SLOTS = 24
KEYS = 100


class Fleet:
    """Worker processes, and all that they wrote down."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self._folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, pause: float = 0.0) -> subprocess.Popen[bytes]:
        file = self._folder / f"worker-{len(self.workers)}.txt"
        file.touch()
        command = [sys.executable, "-m", "tests.partitions.worker", self._uri, str(file), str(pause)]
        self.workers.append(subprocess.Popen(command))
        return self.workers[-1]

    def handled(self) -> list[tuple[int, str, int, bool, int]]:
        """When, key, number, redelivered and by whom, in the order of time."""
        rows = []
        for index in range(len(self.workers)):
            for line in (self._folder / f"worker-{index}.txt").read_text().splitlines():
                at, key, number, again = line.split()
                rows.append((int(at), key, int(number), again == "1", index))
        return sorted(rows)

    def lines(self) -> int:
        files = self._folder.glob("worker-*.txt")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def stop(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(120)


@pytest.fixture
def fleet(uri: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(uri, tmp_path)
    yield fleet
    for worker in fleet.workers:
        worker.kill()
        worker.wait()


def check_order(rows: list[tuple[int, str, int, bool, int]], sent: int) -> None:
    """Nothing lost; for every key the numbers come in order, and a number comes again only if redelivered."""
    assert {row[2] for row in rows} == set(range(sent))
    latest: dict[str, int] = {}
    for _, key, number, again, _ in rows:
        if number > latest.get(key, -1):
            latest[key] = number
        else:
            assert again, f"{key}: {number} came after {latest[key]}"


def steadily(uri: str, count: int, sent: list[int]) -> None:
    """Publish numbered messages for a hundred customers."""
    with connect(uri) as connection, Publisher(connection) as publisher:
        for first in range(0, count, 50):
            lot = range(first, first + 50)
            publisher.publish(
                Outgoing(b"%d" % n, "orders", f"customer-{n * 7919 % KEYS}", mandatory=True) for n in lot
            )
            sent[0] = first + 50
            time.sleep(0.01)


def test_through_two_resizes_and_a_death_nothing_is_lost_and_every_key_stays_in_order(
    uri: str, fleet: Fleet
) -> None:
    three, four = (Partitions("orders", weights(count), slots=SLOTS) for count in (3, 4))
    three.declare(uri)
    count, sent = 20_000, [0]
    slow = 0.0005  # so that messages pile up, and a resize finds some from before it
    fleet.start(slow), fleet.start(slow)
    source = threading.Thread(target=steadily, args=(uri, count, sent))
    source.start()
    until(lambda: fleet.lines() > 2000)
    four.apply(uri, settle=0.5)
    until(lambda: sent[0] > 8000)
    victim = fleet.handled()[-1][4]  # whoever is at work: the broker says who is active
    fleet.workers[victim].kill()
    fleet.start(slow)
    until(lambda: sent[0] > 12_000)
    three.apply(uri, settle=0.5)
    source.join()
    until(lambda: len({row[2] for row in fleet.handled()}) == count)
    fleet.stop()
    rows = fleet.handled()
    check_order(rows, count)
    assert {victim} < {row[4] for row in rows}, "the one that died had its part, and others went on"


def test_two_processes_share_the_queues_and_one_takes_over_when_the_other_dies(
    uri: str, fleet: Fleet
) -> None:
    layout = Partitions("orders", weights(4), slots=SLOTS).declare(uri)
    keys = random_keys(400)
    first = fleet.start()
    publish(uri, "orders", keys)
    until(lambda: fleet.lines() >= 400)
    fleet.start()

    def shared() -> bool:
        before = len(fleet.handled())
        publish(uri, "orders", keys[:100])
        until(lambda: fleet.lines() >= before + 100)
        rows = fleet.handled()[-100:]
        by = [{layout.route(row[1]) for row in rows if row[4] == index} for index in (0, 1)]
        return len(by[0]) == len(by[1]) == 2

    until(shared)
    before = fleet.lines()
    first.kill()
    publish(uri, "orders", keys[:100])
    until(lambda: fleet.lines() >= before + 100)


def test_a_gate_holds_the_queue_until_its_source_is_done(uri: str, connection: Connection) -> None:
    """By hand: the target's messages wait while a message from before the move is still in work."""
    Partitions("orders", {"old": 1, "other": 1}, slots=2).declare(uri)
    topology.declare_queue(connection.channel(), "signal")
    go = threading.Event()
    handled: list[tuple[str, str]] = []
    consumer = Consumer(uri, partitions="orders")

    @consumer.handler
    def handle(message: Message) -> None:
        if message.body == b"slow":
            go.wait(120)
        handled.append((message.queue, message.body.decode()))

    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"slow", "", "old"), gates.marker("orders", 1, "old")])
        publisher.publish(
            [
                Outgoing(b"before", "", "other"),
                gates.gate("orders", 1, ("old",), "other"),
                Outgoing(b"after", "", "other"),
            ]
        )
    with consumer:
        until(lambda: ("other", "before") in handled)
        time.sleep(0.3)
        assert handled == [("other", "before")]
        go.set()
        until(lambda: len(handled) == 3)
    assert handled == [("other", "before"), ("old", "slow"), ("other", "after")]
    for queue in ("old", "other"):
        assert topology.state(connection.channel(), queue).ready == 0


def test_coroutines_obey_gates_too_and_queues_may_come_and_go(uri: str) -> None:
    Partitions("orders", weights(2), slots=SLOTS).declare(uri)
    numbers: list[int] = []
    consumer = Consumer(uri, partitions="orders")

    @consumer.handler
    async def handle(message: Message) -> None:
        numbers.append(int(message.body))

    with consumer:
        publish(uri, "orders", random_keys(200))
        Partitions("orders", weights(3), slots=SLOTS).apply(uri, settle=0.1)
        publish(uri, "orders", random_keys(200))
        until(lambda: len(numbers) == 400)
        until(lambda: list(consumer.stats().queues) == ["orders.0", "orders.1", "orders.2"])
        two = Partitions("orders", weights(2), slots=SLOTS)
        two.apply(uri, settle=0.1)
        until(lambda: two.delete_retired(uri) == ["orders.2"])  # though it is still being consumed
        publish(uri, "orders", random_keys(200))
        until(lambda: len(numbers) == 600)
    assert sorted(numbers) == sorted([*range(200)] * 3)


def test_what_a_plain_handler_returns_is_awaited(uri: str) -> None:
    Partitions("orders", weights(2), slots=SLOTS).declare(uri)
    numbers: list[int] = []
    consumer = Consumer(uri, partitions="orders")

    async def work(message: Message) -> None:
        await asyncio.sleep(0)
        numbers.append(int(message.body))

    @consumer.handler
    @functools.wraps(work)
    def handle(message: Message) -> object:
        return work(message) if int(message.body) % 2 else asyncio.run(work(message))

    with consumer:
        publish(uri, "orders", random_keys(20))
        until(lambda: len(numbers) == 20)
        until(lambda: not any(each.unsettled for each in consumer.stats().queues.values()))
        assert not any(each.counts.get("failed") for each in consumer.stats().queues.values())
    assert sorted(numbers) == [*range(20)]


def test_a_handler_may_stop_its_consumer_and_the_run_ends(uri: str, connection: Connection) -> None:
    Partitions("orders", weights(2), slots=SLOTS).declare(uri)
    answers: list[bool] = []
    consumer = Consumer(uri, partitions="orders")

    @consumer.handler
    def handle(_: Message) -> None:
        answers.append(consumer.stop())

    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"", "", "orders.0")] * 5)
    consumer.run()
    assert answers == [False]
    assert topology.state(connection.channel(), "orders.0").ready == 4


def test_a_consumer_that_is_about_to_start_has_no_numbers_yet() -> None:
    settings = Consumer("amqp://localhost", partitions="orders").settings
    with pytest.raises(ConfigError, match="one that was started"):
        PartitionedSession(settings, lambda _: None, "orders", None).stats()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"queues": ["a"], "partitions": "orders"}, "queues or partitions, not both"),
        ({}, "at least one queue"),
        ({"partitions": "orders", "rate": 5}, "no rate, guaranteed or cost with partitions"),
    ],
)
def test_what_a_partitioned_consumer_cannot_do_is_said_in_one_sentence(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Consumer("amqp://localhost", **arguments)


def test_before_its_start_a_partitioned_consumer_answers_like_any_other() -> None:
    for consumer in (Consumer("amqp://localhost", partitions="orders"), Consumer("amqp://localhost", ["q"])):
        for ask in (consumer.stats, consumer.stop):
            with pytest.raises(ConfigError, match="one that was started"):
                ask()
        (metric,) = ConsumerCollector(consumer).collect()
        assert [(each.name, each.value) for each in metric.samples] == [("leash_connected", 0)]


def test_consuming_partitions_that_are_not_there_says_how_to_make_them(uri: str) -> None:
    consumer = Consumer(uri, partitions="orders")
    consumer.handler(print)
    with pytest.raises(TopologyError, match="partitions 'orders' do not exist"):
        consumer.start()
