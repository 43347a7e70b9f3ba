"""What messages cost: publishers can make theirs neither free nor endless."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel, Outgoing, Properties, Publisher
from leash.amqp.topology import declare_queue
from tests.consumer.kit import running, until

COUNT = 2_000


def put(channel: Channel, name: str, *weights: Any, count: int = COUNT) -> None:
    """Messages with these weights, and then as many more with the last of them."""
    declare_queue(channel, name)
    each = [*weights, *[weights[-1]] * (count - len(weights))]
    with Publisher(channel.connection) as publisher:
        publisher.publish(Outgoing(b"x", "", name, Properties(headers={"weight": w})) for w in each)


def shares(
    uri: str, names: list[str], stop: int, cost: Any = "header:weight", quantum: int = 10
) -> Counter[str]:
    """What each queue had when `stop` messages were handled, counted by one worker."""
    seen: Counter[str] = Counter()
    done = threading.Event()
    consumer = Consumer(uri, [Queue(name, quantum) for name in names], cost=cost)

    @consumer.handler
    def work(message: Message) -> None:
        if not done.is_set():
            seen[message.queue] += 1
            if seen.total() == stop:
                done.set()

    with running(consumer):
        assert done.wait(60)
        stats = consumer.stats()
    assert not stats.unfair
    return seen


@pytest.mark.parametrize("weight", [0, -1, -(2**31)])
def test_a_header_that_says_nothing_or_less_costs_one(channel: Channel, uri: str, weight: int) -> None:
    put(channel, "cheat", weight)
    put(channel, "honest", 1)
    seen = shares(uri, ["cheat", "honest"], COUNT)
    assert seen["honest"] >= 0.45 * COUNT


@pytest.mark.parametrize("weight", [2**31 - 1, 2**62])
def test_one_absurd_header_does_not_put_its_queue_to_sleep_for_good(
    channel: Channel, uri: str, weight: int
) -> None:
    put(channel, "cheat", weight, 1)
    put(channel, "honest", 1)
    seen = shares(uri, ["cheat", "honest"], COUNT)
    assert seen["cheat"] > 100  # after a hundred rounds without it, it has its turns again


def test_a_function_that_returns_0_costs_one_and_one_that_fails_costs_one_for_that_message(
    channel: Channel, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(channel, "cheat", "not a number", 0)
    put(channel, "honest", 1)

    def cost(message: Message) -> int:
        return int(message.headers["weight"])

    with caplog.at_level(logging.ERROR, "leash.consumer"):
        seen = shares(uri, ["cheat", "honest"], COUNT, cost)
        until(lambda: "event=cost_failed" in caplog.text)
    assert seen["honest"] >= 0.45 * COUNT
    assert "invalid literal" in caplog.text


def test_a_header_out_of_bounds_is_told_of_but_not_for_every_message(
    channel: Channel, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(channel, "cheat", 10**6)
    with caplog.at_level(logging.ERROR, "leash.consumer"):
        shares(uri, ["cheat"], COUNT)
        until(lambda: "event=cost_failed" in caplog.text)
    assert "header 'weight' is 1000000: a message costs from 1 to 1000" in caplog.text
    assert caplog.text.count("event=cost_failed") < 20


def test_larger_quanta_allow_for_larger_costs(channel: Channel, uri: str) -> None:
    put(channel, "large", 5_000, count=1_000)
    put(channel, "small", 1_000, count=2_000)
    seen = shares(uri, ["large", "small"], 1_200, quantum=10_000)
    assert seen["small"] == pytest.approx(5 * seen["large"], rel=0.1)
