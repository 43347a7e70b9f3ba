"""Super streams and single active consumers: partitions are shared, each in order."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from leash import Breaker, Consumer, Message, Retry, Stream
from leash.amqp import Channel
from leash.amqp.topology import bind_queue
from leash.errors import StreamUnsupported
from leash.streams import (
    Connection,
    create_stream,
    create_super_stream,
    query_offset,
)
from tests.consumer.kit import depth, running, until
from tests.streams.kit import can, made, numbers, write


def test_a_super_stream_in_order_by_partition(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    create_super_stream(streams, "orders", 3, amqp=uri)
    for partition in range(3):
        write(stream_uri, f"orders-{partition}", numbers(500))
    seen: dict[str, list[int]] = {f"orders-{partition}": [] for partition in range(3)}
    consumer = Consumer(uri, super_stream="orders", name="billing", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue].append(int(message.body))

    if not can(streams):
        with pytest.raises(StreamUnsupported, match=r"needs RabbitMQ 3\.11, and .* is RabbitMQ 3\.10"):
            consumer.start()
        return
    with running(consumer):
        until(lambda: all(len(each) >= 500 for each in seen.values()))
        assert consumer.settings.workers == 3
    assert all(each == list(range(500)) for each in seen.values())
    assert [query_offset(streams, "billing", f"orders-{partition}") for partition in range(3)] == [499] * 3


def test_two_consumers_share_a_super_stream_and_hand_over_in_good_order(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    if not can(streams):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    create_super_stream(streams, "orders", 2, amqp=uri)
    lock, seen = threading.Lock(), {f"orders-{partition}": [] for partition in range(2)}  # type: ignore[var-annotated]

    def started() -> Consumer:
        consumer = Consumer(uri, super_stream="orders", name="billing", stream_port=port)

        @consumer.handler
        def work(message: Message) -> None:
            time.sleep(0.0005)
            with lock:
                seen[message.queue].append((int(message.body), id(consumer)))

        consumer.start()
        return consumer

    def fed(start: int) -> None:
        for partition in range(2):
            write(stream_uri, f"orders-{partition}", numbers(1_000, start))

    fed(0)
    one = started()
    until(lambda: all(len(each) > 100 for each in seen.values()))
    two = started()  # takes one of the partitions over, in the middle of it
    until(lambda: len({who for each in seen.values() for _, who in each}) == 2)
    fed(1_000)
    until(lambda: all(len(each) >= 2_000 for each in seen.values()))
    last = {each[-1][1] for each in seen.values()}
    assert last == {id(one), id(two)}
    assert one.stop()
    fed(2_000)
    until(lambda: all(len(each) >= 3_000 for each in seen.values()))
    assert {each[-1][1] for each in seen.values()} == {id(two)}
    assert two.stop()
    for each in seen.values():
        assert [number for number, _ in each] == list(range(3_000))  # in order, each once
        assert sum(a != b for (_, a), (_, b) in pairwise(each)) <= 2


def test_one_stream_with_a_single_active_consumer(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=500)
    seen: list[int] = []
    consumers = []
    for _ in range(2):
        consumer = Consumer(uri, streams=[Stream("s", single_active=True)], name="n", stream_port=port)
        consumer.handler(lambda message: seen.append(int(message.body)))
        consumers.append(consumer)
    if not can(streams):
        with pytest.raises(StreamUnsupported, match=r"'s'.*needs RabbitMQ 3\.11"):
            consumers[0].start()
        return
    for consumer in consumers:
        consumer.start()
    until(lambda: len(seen) >= 500)
    assert all(consumer.stats().queues["s"].connected for consumer in consumers)
    assert consumers[0].stop()
    write(stream_uri, "s", numbers(500, 500))
    until(lambda: len(seen) >= 1_000)
    assert consumers[1].stop()
    assert seen == list(range(1_000))


def test_what_holds_for_each_partition(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    if not can(streams):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    create_super_stream(streams, "orders", 2, amqp=uri)
    for partition in range(2):
        write(stream_uri, f"orders-{partition}", numbers(200))
    seen: list[tuple[str, int | None]] = []
    each = Stream("orders", 3, start=100, rate=1_000, burst=50, fail_on_data_loss=True)
    consumer = Consumer(uri, super_stream=each, name="billing", stream_port=port)
    consumer.handler(lambda message: seen.append((message.queue, message.offset)))
    with running(consumer):
        until(lambda: len(seen) == 200)
        assert [queue.quantum for queue in consumer.settings.queues] == [3, 3]
    assert sorted(seen) == [(f"orders-{n}", at) for n in range(2) for at in range(100, 200)]


def test_a_partition_that_is_added_is_consumed(
    channel: Channel,
    streams: Connection,
    stream_uri: str,
    uri: str,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not can(streams):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    monkeypatch.setattr("leash.consumer.streams.LOOK_EVERY", 0.05)
    create_super_stream(streams, "orders", 2, amqp=uri)
    seen: dict[str, list[int]] = {f"orders-{number}": [] for number in range(3)}
    consumer = Consumer(
        uri,
        super_stream="orders",
        name="billing",
        stream_port=port,
        retry=Retry(tries=1),
        breaker=Breaker(failures=50),
    )

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue].append(int(message.body))
        if message.body == b"7":
            raise ValueError

    with running(consumer):
        for partition in ("orders-0", "orders-1"):
            write(stream_uri, partition, numbers(200))
        until(lambda: len(seen["orders-0"]) == len(seen["orders-1"]) == 200)
        create_stream(streams, "orders-2")
        write(stream_uri, "orders-2", numbers(200))
        bind_queue(channel, "orders-2", "orders", "2", {"x-stream-partition-order": 2})
        until(lambda: len(seen["orders-2"]) == 200)
        until(lambda: consumer.stats().queues["orders-2"].handled == 200)
        consumer.set_quantum("orders-2", 5)
        consumer.pause("orders-2")
        consumer.resume("orders-2")
        write(stream_uri, "orders-2", numbers(200, 200))
        until(lambda: len(seen["orders-2"]) == 400)
        until(lambda: depth(channel, "leash.dead.orders-2") == 1)
    assert seen["orders-2"] == list(range(400))
    assert [query_offset(streams, "billing", f"orders-{number}") for number in range(2)] == [199] * 2
    assert (query_offset(streams, "billing", "orders-2") or 0) >= 399  # a stored offset has one itself


def test_a_partition_that_is_added_is_consumed_from_its_first_message_on(
    channel: Channel,
    streams: Connection,
    stream_uri: str,
    uri: str,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not can(streams):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    monkeypatch.setattr("leash.consumer.streams.LOOK_EVERY", 0.05)
    create_super_stream(streams, "orders", 1, amqp=uri)
    write(stream_uri, "orders-0", numbers(10))
    seen: list[tuple[str, int]] = []
    each = Stream("orders", start="next")
    consumer = Consumer(uri, super_stream=each, name="billing", stream_port=port)
    consumer.handler(lambda message: seen.append((message.queue, int(message.body))))
    with running(consumer):
        create_stream(streams, "orders-1")
        write(stream_uri, "orders-1", numbers(10))  # before the consumer knows of it
        bind_queue(channel, "orders-1", "orders", "1", {"x-stream-partition-order": 1})
        until(lambda: query_offset(streams, "billing", "orders-1") is not None or len(seen) == 10)
        write(stream_uri, "orders-1", numbers(10, 10))
        until(lambda: ("orders-1", 19) in seen)
    assert seen == [("orders-1", number) for number in range(20)]
