"""Streams of a live consumer that are killed, made again, damaged or paused: nothing is skipped."""

from __future__ import annotations

import pkgutil
import time
from collections import Counter
from typing import Any

import pytest

from leash import Consumer, Message, Stream
from leash.broker import Broker
from leash.errors import ChunkError, DataLost
from leash.streams import (
    Connection,
    create_stream,
    delete_stream,
    query_offset,
)
from leash.streams.offsets import first_kept
from tests.consumer.kit import running, until
from tests.streams.kit import can, made, numbers, write


def test_a_broker_that_is_killed_repeats_nothing_and_skips_nothing(
    broker: Broker, streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=5_000)
    seen: list[int] = []
    consumer = Consumer(uri, streams=[Stream("s", ordered=True)], name="n", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen.append(int(message.body))

    with running(consumer):
        until(lambda: len(seen) > 500)
        broker.kill()
        broker.start()
        until(lambda: len(seen) >= 5_000)
        until(lambda: not consumer.stats().queues["s"].unsettled)
        write(stream_uri, "s", numbers(1_000, 5_000))
        until(lambda: len(seen) >= 6_000)
    assert seen == list(range(6_000))


def test_a_stream_made_again_is_read_from_its_beginning(
    streams: Connection,
    stream_uri: str,
    uri: str,
    port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(streams, stream_uri, s=1_000)
    seen: list[bytes] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == 1_000)
        delete_stream(streams, "s")
        create_stream(streams, "s")
        write(stream_uri, "s", [b"new %d" % number for number in range(300)])
        until(lambda: len(seen) == 1_300)
    assert seen[1_000:] == [b"new %d" % number for number in range(300)]
    assert "event=data_lost" in caplog.text
    assert query_offset(streams, "n", "s") == 299


@pytest.mark.parametrize("start", ["first", "next"])
def test_a_stream_made_again_is_read_from_its_beginning_by_the_active_one(
    streams: Connection, stream_uri: str, uri: str, port: int, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    if not can(streams):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    made(streams, stream_uri, s=10)
    listed = [Stream("s", single_active=True, start=start)]
    seen: list[bytes] = []
    consumer = Consumer(uri, streams=listed, name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == 10 or query_offset(streams, "n", "s") == 9)  # it knows where to begin
        write(stream_uri, "s", numbers(100, 10))
        until(lambda: numbers(100, 10) == seen[-100:])
        seen.clear()
        delete_stream(streams, "s")
        create_stream(streams, "s")
        write(stream_uri, "s", [b"new %d" % number for number in range(300)])
        until(lambda: len(seen) >= 300)
    assert seen == [b"new %d" % number for number in range(300)]
    assert "event=data_lost" in caplog.text


@pytest.mark.parametrize("where", ["leash.streams.reader.to_arrow", "leash.consumer.stream_lane.Spare.add"])
def test_what_cannot_be_read_is_not_skipped(
    streams: Connection,
    stream_uri: str,
    uri: str,
    port: int,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(streams, stream_uri, s=300)
    module, _, name = where.rpartition(".")
    real = pkgutil.resolve_name(
        f"{module.replace('.Spare', ':Spare')}{'.' if 'Spare' in module else ':'}{name}"
    )
    calls: Counter[str] = Counter()

    def failing(*args: Any, **more: Any) -> Any:
        calls["all"] += 1
        if 2 <= calls["all"] <= 4:
            raise ChunkError("s", 100, "for the test")
        return real(*args, **more)

    monkeypatch.setattr(where, failing)
    seen: list[int] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(int(message.body)))
    with running(consumer):
        until(lambda: len(seen) >= 300)
        write(stream_uri, "s", numbers(3_000, 300))
        until(lambda: len(seen) >= 3_300)
    assert calls["all"] > 4
    assert seen == list(range(3_300))
    assert "event=cannot_consume" in caplog.text


def test_a_paused_stream_waits(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=2_000)
    seen: list[int] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        time.sleep(0.001)
        seen.append(int(message.body))

    with running(consumer):
        until(lambda: len(seen) > 100)
        consumer.pause("s")
        until(lambda: not consumer.stats().queues["s"].in_work)
        count = len(seen)
        time.sleep(0.2)
        assert len(seen) == count < 2_000
        consumer.resume("s")
        until(lambda: len(seen) >= 2_000)
    assert seen == list(range(2_000))


# --- streams that must not lose anything ---


def strict(uri: str, port: int, **arguments: Any) -> tuple[Consumer, list[bytes]]:
    listed = [Stream("s", fail_on_data_loss=True, **arguments), Stream("other")]
    consumer = Consumer(uri, streams=listed, name="n", stream_port=port)
    seen: list[bytes] = []

    @consumer.handler
    def work(message: Message) -> None:
        if message.queue == "s":
            seen.append(message.body)

    return consumer, seen


def test_a_strict_stream_that_retention_overtook_is_an_error(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, other=10)
    create_stream(streams, "s", {"max-length-bytes": "200000", "stream-max-segment-size-bytes": "50000"})
    write(stream_uri, "s", [b"%0500d" % number for number in range(5_000)], 100)
    until(lambda: first_kept(streams, "s") > 100)
    consumer, seen = strict(uri, port, start=100)
    with pytest.raises(DataLost, match=r"stream 's'.*expected offset 100"):
        consumer.run()
    assert not seen


@pytest.mark.parametrize("single_active", [False, True])
def test_a_strict_stream_that_is_made_again_is_an_error(
    streams: Connection, stream_uri: str, uri: str, port: int, single_active: bool
) -> None:
    if single_active and not can(streams):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    made(streams, stream_uri, s=1_000, other=10)
    consumer, seen = strict(uri, port, single_active=single_active)
    consumer.start()
    until(lambda: len(seen) == 1_000)
    until(lambda: consumer.stats().queues["other"].handled == 10)
    delete_stream(streams, "s")
    create_stream(streams, "s")
    write(stream_uri, "s", [b"new"] * 300)
    until(lambda: consumer.session.failed is not None)
    with pytest.raises(DataLost, match="made again"):
        consumer.stop()
    with pytest.raises(DataLost):  # whoever asks
        consumer.stop()
    assert seen == numbers(1_000)
    assert query_offset(streams, "n", "other") == 9  # it ended in good order
    assert query_offset(streams, "n", "s") is None  # nothing of the old stream in the new one
