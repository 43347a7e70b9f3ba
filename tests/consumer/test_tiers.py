"""Tiers on the real broker: shares as counted, not as timed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import NamedTuple

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel
from leash.amqp.topology import delete_queue
from leash.lab.proxy import slow_apart
from tests.consumer.kit import fill, running, until


class Seen(NamedTuple):
    high: int
    low: int
    late: int
    """Turns that waited in vain, for as long as the docs say: a queue of the broker stood still."""

    @property
    def share(self) -> float:
        return self.low / (self.high + self.low)


def handled(
    channel: Channel, uri: str, count: int, kind: str, delay: float, guaranteed: dict[int, int] | None
) -> Seen:
    """What both tiers had when the first of them had most of its messages handled."""
    for name in ("high", "low"):
        delete_queue(channel, name)
        fill(channel, name, count, kind=kind)
    seen: Counter[str] = Counter()
    with slow_apart(uri, delay) if delay else contextlib.nullcontext(uri) as place:
        consumer = Consumer(place, [Queue("high"), Queue("low", tier=1)], guaranteed=guaranteed)

        @consumer.handler
        def work(message: Message) -> None:
            if max(seen.values(), default=0) < 0.8 * count:
                seen[message.queue] += 1

        with running(consumer):
            until(lambda: max(seen.values(), default=0) >= 0.8 * count)
            late = sum(lane.expired for lane in consumer.session.engine.flow.lanes.values())
    return Seen(seen["high"], seen["low"], late)


def first_in_time(*arguments: object) -> Seen:
    """Of the first run in which no turn was given up, whatever came out; of the third if there is none."""
    for _ in range(3):
        seen = handled(*arguments)  # type: ignore[arg-type]
        if not seen.late:
            break
    return seen


@pytest.mark.parametrize(
    ("kind", "delay", "percent"),
    [
        ("classic", 0, 60),
        ("classic", 0, 90),
        ("quorum", 0, 60),
        ("classic", 0.02, 60),
        pytest.param("quorum", 0.02, 60, marks=pytest.mark.soak),
        pytest.param("classic", 0.1, 60, marks=pytest.mark.soak),
        pytest.param("quorum", 0.1, 60, marks=pytest.mark.soak),
        pytest.param("classic", 0.1, 90, marks=pytest.mark.soak),
    ],
)
def test_a_guarantee_is_kept_although_handlers_outrun_delivery(
    channel: Channel, uri: str, kind: str, delay: float, percent: int
) -> None:
    seen = first_in_time(channel, uri, 10_000, kind, delay, {1: percent})
    assert seen.share >= (percent - 2) / 100


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_backlogged_tier_gets_next_to_nothing_while_a_higher_one_has_messages(
    channel: Channel, uri: str, kind: str
) -> None:
    seen = first_in_time(channel, uri, 20_000, kind, 0, None)
    assert seen.share <= 0.1  # all of it while the broker stood still: on a quiet machine it is none


@pytest.mark.soak  # a share of the time, for a machine that does nothing else
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("service", [0, 0.001])
def test_a_backlogged_tier_does_not_slow_a_higher_one_down(
    channel: Channel, uri: str, kind: str, service: float
) -> None:
    """By the fastest run of each: others on the machine only ever make one slower, so a few may be needed."""
    count = 4_000 if service else 30_000

    def seconds(low: int) -> float:
        for name, there in (("high", count), ("low", low)):
            delete_queue(channel, name)
            fill(channel, name, there, kind=kind)
        times: list[float] = []
        consumer = Consumer(uri, [Queue("high"), Queue("low", tier=1)])

        @consumer.handler
        def work(message: Message) -> None:
            if message.queue == "high":
                time.sleep(service)
                times.append(time.monotonic())

        with running(consumer):
            until(lambda: len(times) == count)
        return times[-1] - times[count // 4]

    alone, beside = [seconds(0)], [seconds(count)]
    while len(alone) < 3 or (len(alone) < 10 and min(alone) < 0.95 * min(beside)):
        alone.append(seconds(0))
        beside.append(seconds(count))
    assert min(alone) >= 0.95 * min(beside), f"{alone} alone, {beside} beside it"
