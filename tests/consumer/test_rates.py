"""Rate limits on the real broker."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel
from leash.consumer.stats import QueueStats
from leash.flow import Dispatch, Flow
from tests.consumer.kit import fill, running, until


def test_a_limited_queue_keeps_its_rate_while_another_runs_at_full_speed(channel: Channel, uri: str) -> None:
    fill(channel, "free", 1600)
    fill(channel, "gold", 100_000)
    times: list[int] = []
    take = Flow.take

    def noting(flow: Flow, now: int, most: int | None = None, since: int | None = None) -> list[Dispatch]:
        work = take(flow, now, most, since)
        for lane, messages, *_ in work:
            if lane == "free":
                times.extend([flow.now] * len(messages))
        return work

    seen: Counter[str] = Counter()
    consumer = Consumer(uri, [Queue("gold", 10), Queue("free", 1, rate=50, burst=100)], workers=2)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flow, "take", noting)
        with running(consumer):
            until(lambda: seen["gold"] == 100_000)
            until(lambda: len(times) > 100 + 50 * 8)
            until(lambda: holds_little(consumer.stats().queues["free"]))
    for i, first in enumerate(times):
        for count, last in enumerate(times[i:], 1):
            assert count <= 100 + 50 * (last - first + 1) / 1e9
    assert (len(times) - 100) / ((times[-1] - times[0]) / 1e9) <= 50


def holds_little(free: QueueStats) -> bool:
    """Though there is more. While a machine is busy, the round trip is long, and so the window large."""
    return free.unsettled <= 110 and bool(free.depth)


def test_the_total_rate_is_shared_fairly(channel: Channel, uri: str) -> None:
    for name in ("a", "b"):
        fill(channel, name, 1000)
    seen: Counter[str] = Counter()
    consumer = Consumer(uri, [Queue("a", 3), Queue("b", 1)], rate=200, burst=20, workers=3)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1

    with running(consumer):
        until(lambda: sum(seen.values()) > 30)
        begin = time.monotonic()
        before = sum(seen.values())
        until(lambda: sum(seen.values()) >= before + 400)
        count = sum(seen.values()) - before
        assert count <= 20 + 200 * (time.monotonic() - begin) + 3  # three were begun before
        assert abs(seen["a"] - 3 * seen["b"]) <= 6
