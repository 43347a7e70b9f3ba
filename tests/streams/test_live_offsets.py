"""Where a live consumer of streams begins, and what it stores: only what is below an unsettled message."""

from __future__ import annotations

import threading
import time

import pytest

from leash import Consumer, Message, Stream
from leash.streams import (
    Connection,
    create_stream,
    query_offset,
    store_offset,
)
from tests.consumer.kit import running, until
from tests.streams.kit import made, numbers, write


def test_a_stop_stores_the_offset_and_the_next_consumer_continues(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=3_000)
    seen: list[int] = []
    for first in (True, False):
        consumer = Consumer(uri, streams=["s"], name="billing", workers=3, stream_port=port)
        enough = threading.Event()

        @consumer.handler
        def work(message: Message, first: bool = first, enough: threading.Event = enough) -> None:
            time.sleep(0.0005)
            seen.append(int(message.body))
            assert message.offset is not None
            if first and len(seen) > 700:
                enough.set()

        with running(consumer):
            until(lambda: enough.is_set() or len(seen) >= 3_000)  # noqa: B023
        if first:
            assert query_offset(streams, "billing", "s") == len(seen) - 1
            assert len(seen) < 3_000
    assert sorted(seen) == list(range(3_000))
    assert query_offset(streams, "billing", "s") is not None


def test_only_what_is_below_an_unsettled_message_is_stored(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leash.consumer.stream_lane.STORE_EVERY", 0.05)
    made(streams, stream_uri, s=500)
    go_on, seen = threading.Event(), []
    consumer = Consumer(uri, streams=["s"], name="n", workers=2, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        if message.offset == 7:
            assert go_on.wait(300)
        seen.append(message.offset)

    with running(consumer):
        until(lambda: len(seen) == 499)
        until(lambda: query_offset(streams, "n", "s") == 6)
        time.sleep(0.3)  # it must not go on
        assert query_offset(streams, "n", "s") == 6
        go_on.set()
        until(lambda: (query_offset(streams, "n", "s") or 0) >= 499)


def test_a_message_that_hangs_lets_only_so_many_pass(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leash.consumer.stream_link.SPAN", 200)
    made(streams, stream_uri, s=5_000)
    go_on, seen = threading.Event(), []
    consumer = Consumer(uri, streams=[Stream("s", window=50)], name="n", workers=2, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        if message.offset == 7:
            assert go_on.wait(300)
        seen.append(message.offset)

    with running(consumer):
        until(lambda: len(seen) >= 200)
        until(lambda: consumer.stats().queues["s"].unsettled == 1)  # the one that hangs
        count = len(seen)
        assert 7 + 200 <= count <= 7 + 200 + 50
        time.sleep(0.2)
        assert len(seen) == count
        go_on.set()
        until(lambda: len(seen) == 5_000)


def test_offsets_are_stored_while_it_runs(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leash.consumer.stream_lane.STORE_EVERY", 0.05)
    create_stream(streams, "s")
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    seen: list[bytes] = []
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        for at in range(10):  # a stored offset takes a place in the stream: offsets have gaps
            write(stream_uri, "s", numbers(10, 10 * at))
            until(lambda at=at: len(seen) == 10 * at + 10)  # type: ignore[misc]
            until(lambda at=at: (query_offset(streams, "n", "s") or 0) >= 10 * at + 9)  # type: ignore[misc]
    assert seen == numbers(100)


@pytest.mark.parametrize("start", ["next", "last", "1h"])
def test_a_start_that_moves_is_kept_from_the_first_moment_on(
    streams: Connection, stream_uri: str, uri: str, port: int, start: str
) -> None:
    made(streams, stream_uri, s=1_000)
    consumer = Consumer(uri, streams=[Stream("s", start=start, rate=0.001)], name="n", stream_port=port)
    consumer.handler(lambda _: time.sleep(600))
    consumer.start()
    consumer.abandon()  # nothing was settled
    stored = query_offset(streams, "n", "s")
    begins = 0 if stored is None else stored + 1
    assert begins in {"next": [1_000], "last": range(500, 1_000), "1h": [0]}[start]
    write(stream_uri, "s", numbers(1_000, 1_000))
    seen: list[int] = []
    consumer = Consumer(uri, streams=[Stream("s", start=start)], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(int(message.body)))
    with running(consumer):
        until(lambda: len(seen) >= 2_000 - begins)
    assert seen == list(range(begins, 2_000))


def test_it_begins_at_an_offset_within_a_chunk(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=1_000)
    seen: list[int | None] = []
    consumer = Consumer(uri, streams=[Stream("s", start=750)], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(message.offset))
    with running(consumer):
        until(lambda: len(seen) >= 250)
    assert seen == list(range(750, 1_000))


def test_an_offset_stored_by_another_client_counts(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=100)
    store_offset(streams, "n", "s", 89)
    until(lambda: query_offset(streams, "n", "s") == 89)
    seen: list[int | None] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(message.offset))
    with running(consumer):
        until(lambda: len(seen) >= 10)
    assert seen[-1] == 99 + (seen[0] or 0) - 90
    assert seen[0] == 90
