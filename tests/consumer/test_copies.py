"""Copies of failed messages: where they wait, what they carry, and what happens where they cannot go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from pamqp.common import FieldTable

from leash import Consumer, Message, Retry
from leash.amqp import Channel, Outgoing, Properties, Publisher
from leash.amqp.topology import declare_queue, delete_queue
from leash.broker import Broker
from leash.errors import ConfigError
from tests.admin import limit, memory_alarm
from tests.consumer.kit import depth, fill, publish, running, until

_PATIENCE = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, {})."


@pytest.fixture
def impatient(broker: Broker) -> Iterator[None]:
    """A broker that tries again after a second to pass on what a queue did not take, not after 3 minutes."""
    broker.eval(_PATIENCE.format(1000))
    yield
    broker.eval(_PATIENCE.format(180_000))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("trouble", ["full", "away"])
def test_a_copy_waits_while_its_queue_cannot_take_it(
    channel: Channel, uri: str, impatient: None, kind: str, trouble: str
) -> None:
    limits: dict[str, object] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    arguments = limits if trouble == "full" else {}
    fill(channel, "q", 1, kind=kind, arguments=arguments)
    failed = threading.Event()
    seen: Counter[bytes] = Counter()
    consumer = Consumer(uri, ["q"], retry=Retry(tries=2, delay=0.5))

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.body] += 1
        if message.body == b"0" and not message.tries:
            failed.set()
            raise ValueError

    with running(consumer):
        until(failed.is_set)
        consumer.pause("q")
        until(lambda: depth(channel, "leash.retry.q.500") == 1)
        if trouble == "full":
            publish(channel, "q", [b"in the way"])
        else:
            delete_queue(channel, "q")
        until(lambda: consumer.stats().queues["q"].handled)
        passed = threading.Event()
        passed.wait(1.0)  # the delay is over, and then some: nothing may have happened
        if trouble == "away":
            declare_queue(channel, "q", kind=kind, arguments=arguments)
        consumer.resume("q")
        until(lambda: seen[b"0"] == 2, what=f"{seen}")
    assert seen[b"0"] == 2


def test_a_message_that_expired_once_can_be_tried_again(channel: Channel, uri: str) -> None:
    declare_queue(channel, "q")
    death: FieldTable = {"queue": "q", "reason": "expired", "count": 1, "exchange": "", "routing-keys": ["q"]}
    headers: FieldTable = {"x-death": [death], "mine": "kept", "x-first-death-queue": "q"}
    with Publisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"", "", "q", Properties(headers=headers, delivery_mode=2))])
    tries: list[tuple[int, object]] = []
    consumer = Consumer(uri, ["q"], retry=Retry(tries=3, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        tries.append((message.tries, message.headers.get("mine")))
        raise ValueError

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") == 1, what=f"{tries}")
    assert tries == [(0, "kept"), (1, "kept"), (2, "kept")]


def test_a_virtual_host_that_is_full_is_named_at_the_start(
    channel: Channel, uri: str, broker: Broker
) -> None:
    declare_queue(channel, "q")
    limit(broker, uri, "max-queues", 1)
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda _: None)
    with pytest.raises(ConfigError, match=r"leash\.(retry|dead)\.q.*limit"):
        consumer.start()


def test_one_that_fills_up_later_is_named_and_copies_go_on_once_there_is_room(
    channel: Channel, uri: str, broker: Broker
) -> None:
    fill(channel, "q", 1)
    begun, go = threading.Event(), threading.Event()
    tries: list[int] = []
    consumer = Consumer(uri, ["q"], retry=Retry(tries=2, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        tries.append(message.tries)
        begun.set()
        if not message.tries:
            go.wait(60)
            raise ValueError

    with running(consumer):
        until(begun.is_set)
        delete_queue(channel, "leash.retry.q.100")
        limit(broker, uri, "max-queues", 1)
        go.set()
        until(lambda: "limit" in (consumer.stats().republish_trouble or ""))
        limit(broker, uri, "max-queues", None)
        until(lambda: tries == [0, 1], what=f"{tries}")


def test_a_stop_with_copies_that_are_not_confirmed_says_so(
    channel: Channel, uri: str, broker: Broker
) -> None:
    fill(channel, "q", 16)
    failed: list[bytes] = []
    consumer = Consumer(uri, ["q"], drain=1.0)

    @consumer.handler
    def work(message: Message) -> None:
        failed.append(message.body)
        raise ValueError

    with memory_alarm(broker):
        consumer.start()
        until(lambda: len(failed) == 16)
        until(lambda: consumer.stats().republishing == 16)
        assert consumer.stop() is False
    until(lambda: depth(channel, "q") + depth(channel, "leash.retry.q.2000") >= 16)
