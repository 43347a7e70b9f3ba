"""The broker's consumer timeout: it closes the channel, or from 4.3 on ends a quorum queue's consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel
from leash.amqp.delivery_limit import limbo_queue
from leash.broker import Broker
from tests.consumer.kit import depth, fill, running, until

_SET = "application:set_env([{{rabbit, [{{consumer_timeout, {}}}, {{channel_tick_interval, {}}}]}}])."
SINGLE = {"x-single-active-consumer": True}


@pytest.fixture(autouse=True)
def impatient(broker: Broker) -> Iterator[None]:
    """Half a second instead of half an hour, for channels that are opened from now on."""
    broker.eval(_SET.format(500, 100))
    yield
    broker.eval(_SET.format(1_800_000, 60_000))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_an_ordered_queue_whose_waits_are_longer_parks_and_goes_on(
    channel: Channel, uri: str, kind: str
) -> None:
    fill(channel, "q", 3, kind=kind, arguments=SINGLE)
    tries: list[int] = []
    others: list[bytes] = []
    consumer = Consumer(uri, [Queue("q", ordered=True)], retry=Retry(tries=4, delay=1.5))

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"0":
            tries.append(message.tries)
            raise ValueError
        others.append(message.body)

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.q") >= 1, what=f"{tries}")  # twice, if the ack came too late
        until(lambda: list(dict.fromkeys(others)) == [b"1", b"2"], what=f"{others}")
        assert consumer.stats().queues["q"].counts.get("lost") or kind == "classic"  # there never, on 4.3
    assert list(dict.fromkeys(tries)) == [0, 1, 2, 3]


def test_a_starving_tier_that_meets_it_thirty_times_loses_nothing(
    channel: Channel, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, "high", 1, kind="quorum")
    fill(channel, "low", 20, kind="quorum")
    holding, go = threading.Event(), threading.Event()
    seen: set[bytes] = set()
    consumer = Consumer(uri, [Queue("high"), Queue("low", tier=1, window=20)])

    @consumer.handler
    def work(message: Message) -> None:
        if message.queue == "high":
            holding.set()
            go.wait(120)
        else:
            seen.add(message.body)

    def met() -> int:
        ends = ("event=channel_lost queue=low", "event=cancelled_by_broker queue=low")
        return sum(record.getMessage().startswith(ends) for record in caplog.records)

    with caplog.at_level(logging.INFO, "leash.consumer"), running(consumer):
        until(holding.is_set)
        early = len(seen)
        until(lambda: met() >= 30 or depth(channel, limbo_queue("low")) == 20, 100)
        assert len(seen) == early
        go.set()
        until(lambda: len(seen) == 20, what=f"{len(seen)}")
