"""The window's autopilot behind a slow line, and workers of different speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel
from leash.amqp.topology import delete_queue
from leash.lab.proxy import slow_apart
from leash.lab.quiet import QUIET, quietest
from tests.consumer.kit import fill, running


class Seen(NamedTuple):
    """What the autopilot did with work of 4 ms, then of 40."""

    windows: list[int]
    busy: float
    came_down: float | None
    waits: list[float]
    busy_later: float
    reason: str


@pytest.mark.soak  # milliseconds on the wall clock: for a machine that does nothing else
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_behind_50_ms_each_way_the_window_finds_26_and_comes_down_when_work_gets_slow(
    channel: Channel, uri: str, kind: str
) -> None:
    seen, away, _ = quietest(lambda: _autopilot(channel, uri, kind))
    if away > QUIET:
        pytest.skip(f"this machine was never quiet: it was away for {away:.1%} of the time at best")
    assert min(seen.windows) >= 24
    assert max(seen.windows) <= 30
    assert seen.busy >= 0.95, seen.windows
    assert seen.came_down is not None
    assert seen.came_down < 2
    assert max(seen.waits) < 0.1
    assert seen.busy_later >= 0.95
    assert "window" in seen.reason


def _autopilot(channel: Channel, uri: str, kind: str) -> Seen:
    delete_queue(channel, "q")
    fill(channel, "q", 6000, kind=kind)
    seconds = 0.004
    log: list[tuple[float, float, float]] = []  # begin, end, wait
    with slow_apart(uri, 0.05) as far:
        consumer = Consumer(far, [Queue("q")])

        @consumer.handler
        def work(message: Message) -> None:
            begin = time.monotonic()
            time.sleep(seconds)
            log.append((begin, time.monotonic(), begin - message.arrived / 1e9))

        def busy(begin: float, end: float) -> float:
            spent = sum(max(0, min(stop, end) - max(start, begin)) for start, stop, _ in log)
            return spent / (end - begin)

        def windows(until: float) -> Iterator[tuple[float, int]]:
            while (now := time.monotonic()) < until:
                yield now, consumer.stats().queues["q"].window
                time.sleep(0.02)

        with running(consumer):
            time.sleep(4)
            begin = time.monotonic()
            steady = [window for _, window in windows(begin + 3)]
            jump = time.monotonic()
            seconds = 0.04
            down = [at - jump for at, window in windows(jump + 6) if 4 <= window <= 6]
            reason = consumer.stats().queues["q"].window_reason
        waits = [wait for at, _, wait in log if at > jump + 3]
        return Seen(
            steady, busy(begin, jump), min(down, default=None), waits, busy(jump + 3, jump + 6), reason
        )


@pytest.mark.soak  # it measures a rate
def test_a_worker_that_is_100_times_slower_does_not_slow_down_the_other(channel: Channel, uri: str) -> None:
    fill(channel, "q", 20_000)
    done: list[tuple[float, int]] = []
    took: dict[int, list[float]] = {}
    slow: list[int] = []
    consumer = Consumer(uri, ["q"], workers=2)

    @consumer.handler
    def work(message: Message) -> None:
        me = threading.get_ident()
        if not slow:
            slow.append(me)
        begin = time.monotonic()
        time.sleep(2.0 if me == slow[0] else 0.02)
        now = time.monotonic()
        took.setdefault(me, []).append(now - begin)
        done.append((now, me))

    with running(consumer):
        time.sleep(2.5)
        begin = time.monotonic()
        time.sleep(4)
        end = time.monotonic()
    count = sum(begin <= at <= end for at, _ in done)
    capacity = sum(len(times) / sum(times) for times in took.values())
    assert len(took) == 2
    assert count / (end - begin) >= 0.9 * capacity
