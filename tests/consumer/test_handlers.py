"""Handlers of every kind on a real broker: what they get, and what becomes of it."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel, Outgoing, Properties, Publisher
from leash.amqp.topology import declare_queue
from leash.errors import ConfigError, NotFound
from tests.consumer.kit import depth, fill, publish, running, until


def test_a_message_carries_what_was_published(channel: Channel, uri: str) -> None:
    declare_queue(channel, "q")
    with Publisher(channel.connection) as publisher:
        properties = Properties(headers={"tenant": "a"}, content_type="text/plain", message_id="m1")
        publisher.publish([Outgoing(b"hello", "", "q", properties), Outgoing(b"", "", "q")])
    got: list[Message] = []
    consumer = Consumer(uri, ["q"])
    consumer.handler(got.append)
    with running(consumer):
        until(lambda: len(got) == 2)
        first, second = got
        assert (first.body, first.routing_key, first.exchange, first.queue) == (b"hello", "q", "", "q")
        assert first.headers == {"tenant": "a"}
        assert first.properties.content_type == "text/plain"
        assert not first.redelivered
        assert first.tries == 0
        assert 0 <= first.age < 20
        assert (second.body, second.headers) == (b"", {})
    assert depth(channel, "q") == 0


@pytest.mark.parametrize("workers", [1, 4])
def test_async_handlers_run_at_the_same_time_on_one_loop(channel: Channel, uri: str, workers: int) -> None:
    fill(channel, "q", 40)
    threads: set[int] = set()
    running_now = most = 0
    done: list[bytes] = []
    consumer = Consumer(uri, ["q"], workers=workers)

    @consumer.handler
    async def work(message: Message) -> None:
        nonlocal running_now, most
        threads.add(threading.get_ident())
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.01)
        running_now -= 1
        done.append(message.body)

    with running(consumer):
        until(lambda: len(done) == 40)
    assert len(threads) == 1
    assert most == workers
    assert depth(channel, "q") == 0


def test_a_cancelled_error_of_the_handlers_own_is_a_failure_like_any_other(
    channel: Channel, uri: str
) -> None:
    fill(channel, "q", 1)
    consumer = Consumer(uri, ["q"], retry=None)

    @consumer.handler
    async def work(_: Message) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    with running(consumer):
        until(lambda: consumer.stats().queues["q"].counts.get("parked") == 1)
    assert depth(channel, "leash.dead.q") == 1


def test_a_handler_whose_task_is_cancelled_has_failed_and_its_worker_goes_on(
    channel: Channel, uri: str
) -> None:
    fill(channel, "q", 3)
    consumer = Consumer(uri, ["q"], retry=None)
    seen = 0

    @consumer.handler
    async def work(_: Message) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)

    with running(consumer):
        until(lambda: seen == 3)
    assert depth(channel, "leash.dead.q") == 1
    assert depth(channel, "q") == 0


def test_a_worker_whose_task_is_cancelled_between_two_messages_goes_on(channel: Channel, uri: str) -> None:
    fill(channel, "q", 1)
    consumer = Consumer(uri, ["q"], retry=None)
    seen = 0

    @consumer.handler
    async def work(_: Message) -> None:
        nonlocal seen
        seen += 1
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.05, task.cancel)

    with running(consumer):
        until(lambda: seen == 1)
        time.sleep(0.2)
        publish(channel, "q", [b"next"])
        until(lambda: seen == 2)
    assert depth(channel, "leash.dead.q") == 0
    assert depth(channel, "q") == 0


async def _work(message: Message) -> None:
    await asyncio.sleep(0)
    _ran.append(message.body)


_ran: list[bytes] = []


class Worker:
    async def __call__(self, message: Message) -> None:
        await _work(message)


@functools.wraps(_work)
def _blocking(message: Message) -> None:
    asyncio.run(_work(message))


@pytest.mark.parametrize(
    "handler",
    [
        lambda message: _work(message),
        functools.wraps(_work)(lambda message: _work(message)),
        functools.partial(_work),
        Worker(),
        _blocking,
    ],
    ids=["plain decorator", "wraps", "partial", "callable", "runs it itself"],
)
def test_an_async_function_is_run_to_its_end_however_it_is_wrapped(
    channel: Channel, uri: str, handler: Any
) -> None:
    fill(channel, "q", 20)
    _ran.clear()
    consumer = Consumer(uri, ["q"], workers=4, retry=None)
    consumer.handler(handler)
    with running(consumer):
        until(lambda: len(_ran) == 20)
        until(lambda: consumer.stats().queues["q"].unsettled == 0)
    assert depth(channel, "leash.dead.q") == 0


def test_a_wrapped_async_handler_may_stop_its_consumer(channel: Channel, uri: str) -> None:
    fill(channel, "q", 5)
    consumer = Consumer(uri, ["q"], retry=None, drain=600)

    async def work(message: Message) -> None:
        assert not consumer.stop()

    consumer.handler(lambda message: work(message))
    began = time.monotonic()
    consumer.run()
    assert time.monotonic() - began < 300  # not for as long as it may drain
    assert depth(channel, "q") == 4


def test_a_generator_is_no_handler(channel: Channel, uri: str) -> None:
    fill(channel, "q", 1)
    consumer = Consumer(uri, ["q"], retry=None)

    def work(message: Message) -> Iterator[None]:
        yield None

    with pytest.raises(ConfigError, match="yield"):
        consumer.handler(work)
    consumer.handler(lambda message: work(message))
    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_waits_behind_a_slow_message_and_what_is_done_is_acked(
    channel: Channel, uri: str, asynchronous: bool
) -> None:
    fill(channel, "q", 2000)
    done: list[bytes] = []
    slow = threading.Event()
    consumer = Consumer(uri, [Queue("q", window=500)], workers=2)

    def work(message: Message) -> bool:
        if message.body == b"1500":
            return True
        done.append(message.body)
        return False

    async def work_async(message: Message) -> None:
        while work(message) and not slow.is_set():
            await asyncio.sleep(0.01)

    def work_plain(message: Message) -> None:
        if work(message):
            slow.wait(300)

    consumer.handler(work_async if asynchronous else work_plain)
    with running(consumer):
        until(lambda: len(done) == 1999, what="something waits behind the slow one")
        until(lambda: consumer.stats().queues["q"].unsettled == 1, what="something done is not acked")
        slow.set()
        until(lambda: consumer.stats().queues["q"].unsettled == 0)
    assert Counter(done).most_common(1)[0][1] == 1
    assert depth(channel, "q") == 0


def test_stats_are_plain_numbers_of_what_happened(channel: Channel, uri: str) -> None:
    fill(channel, "a", 200)
    fill(channel, "b", 10)
    done: list[bytes] = []
    consumer = Consumer(uri, [Queue("a", 3), Queue("b", 1, rate=1000, burst=20)])

    @consumer.handler
    def work(message: Message) -> None:
        done.append(message.body)

    with running(consumer):
        until(lambda: len(done) == 210)
        until(lambda: consumer.stats().queues["a"].handled == 200)
        stats = consumer.stats()
    a, b = stats.queues["a"], stats.queues["b"]
    assert (a.handled, b.handled) == (200, 10)
    assert a.share == pytest.approx(200 / 210)
    assert a.target_share == 0.75
    assert a.unsettled == b.unsettled == 0
    assert b.tokens is not None
    assert stats.connected
    assert stats.round_trip
    assert a.window_reason


@pytest.mark.parametrize("cost", ["bytes", "header:weight", lambda message: len(message.body)])
def test_shares_go_by_what_a_message_costs(channel: Channel, uri: str, cost: object) -> None:
    for name, size in (("large", 90), ("small", 10)):
        declare_queue(channel, name)
        with Publisher(channel.connection) as publisher:
            properties = Properties(headers={"weight": size})
            publisher.publish([Outgoing(b"x" * size, "", name, properties)] * 3000)
    seen: Counter[str] = Counter()
    consumer = Consumer(uri, [Queue("large", 100), Queue("small", 100)], cost=cost)  # type: ignore[arg-type]

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1
        if sum(seen.values()) == 2000:
            assert seen["small"] == pytest.approx(9 * seen["large"], rel=0.1)
            done.set()

    done = threading.Event()
    with running(consumer):
        assert done.wait(60)


def test_a_missing_queue_is_named_before_anything_is_consumed(channel: Channel, uri: str) -> None:
    fill(channel, "here", 5)
    seen: list[Message] = []
    consumer = Consumer(uri, ["here", "not-here"])
    consumer.handler(seen.append)
    with pytest.raises(NotFound, match="not-here"):
        consumer.start()
    assert seen == []
    until(lambda: depth(channel, "here") == 5)


def test_without_a_handler_it_says_so(uri: str) -> None:
    with pytest.raises(ConfigError, match="handler"):
        Consumer(uri, ["q"]).start()


@pytest.mark.soak  # milliseconds on the wall clock: for a machine that does nothing else
def test_messages_published_while_it_runs_come_at_once(channel: Channel, uri: str) -> None:
    declare_queue(channel, "q")
    waits: list[float] = []
    sent = 0.0
    consumer = Consumer(uri, ["q"], workers=2)

    @consumer.handler
    def work(message: Message) -> None:
        waits.append(time.monotonic() - sent)

    with running(consumer):
        for number in range(20):
            sent = time.monotonic()
            publish(channel, "q", [b"x"])
            until(lambda number=number: len(waits) == number + 1)  # type: ignore[misc]
    assert sorted(waits)[10] < 0.05


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_task_that_exits_fails_its_message_and_nothing_else(
    channel: Channel, uri: str, wrapped: bool
) -> None:
    fill(channel, "q", 5)
    seen: list[bytes] = []
    consumer = Consumer(uri, ["q"], retry=None)

    async def helper(message: Message) -> None:
        if message.body == b"1":
            sys.exit(3)

    async def work(message: Message) -> None:
        seen.append(message.body)
        await asyncio.create_task(helper(message))

    consumer.handler((lambda message: work(message)) if wrapped else work)
    with running(consumer):
        until(lambda: len(seen) == 5 and depth(channel, "leash.dead.q") == 1, what=f"{seen}")
