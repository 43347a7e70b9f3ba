"""Streams through the live consumer: shares, rates and costs, beside queues and by themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from leash import Consumer, Message, Queue, Stream
from leash.amqp import Channel
from leash.flow import Dispatch, Flow
from leash.flow.sidelined_lanes import Sidelines
from leash.streams import (
    Connection,
    create_stream,
)
from leash.units import SECOND
from tests.consumer.kit import depth, fill, running, until
from tests.consumer.test_fairness import Spread, watched
from tests.streams.kit import made, write


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, no round gives up on a lane, and nothing is taken back from a worker: then
    no message at all may be out of turn.
    """
    monkeypatch.setattr(Sidelines, "patience_for", lambda *_: 1_000 * SECOND)
    monkeypatch.setattr("leash.consumer.overdue._SLOW", 1_000 * SECOND)


@pytest.mark.parametrize("workers", [1, 4])
def test_three_streams_stay_within_one_round_of_each_other(
    streams: Connection, stream_uri: str, uri: str, port: int, workers: int, unhurried: None
) -> None:
    quanta, totals = {"a": 10, "b": 3, "c": 1}, {"a": 20_000, "b": 6_000, "c": 2_000}
    made(streams, stream_uri, **totals)
    spread = Spread(totals, quanta)
    listed = [Stream(name, quantum) for name, quantum in quanta.items()]
    consumer = Consumer(uri, streams=listed, name="n", workers=workers, stream_port=port)
    consumer.handler(lambda _: None)
    with watched(spread), running(consumer):
        until(lambda: spread.over)
        stats = consumer.stats()
    assert spread.measured > 2_800
    assert (spread.late, stats.spread <= 1) == (0, True)
    assert spread.worst <= 1


def test_streams_and_queues_share_by_quantum(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int, unhurried: None
) -> None:
    totals = {"s": 9_000, "q": 3_000}
    made(streams, stream_uri, s=9_000)
    fill(channel, "q", 3_000)
    spread = Spread(totals, {"s": 3, "q": 1})
    seen: Counter[str] = Counter()
    consumer = Consumer(uri, [Queue("q")], streams=[Stream("s", 3)], name="both", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1

    with watched(spread), running(consumer):
        until(lambda: seen == totals)
    assert spread.measured > 300
    assert (spread.late, spread.worst <= 1) == (0, True)
    assert depth(channel, "q") == 0


def test_a_stream_is_never_above_its_rate(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(streams, stream_uri, free=2_000, gold=20_000)
    times: list[int] = []
    take = Flow.take

    def noting(flow: Flow, *args: Any) -> list[Dispatch]:
        work = take(flow, *args)
        for dispatch in work:
            if dispatch.lane == "free":
                times.extend([flow.now] * len(dispatch.messages))
        return work

    monkeypatch.setattr(Flow, "take", noting)
    seen: Counter[str] = Counter()
    listed = [Stream("free", rate=100, burst=20), Stream("gold", 10)]
    consumer = Consumer(uri, streams=listed, name="n", workers=2, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1

    with running(consumer):
        until(lambda: seen["gold"] == 20_000)
        until(lambda: len(times) > 250)
    for i, first in enumerate(times):
        for count, last in enumerate(times[i:], 1):
            assert count <= 20 + 100 * (last - first + 1) / 1e9


def test_costs_count_for_streams(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    create_stream(streams, "large")
    create_stream(streams, "small")
    write(stream_uri, "large", [b"x" * 1_000] * 2_000)
    write(stream_uri, "small", [b"x" * 100] * 2_000)
    seen: Counter[str] = Counter()
    listed = [Stream("large", 1_000), Stream("small", 1_000)]
    consumer = Consumer(uri, streams=listed, name="n", cost="bytes", stream_port=port)
    over: Counter[str] = Counter()

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1
        if seen["small"] == 1_000:
            over.update({"large": seen["large"]} if not over else {})

    with running(consumer):
        until(lambda: over)
    assert 90 <= over["large"] <= 110
