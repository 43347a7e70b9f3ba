"""The publisher on a real broker: confirmed means there, and every other end says what is known."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from leash import Partitions, Publisher
from leash.amqp import Channel, Properties, connect, decode_properties, topology
from leash.broker import Broker
from leash.errors import (
    AuthenticationError,
    ConfigError,
    HostUnreachable,
    InDoubt,
    Nacked,
    NotFound,
    NotSent,
    PartlyPublished,
    PreconditionFailed,
    PublishBlocked,
    Unroutable,
)
from tests.conftest import Tls
from tests.consumer.kit import depth, until


@pytest.fixture
def publisher(uri: str, channel: Channel) -> Iterator[Publisher]:
    topology.declare_queue(channel, "q")
    with Publisher(uri) as opened:
        yield opened


def bodies_in(channel: Channel, queue: str) -> list[bytes]:
    found = []
    while (event := channel.get(queue)) is not None:
        found.append(event.body)
    return found


def together(count: int, work: Callable[[int], object]) -> None:
    """Every failure is the test's."""
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_message_is_persistent_has_an_id_and_says_what_it_is(
    publisher: Publisher, channel: Channel
) -> None:
    receipt = publisher.publish({"n": 1}, "q", headers={"tenant": "a"})
    again = publisher.publish(b"raw", "q", message_id="mine", properties=Properties(priority=3))
    assert not receipt.resent
    assert receipt.message_id != again.message_id == "mine"
    first, second = channel.get("q"), channel.get("q")
    assert first is not None
    assert second is not None
    told = decode_properties(first.properties)
    assert (first.body, told.content_type, told.delivery_mode) == (b'{"n":1}', "application/json", 2)
    assert (told.message_id, told.headers) == (receipt.message_id, {"tenant": "a"})
    other = decode_properties(second.properties)
    assert (other.message_id, other.priority, other.delivery_mode) == ("mine", 3, 2)


def test_what_was_confirmed_is_there_after_a_crash(uri: str, channel: Channel, broker: Broker) -> None:
    topology.declare_queue(channel, "q")
    broker.stop()  # a node that is killed may forget the queues of its last moments, with all that is in them
    broker.start()
    with Publisher(uri) as publisher:
        assert publisher.publish_many((b"%d" % n for n in range(100)), "q") == 100
    broker.kill()
    broker.start()
    with connect(uri) as again:
        assert bodies_in(again.channel(), "q") == [b"%d" % n for n in range(100)]


def test_eight_threads_share_one_connection_and_all_is_there_once(
    publisher: Publisher, channel: Channel
) -> None:
    def work(number: int) -> None:
        for each in range(250):
            publisher.publish(b"%d-%d" % (number, each), "q")

    together(8, work)
    found = bodies_in(channel, "q")
    assert len(found) == len(set(found)) == 2000
    for number in range(8):  # and each thread's in its order
        mine = [body for body in found if body.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, each) for each in range(250)]


def test_many_of_none_and_many_of_a_generator(publisher: Publisher, channel: Channel) -> None:
    assert publisher.publish_many([], "q") == 0
    assert publisher.publish_many((str(n) for n in range(3000)), "q") == 3000
    assert depth(channel, "q") == 3000


def test_a_generator_that_fails_is_told_what_was_sent(publisher: Publisher, channel: Channel) -> None:
    def numbers() -> Iterator[bytes]:
        yield from (b"x" for _ in range(256))
        raise OSError("the file ended")

    with pytest.raises(OSError, match="the file ended") as caught:
        publisher.publish_many(numbers(), "q")
    assert caught.value.__notes__ == ["256 messages had been sent before"]
    publisher.flush()
    assert depth(channel, "q") == 256


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}])
def test_one_body_is_not_many(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="iterable, of bodies"):
        Publisher("amqp://nowhere.invalid").publish_many(wrong, "q")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="exchnage: there is no such option"):
        Publisher("amqp://nowhere.invalid").publish(b"", exchnage="e")  # type: ignore[call-arg]


def test_a_silent_broker_is_waited_for_once(uri: str, channel: Channel, broker: Broker) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri, timeout=1) as publisher:
        publisher.publish(b"x", "q")
        broker.pause()
        try:
            with pytest.raises(InDoubt, match="sent and not confirmed within 1 s"):
                publisher.publish(b"x", "q")
            began = time.monotonic()
            with pytest.raises(PartlyPublished, match="200 messages failed") as caught:
                publisher.publish_many([b"x"] * 200, "q")
            assert time.monotonic() - began < 100  # and not 200 times a second
            assert caught.value.in_doubt
        finally:
            broker.resume()
        until(lambda: depth(channel, "q") >= 202)  # they were only late


@pytest.mark.parametrize(("queue", "says"), [("q", ""), ("nowhere", "event=not_published count=1 reason=")])
def test_the_end_of_the_process_waits_for_what_was_sent(
    uri: str, channel: Channel, queue: str, says: str
) -> None:
    topology.declare_queue(channel, "q")
    code = f"from leash import Publisher\nPublisher({uri!r}).send(b'x', {queue!r})"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)
    assert depth(channel, "q") == (queue == "q")


def test_confirms_awaited_later_come_within_the_bound(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri, in_flight=50) as publisher:
        most = 0
        sent = []
        for number in range(2000):
            sent.append(publisher.send(b"%d" % number, "q"))
            most = max(most, sum(not each.done() for each in sent[-200:]))
        assert most <= 50
        assert all(each.result(30).message_id == each.message_id for each in sent)
        told: list[object] = []
        sent[0].add_done_callback(told.append)
        assert told == [sent[0]]
    assert bodies_in(channel, "q") == [b"%d" % number for number in range(2000)]


def test_closing_waits_for_what_was_sent(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri) as publisher:
        sent = [publisher.send(b"x", "q") for _ in range(500)]
    assert all(each.done() and each.exception() is None for each in sent)
    assert depth(channel, "q") == 500
    publisher.close()  # again
    with pytest.raises(NotSent, match="closed"):
        publisher.publish(b"x", "q")
    with pytest.raises(NotSent, match="closed"):
        publisher.send(b"x", "q")


def test_an_error_that_nobody_asked_about_is_raised_at_the_end(uri: str, channel: Channel) -> None:
    with pytest.raises(Unroutable, match="queue 'nowhere'"), Publisher(uri) as publisher:
        publisher.send(b"x", "nowhere")
    with Publisher(uri) as publisher:
        assert isinstance(publisher.send(b"x", "nowhere").exception(), Unroutable)


def test_an_unroutable_message_is_named_and_the_others_are_there(
    publisher: Publisher, channel: Channel
) -> None:
    topology.declare_exchange(channel, "events", kind="topic")
    topology.bind_queue(channel, "q", "events", "good.*")
    sent = [
        publisher.send(b"%d" % n, exchange="events", routing_key="good.x" if n % 2 else "bad.x")
        for n in range(400)
    ]
    for number, each in enumerate(sent):
        error = each.exception(30)
        if number % 2:
            assert error is None
        else:
            assert isinstance(error, Unroutable)
            assert "routing key 'bad.x' on exchange 'events'" in str(error)
            assert not error.in_doubt
    assert bodies_in(channel, "q") == [b"%d" % n for n in range(400) if n % 2]


def test_what_a_full_queue_refuses_is_counted(publisher: Publisher, channel: Channel) -> None:
    topology.declare_queue(channel, "full", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    with pytest.raises(PartlyPublished) as caught:
        publisher.publish_many([b"%d" % n for n in range(50)], "full")
    error = caught.value
    assert not error.in_doubt
    assert all(isinstance(each, Nacked) for each in error.failures.values())
    taken = [b"%d" % n for n in range(50) if n not in error.failures]
    assert (len(taken), bodies_in(channel, "full")) == (error.confirmed, taken)
    publisher.publish(b"x", "q")


def test_a_missing_exchange_fails_its_own_messages_only(publisher: Publisher, channel: Channel) -> None:
    def work(number: int) -> None:
        for each in range(50):
            if number:
                publisher.publish(b"%d-%d" % (number, each), "q")
            else:
                with pytest.raises(NotFound, match="no exchange 'missing'"):
                    publisher.publish(b"x", exchange="missing", routing_key="k")

    together(4, work)
    assert len(set(bodies_in(channel, "q"))) == 150


def test_a_message_that_the_broker_closes_the_channel_for_fails_alone(
    publisher: Publisher, channel: Channel
) -> None:
    """An expiration that is none ends the channel, and says nothing about which message it was."""
    sent = [
        publisher.send(
            b"%d" % n, "q", properties=Properties(expiration="soon") if n in (7, 150, 151) else Properties()
        )
        for n in range(300)
    ]
    errors = {n: each.exception(60) for n, each in enumerate(sent)}
    failed = {n: error for n, error in errors.items() if error is not None}
    assert list(failed) == [7, 150, 151]
    assert all(isinstance(error, PreconditionFailed) for error in failed.values())
    found = bodies_in(channel, "q")
    assert set(found) == {b"%d" % n for n in range(300) if n not in failed}
    twice = {body for body in found if found.count(body) > 1}
    assert twice <= {b"%d" % n for n, each in enumerate(sent) if each.resent}


def test_properties_that_fill_a_frame_fail_alone(publisher: Publisher, channel: Channel) -> None:
    sent = [publisher.send(b"x", "q", headers={"h": "x" * (200_000 if n == 5 else 1)}) for n in range(10)]
    with pytest.raises(ConfigError, match="they go in one frame"):
        sent[5].result(30)
    assert [n for n, each in enumerate(sent) if each.exception(30)] == [5]
    assert depth(channel, "q") == 9


def test_large_bodies_wait_for_room(publisher: Publisher, channel: Channel) -> None:
    assert publisher.publish_many((b"x" * 10_000_000 for _ in range(12)), "q") == 12
    assert depth(channel, "q") == 12


def test_an_alarm_is_named_once_the_time_is_over(uri: str, channel: Channel, broker: Broker) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri, timeout=3) as short, Publisher(uri, timeout=None) as patient:
        for each in (short, patient):
            each.publish(b"before", "q")
        broker.ctl("set_vm_memory_high_watermark", "0.000001")
        try:
            seen = 0
            deadline = time.monotonic() + 60
            while not seen and time.monotonic() < deadline:
                # What is sent before the broker says that it blocks is in doubt.
                with pytest.raises((PublishBlocked, InDoubt, NotSent), match="blocks publishers") as caught:
                    short.publish(b"late", "q")
                seen = caught.type is PublishBlocked
            assert seen
            assert not caught.value.in_doubt
            waiting = patient.send(b"after", "q")
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        finally:
            broker.ctl("set_vm_memory_high_watermark", "0.6")
        waiting.result(60)
        short.publish(b"again", "q")


def test_no_broker_is_an_error_at_once_or_after_the_timeout() -> None:
    nobody = "amqp://127.0.0.1:1"
    with pytest.raises(HostUnreachable), Publisher(nobody):
        pass
    publisher = Publisher(nobody, timeout=0.5)
    with pytest.raises(NotSent, match=r"was not sent within 0.5 s: 127.0.0.1:1"):
        publisher.publish(b"x", "q")
    assert publisher.send(b"x", "q").message_id
    with pytest.raises(NotSent):
        publisher.close()


def test_a_wrong_password_is_not_waited_for(uri: str) -> None:
    place = uri.replace("leash:", "nobody:", 1)
    publisher = Publisher(place, timeout=None)
    with pytest.raises(AuthenticationError) as caught:
        publisher.publish(b"x", "q")
    publisher.close()
    assert "nobody" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((b"x",), {}),
        ((b"x", "q"), {"exchange": "e"}),
        ((b"x", "q"), {"routing_key": "k"}),
        ((b"x", "q"), {"key": "k"}),
        ((b"x", "k" * 256), {}),
        ((b"x", "q"), {"message_id": "i" * 256}),
        ((b"x", "q"), {"headers": {"h": object()}}),
        ((None, "q"), {}),
        ((b"x",), {"partitions": "p"}),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    arguments: tuple[object, ...], options: dict[str, object]
) -> None:
    publisher = Publisher("amqp://nowhere.invalid")
    with pytest.raises(ConfigError):
        publisher.publish(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["routing_key", "header:customer", "property:correlation_id"])
def test_partitions_get_each_key_where_it_belongs(uri: str, channel: Channel, by: str) -> None:
    orders = Partitions("orders", {"orders.0": 1, "orders.1": 1, "orders.2": 2}, by)
    layout = orders.declare(uri)
    keys = [f"customer-{n}" for n in range(40)]
    with Publisher(uri) as publisher:
        for key in keys:
            publisher.publish(key, partitions="orders", key=key)
            publisher.publish(key, partitions=orders, key=key)
    for queue in layout.queues:
        expected = [key.encode() for key in keys for _ in range(2) if layout.route(key) == queue]
        assert bodies_in(channel, queue) == expected


def test_an_event_loop_publishes_and_is_never_blocked(publisher: Publisher, channel: Channel) -> None:
    async def main() -> int:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        receipts = await asyncio.gather(*(publisher.apublish(b"%d" % n, "q") for n in range(500)))
        later = publisher.send(b"later", "q")
        assert (await later).message_id == later.message_id
        ticking.cancel()
        with pytest.raises(Unroutable):
            await publisher.apublish(b"x", "nowhere")
        assert len({receipt.message_id for receipt in receipts}) == 500
        return turns

    assert asyncio.run(main()) > 1
    assert depth(channel, "q") == 501


def test_an_async_context_connects_and_flushes(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q")

    async def main() -> None:
        async with Publisher(uri, in_flight=3) as publisher:
            await asyncio.gather(*(publisher.apublish(b"x", "q") for _ in range(50)))
            publisher.send(b"x", "q")

    asyncio.run(main())
    assert depth(channel, "q") == 51


def test_a_cancelled_publish_takes_back_what_was_not_sent() -> None:
    publisher = Publisher("amqp://127.0.0.1:1", timeout=None)

    async def main() -> None:
        task = asyncio.create_task(publisher.apublish(b"x", "q"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    publisher.close()  # has nothing to wait for


def test_a_cancelled_publish_does_no_harm_to_others(publisher: Publisher, channel: Channel) -> None:
    async def main() -> int:
        tasks = [asyncio.create_task(publisher.apublish(b"%d" % n, "q")) for n in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(isinstance(each, BaseException) for each in ended[1::2])
        return sum(not isinstance(each, BaseException) for each in ended)

    confirmed = asyncio.run(main())
    publisher.flush()
    assert 100 <= confirmed <= depth(channel, "q") <= 200


def test_a_callback_may_send_but_not_wait(publisher: Publisher, channel: Channel) -> None:
    said: list[object] = []

    def then(_: object) -> None:
        publisher.send(b"second", "q").add_done_callback(said.append)
        try:
            publisher.publish(b"third", "q")
        except RuntimeError as error:
            said.append(error)

    publisher.send(b"first", "q").add_done_callback(then)
    until(lambda: len(said) == 2)
    assert depth(channel, "q") == 2


def test_a_callback_that_fails_harms_nobody(publisher: Publisher) -> None:
    def fail(_: object) -> None:
        raise ValueError("mine")

    publisher.send(b"x", "q").add_done_callback(fail)
    publisher.publish(b"x", "q")


def test_a_forked_process_has_a_connection_of_its_own(publisher: Publisher, channel: Channel) -> None:
    publisher.publish(b"parent", "q")
    child = os.fork()
    if not child:
        status = 1
        try:
            publisher.publish(b"child", "q")
            publisher.close()
            status = 0
        finally:
            os._exit(status)
    for _ in range(50):
        publisher.publish(b"parent", "q")
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish(b"parent", "q")
    found = bodies_in(channel, "q")
    assert (found.count(b"parent"), found.count(b"child")) == (52, 1)


def test_by_tls_and_by_the_host_that_answers(uri: str, channel: Channel, tls: Tls) -> None:
    topology.declare_queue(channel, "q")
    credentials, _, rest = uri.partition("//")[2].partition("@")
    vhost = rest.partition("/")[2]
    places = [
        f"amqps://{credentials}@localhost:{tls.port}/{vhost}?cacertfile={tls.ca}",
        f"amqp://{credentials}@127.0.0.1:1,{rest}",
    ]
    for place in places:
        with Publisher(place) as publisher:
            publisher.publish_many([b"x" * 1000] * 500, "q")
    assert depth(channel, "q") == 1000


@dataclass
class Order:
    number: int


def test_publishing_from_a_handler(publisher: Publisher, channel: Channel, uri: str) -> None:
    from leash import Consumer, Message

    topology.declare_queue(channel, "next")
    consumer = Consumer(uri, ["q"], workers=4)

    @consumer.handler
    def work(message: Message) -> None:
        publisher.publish(Order(int(message.body)), "next")

    publisher.publish_many((str(n) for n in range(200)), "q")
    with consumer:
        until(lambda: depth(channel, "next") == 200)
    assert set(bodies_in(channel, "next")) == {b'{"number":%d}' % n for n in range(200)}
