"""An outage of a minute of what a handler calls, on a real broker and in real time.

pytest tests/soak/test_outage.py -m soak
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import pytest

from leash import Breaker, Consumer, Message, Publisher, Queue
from leash.amqp import Channel
from leash.amqp.topology import declare_queue
from tests.consumer.kit import depth, running, until

pytestmark = pytest.mark.soak

RATE = 100
OUTAGE = 60.0
WORKERS = 8


class Speed(NamedTuple):
    rate: float
    """Messages per second."""
    busy: float
    """The part of the workers' time that they spent in the handler."""


def speed(spans: list[tuple[float, float]], begin: float, end: float) -> Speed:
    inside = [(max(begin, start), min(end, stop)) for start, stop in spans if stop > begin and start < end]
    busy = sum(stop - start for start, stop in inside) / (WORKERS * (end - begin))
    return Speed(len(inside) / (end - begin), busy)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_an_outage_of_a_minute(kind: str, channel: Channel, uri: str) -> None:
    declare_queue(channel, "q", kind=kind)
    consumer = Consumer(uri, [Queue("q")], workers=WORKERS, breaker=Breaker())
    down, ended = threading.Event(), threading.Event()
    spans: list[tuple[float, float]] = []  # of calls that succeeded
    calls: list[bytes] = []
    done: set[bytes] = set()

    @consumer.handler
    def work(message: Message) -> None:
        calls.append(message.body)
        start = time.monotonic()
        time.sleep(0.005)
        if down.is_set():
            raise ConnectionError("down")
        done.add(message.body)
        spans.append((start, time.monotonic()))

    published: list[bytes] = []

    def publish() -> None:
        with Publisher(uri) as publisher:
            while not ended.wait(0.1):
                bodies = [b"%d" % (len(published) + number) for number in range(RATE // 10)]
                publisher.publish_many(bodies, "q")
                published.extend(bodies)

    publisher = threading.Thread(target=publish)
    with running(consumer):
        # Full speed, from a backlog as an outage leaves it.
        consumer.pause("q")
        publisher.start()
        until(lambda: len(published) >= 20 * RATE)
        consumer.resume("q")
        began = time.monotonic()
        until(lambda: len(done) >= 20 * RATE)
        full = began, time.monotonic()
        until(lambda: len(done) >= len(published) - RATE)
        down.set()
        time.sleep(OUTAGE)
        down.clear()
        end = time.monotonic()
        until(lambda: time.monotonic() > end + 4)
        ended.set()
        publisher.join()
        until(lambda: len(done) == len(published))
        counts = consumer.stats().queues["q"].counts
    before, after = (speed(spans, *window) for window in (full, (end + 2, end + 4)))
    print(kind, f"{len(published)} messages, {len(calls)} calls; {before} before, {after} after", counts)  # noqa: T201
    assert depth(channel, "leash.dead.q") == 0
    assert counts.get("parked", 0) == 0
    assert len(calls) <= 1.1 * len(published)
    # Of a machine that does other things as well, the workers' share of time is the firmer figure.
    assert after.busy >= 0.9 * before.busy
    assert after.rate >= 0.7 * before.rate
