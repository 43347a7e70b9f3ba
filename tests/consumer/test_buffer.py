"""What a consumer holds, and has on its way, on the real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel, Outgoing, Publisher
from leash.amqp.topology import declare_queue
from leash.amqp.wire import Deliveries
from leash.consumer.arrivals import Arrivals
from leash.consumer.link import Link
from tests.consumer.kit import TRANSIENT, fill, running, until


class Held:
    """The most bytes, and messages, that were delivered and not settled."""

    def __init__(self) -> None:
        self.size = self.messages = 0


@contextmanager
def watched(size: int) -> Iterator[Held]:
    held, deliver = Held(), Arrivals.deliver

    def watching(arrivals: Arrivals, link: Link, batch: Deliveries) -> None:
        deliver(arrivals, link, batch)
        engine = arrivals._engine
        with engine.lock:
            here = sum(each.ledger.unsettled for each in engine.links.values())
        held.messages = max(held.messages, here)
        held.size = held.messages * size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "deliver", watching)
        yield held


def put(channel: Channel, names: list[str], size: int, count: int, kind: Any = "classic") -> None:
    body = b"x" * size
    with Publisher(channel.connection) as publisher:
        for name in names:
            declare_queue(channel, name, kind=kind)
            publisher.publish(Outgoing(body, "", name, TRANSIENT) for _ in range(count))


def test_a_hundred_queues_of_large_messages_do_not_fill_the_memory(channel: Channel, uri: str) -> None:
    names = [f"q{i}" for i in range(100)]
    put(channel, names, 300_000, 3)
    done = 0
    consumer = Consumer(uri, names)

    @consumer.handler
    def work(message: Message) -> None:
        nonlocal done
        time.sleep(0.005)
        done += 1

    with watched(300_000) as held, running(consumer):
        until(lambda: done == 300)
        stats = consumer.stats()
    assert held.size < 64_000_000
    assert not stats.unfair
    assert {queue.message_bytes for queue in stats.queues.values()} == {300_000}


@pytest.mark.soak  # a share of the time, for a machine that does nothing else
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_and_keep_one_worker_busy(channel: Channel, uri: str, kind: str) -> None:
    names = [f"q{i}" for i in range(100)]
    put(channel, names, 300_000, 5, kind)
    spans: list[tuple[float, float]] = []
    consumer = Consumer(uri, names)

    @consumer.handler
    def work(message: Message) -> None:
        begin = time.monotonic()
        time.sleep(0.05)
        spans.append((begin, time.monotonic()))

    with watched(300_000) as held, running(consumer):
        until(lambda: len(spans) >= 200)
    busy = sum(end - begin for begin, end in spans) / (spans[-1][1] - spans[0][0])
    assert held.size < 64_000_000
    assert busy >= 0.95


def test_a_budget_that_is_asked_for_is_kept(channel: Channel, uri: str) -> None:
    put(channel, ["a", "b"], 50_000, 200)
    done = 0
    consumer = Consumer(uri, ["a", "b"], workers=4, buffer_bytes=1_000_000)

    @consumer.handler
    def work(message: Message) -> None:
        nonlocal done
        time.sleep(0.001)
        done += 1

    with watched(50_000) as held, running(consumer):
        until(lambda: done >= 400)
    assert held.size <= 1_000_000


def test_a_budget_of_messages_is_kept(channel: Channel, uri: str) -> None:
    for name in ("a", "b", "c"):
        fill(channel, name, 5_000)
    done = 0
    consumer = Consumer(uri, ["a", "b", "c"], buffer_messages=60)

    @consumer.handler
    def work(message: Message) -> None:
        nonlocal done
        done += 1

    with watched(1) as held, running(consumer):
        until(lambda: done >= 15_000)
    assert held.messages <= 60


def test_batches_are_gathered_from_many_queues_and_multiply_nothing(channel: Channel, uri: str) -> None:
    names = [f"q{i}" for i in range(30)]
    for name in names:
        fill(channel, name, 100)
    sizes: list[int] = []
    consumer = Consumer(uri, names, workers=2)

    @consumer.batch_handler(size=100, wait=20.0)
    def work(messages: list[Message]) -> None:
        time.sleep(0.02)
        sizes.append(len(messages))

    with watched(1) as held, running(consumer):
        until(lambda: sum(sizes) >= 2_000)
    assert held.messages < 1_500  # of 3,000; with a batch's window for each queue it would be all of them
    assert sizes[:20] == [100] * 20


def test_a_batch_that_the_budget_has_no_room_for_is_not_waited_for(channel: Channel, uri: str) -> None:
    put(channel, ["a", "b"], 50_000, 40)
    sizes: list[int] = []
    consumer = Consumer(uri, ["a", "b"], buffer_bytes=1_000_000)
    done = threading.Event()

    @consumer.batch_handler(size=80, wait=60.0)
    def work(messages: list[Message]) -> None:
        sizes.append(len(messages))
        if sum(sizes) >= 60:
            done.set()

    with running(consumer):
        assert done.wait(50)
    assert max(sizes) <= 20


def test_queues_whose_window_cannot_change_get_small_ones_where_they_are_many(
    channel: Channel, uri: str
) -> None:
    names = [f"q{i}" for i in range(40)]
    for name in names:
        declare_queue(channel, name)
    consumer = Consumer(uri, [Queue(name, exclusive=True) for name in names])
    consumer.handler(lambda _: None)
    with running(consumer):
        windows = [queue.window for queue in consumer.stats().queues.values()]
    assert windows == [2] * 40


def test_a_window_that_is_asked_for_is_kept(channel: Channel, uri: str) -> None:
    put(channel, ["a"], 100_000, 30)
    consumer = Consumer(uri, [Queue("a", window=20)], buffer_bytes=200_000)
    consumer.handler(lambda _: time.sleep(0.01))
    with running(consumer):
        until(lambda: consumer.stats().queues["a"].handled > 5)
        assert consumer.stats().queues["a"].window == 20
