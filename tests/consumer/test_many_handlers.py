"""Handlers for queues, decoding by annotation, retries by exception, middleware: live and rehearsed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, Publisher, topology
from leash.consumer.retry import STEPS
from leash.consumer.settings import OnExhausted
from leash.errors import ConfigError, NotFound, Undecodable
from tests.consumer.kit import depth, fill, running, until
from tests.consumer.worlds import World

URI = "amqp://nowhere.invalid"


@dataclass
class Order:
    number: int


class Model(pydantic.BaseModel):
    number: int


def idle(message: Message) -> None: ...


class Temporary(Exception):
    """Worth another try."""


class Final(Temporary):
    """Not worth one."""


def test_each_queue_has_its_handler_and_the_rest_one_for_all(world: World) -> None:
    for queue in ("orders", "events", "a", "b"):
        world.declare(queue)
        world.publish(queue, [b'{"number": 7}'])
    got: dict[str, object] = {}
    consumer = Consumer(world.uri, ["orders", "events", "a", "b"])

    @consumer.handler("orders")
    def orders(order: Order, message: Message) -> None:
        got[message.queue] = order

    @consumer.handler("events")
    def events(event: Model) -> None:
        got["events"] = event

    @consumer.handler
    def others(message: Message) -> None:
        got[message.queue] = message.body

    with world.play(consumer):
        world.until(lambda: len(got) == 4)
    raw = b'{"number": 7}'
    assert got == {"orders": Order(7), "events": Model(number=7), "a": raw, "b": raw}


@pytest.mark.parametrize("mixed", [False, True])
def test_async_handlers_decode_too_and_may_stand_beside_plain_ones(world: World, mixed: bool) -> None:
    for queue in ("orders", "events"):
        world.declare(queue)
        world.publish(queue, [b'{"number": 7}', b'{"number": 8}'])
    got: list[object] = []
    consumer = Consumer(world.uri, ["orders", "events"], workers=2)

    @consumer.handler("orders")
    async def orders(order: Order, message: Message) -> None:
        got.append((message.queue, order.number))

    if mixed:

        @consumer.handler("events")
        def events(event: dict[str, int], message: Message) -> None:
            got.append((message.queue, event["number"]))
    else:

        @consumer.handler("events")
        async def events_too(event: dict[str, int], message: Message) -> None:
            got.append((message.queue, event["number"]))

    with world.play(consumer):
        world.until(lambda: len(got) == 4)
    assert sorted(got) == [(queue, n) for queue in ("events", "orders") for n in (7, 8)]  # type: ignore[type-var]


def test_what_cannot_be_decoded_is_parked_at_once_with_the_reason(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.declare("q")
    world.publish("q", [b'{"number": "x"}', b'{"number": 1}'])
    got: list[Order] = []
    consumer = Consumer(world.uri, ["q"], retry=Retry(tries=5, delay=60))

    @consumer.handler
    def work(order: Order) -> None:
        got.append(order)

    with world.play(consumer):
        world.until(lambda: got and world.depth("leash.dead.q") == 1)
        body, headers = world.peek("leash.dead.q")
    assert body == b'{"number": "x"}'
    assert headers["x-leash-error"] == "Undecodable: the body is not Order: number: int is needed, not str"
    assert got == [Order(1)]
    assert [fate for fate in map(told, caplog.messages) if fate] == ["1 of=5 then=parked"]


def told(line: str) -> str:
    """The end of the log line of a failure."""
    return line.partition(" tries=")[2] if line.startswith("event=handler_failed") else ""


@pytest.mark.parametrize("on_exhausted", ["park", "reject", "discard"])
def test_the_log_says_what_becomes_of_a_failed_message(
    world: World, caplog: pytest.LogCaptureFixture, on_exhausted: OnExhausted
) -> None:
    world.declare("q")
    world.publish("q", [b"x"])
    consumer = Consumer(world.uri, ["q"], retry=Retry(tries=2, delay=0.05), on_exhausted=on_exhausted)

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError

    end = {"park": "parked", "reject": "rejected", "discard": "discarded"}[on_exhausted]
    with world.play(consumer):
        world.until(lambda: sum(map(bool, map(told, caplog.messages))) == 2)
    fates = [told(line) for line in caplog.messages if told(line)]
    assert fates == ['1 of=2 then="retried in 0.05 s"', f"2 of=2 then={end}"]


@pytest.mark.parametrize("for_queue", [False, True])
def test_only_what_is_worth_it_is_tried_again(world: World, for_queue: bool) -> None:
    world.declare("q")
    world.publish("q", [b"temporary", b"final", b"other"])
    tries: dict[bytes, int] = {}
    retry = Retry(tries=3, delay=0.05, on=(Temporary,), give_up_on=Final)
    consumer = Consumer(world.uri, ["q"], retry=Retry(tries=9, delay=60) if for_queue else retry)
    decorate: Any = consumer.handler("q", retry=retry) if for_queue else consumer.handler

    @decorate  # type: ignore[untyped-decorator]
    def work(message: Message) -> None:
        tries[message.body] = tries.get(message.body, 0) + 1
        raise {b"temporary": Temporary, b"final": Final}.get(message.body, ValueError)

    with world.play(consumer):
        world.until(lambda: world.depth("leash.dead.q") == 3)
    assert tries == {b"temporary": 3, b"final": 1, b"other": 1}


def test_jitter_spreads_the_waits_over_a_few_queues() -> None:
    retry = Retry(tries=3, delay=10, factor=2, jitter=0.1)
    assert retry.waits() == [9000, 9500, 10000, 10500, 11000, 18000, 19000, 20000, 21000, 22000]
    assert {retry.wait(1, draw) for draw in range(100)} == set(retry.waits()[:STEPS])
    assert Retry(tries=3, delay=10).waits() == [10000]


def test_messages_with_jitter_come_back_at_different_times(world: World) -> None:
    world.declare("q")
    world.publish("q", [b"%d" % n for n in range(20)])
    waits: dict[bytes, float] = {}
    consumer = Consumer(world.uri, ["q"], retry=Retry(tries=2, delay=0.4, jitter=0.5))

    @consumer.handler
    def work(message: Message) -> None:
        if not message.tries:
            waits[message.body] = world.now()
            raise Temporary
        waits[message.body] -= world.now()

    with world.play(consumer):
        world.until(lambda: len(waits) == 20 and all(wait < 0 for wait in waits.values()))
    assert all(-wait > 0.19 for wait in waits.values())
    assert len({round(-wait, 1) for wait in waits.values()}) > 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_middleware_goes_around_the_handler_and_sees_how_it_ends(world: World, asynchronous: bool) -> None:
    world.declare("q")
    world.publish("q", [b'{"number": 1}', b"broken"])
    seen: list[str] = []

    def outer(message: Message, call_next: Callable[[Message], Any]) -> Any:
        seen.append("outer")
        return call_next(message)

    def inner(message: Message, call_next: Callable[[Message], Any]) -> Any:
        try:
            return call_next(message)
        except Undecodable:
            seen.append("undecodable")
            raise

    async def outer_async(message: Message, call_next: Callable[[Message], Awaitable[Any]]) -> None:
        seen.append("outer")
        await call_next(message)

    async def inner_async(message: Message, call_next: Callable[[Message], Awaitable[Any]]) -> None:
        try:
            await call_next(message)
        except Undecodable:
            seen.append("undecodable")
            raise

    middleware = [outer_async, inner_async] if asynchronous else [outer, inner]
    consumer = Consumer(world.uri, ["q"], middleware=middleware)
    if asynchronous:

        @consumer.handler
        async def work(order: Order) -> None:
            seen.append(f"order {order.number}")
    else:

        @consumer.handler
        def work_plain(order: Order) -> None:
            seen.append(f"order {order.number}")

    with world.play(consumer):
        world.until(lambda: world.depth("leash.dead.q") == 1)
    assert seen == ["outer", "order 1", "outer", "undecodable"]


def test_middleware_may_keep_a_message_from_its_handler(world: World) -> None:
    world.declare("q")
    world.publish("q", [b"seen before", b"new"])
    got: list[bytes] = []

    def skip(message: Message, call_next: Callable[[Message], Any]) -> Any:
        return None if message.body == b"seen before" else call_next(message)

    consumer = Consumer(world.uri, ["q"], middleware=[skip])
    consumer.handler(lambda message: got.append(message.body))
    with world.play(consumer):
        world.until(lambda: got)
    assert got == [b"new"]
    assert world.depth("q") == 0


def test_middleware_must_be_of_the_handlers_kind() -> None:
    async def middleware(message: Message, call_next: Callable[[Message], Awaitable[Any]]) -> None:
        await call_next(message)

    consumer = Consumer(URI, ["q"], middleware=[middleware])
    consumer.handler(idle)
    with pytest.raises(ConfigError, match="a plain `def`, as every handler is"):
        consumer.start()
    with pytest.raises(ConfigError, match="what to call next"):
        Consumer(URI, ["q"], middleware=[idle])  # type: ignore[list-item]


@pytest.mark.parametrize(("declare", "kind"), [(True, None), ("classic", "classic"), ("quorum", "quorum")])
def test_a_queue_is_declared_if_asked_for(channel: Channel, uri: str, declare: Any, kind: str | None) -> None:
    got: list[bytes] = []
    consumer = Consumer(uri, [Queue("new", declare=declare)])
    consumer.handler(lambda message: got.append(message.body))
    with running(consumer), Publisher(channel.connection) as publisher:
        from leash.amqp import Outgoing
        from leash.amqp.queue_traits import traits

        told = traits(channel.connection, "new")
        assert told is not None
        assert told.durable
        assert kind in (None, told.kind)
        publisher.publish([Outgoing(b"x", "", "new")])
        until(lambda: got)
        topology.delete_queue(channel, "new")
        until(lambda: _exists(channel, "new"), what="it is declared again")
    with running(consumer_of(uri, Queue("new", declare="classic"))):
        pass  # whatever it is, it is used as it is


def _exists(channel: Channel, name: str) -> bool:
    try:
        with channel.connection.channel() as other:
            topology.state(other, name)
        return True
    except NotFound:
        return False


def consumer_of(uri: str, queue: Queue) -> Consumer:
    consumer = Consumer(uri, [queue])
    consumer.handler(idle)
    return consumer


def test_a_missing_queue_says_that_leash_declares_none(uri: str) -> None:
    with pytest.raises(NotFound, match=r"Leash declares no queues; .*Queue\('q', declare=True\)"):
        consumer_of(uri, Queue("q")).start()
    with pytest.raises(ConfigError, match="declare"):
        Queue("q", declare="stream")  # type: ignore[arg-type]


def test_a_handler_of_a_body_keeps_the_order_and_the_count(channel: Channel, uri: str) -> None:
    fill(channel, "q", 500)
    got: list[int] = []
    consumer = Consumer(uri, [Queue("q", ordered=True)])

    @consumer.handler("q", retry=Retry(tries=3, delay=0.01))
    def work(number: str) -> None:
        got.append(int(number))

    with running(consumer):
        until(lambda: len(got) == 500)
    assert got == list(range(500))
    assert depth(channel, "q") == 0
