"""Kills, retention, and streams that are deleted: every message once, or an error that says what is gone."""

from __future__ import annotations

import threading

import pytest

from leash.broker import Broker
from leash.errors import DataLost, PublishError, StreamError, StreamMissing
from leash.streams import (
    Connection,
    Publisher,
    Reader,
    connect,
    create_stream,
    delete_stream,
    first_and_end,
)
from tests.streams.kit import everything

SMALL = {"max-length-bytes": "200000", "stream-max-segment-size-bytes": "50000"}


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%0100d" % number for number in range(start, stop)]


def test_a_broker_that_is_killed_while_reading(
    broker: Broker, stream_uri: str, streams: Connection, stream: str
) -> None:
    with Publisher(stream_uri, stream) as publisher:
        for at in range(0, 20_000, 500):  # many chunks
            publisher.publish(numbers(at, at + 500))
    end = first_and_end(streams, stream).end
    found: list[bytes] = []
    with Reader(stream_uri, stream, end=end, batch_bytes=200_000) as reader:
        for batch in reader:
            found += batch.column("value").to_pylist()
            if len(found) in range(5000, 7000) and broker.running and reader.next is not None:
                broker.kill()
                broker.start()
    assert found == numbers(0, 20_000)


def test_a_broker_that_is_killed_while_publishing(broker: Broker, stream_uri: str, stream: str) -> None:
    killed = threading.Event()

    def kill() -> None:
        broker.kill()
        broker.start()
        killed.set()

    with Publisher(stream_uri, stream, reference="me", in_flight=2000, timeout=120) as publisher:
        publisher.publish(numbers(0, 1000))
        killer = threading.Thread(target=kill)
        killer.start()
        at = 1000
        while not killed.is_set() or at < 10_000:  # all the time that it is down
            publisher.send(numbers(at, at + 500))
            at += 500
        publisher.wait()
        killer.join()
    with connect(stream_uri) as again:
        assert everything(stream_uri, stream, again) == numbers(0, at)


def test_without_a_reference_a_loss_is_an_error(broker: Broker, stream_uri: str, stream: str) -> None:
    with Publisher(stream_uri, stream, timeout=60) as publisher:
        publisher.publish(numbers(0, 10))
        broker.pause()
        try:
            publisher.send(numbers(10, 20))
            publisher.connection.abort()
        finally:
            broker.resume()
        with pytest.raises(PublishError, match="10 entries were not confirmed"):
            publisher.wait()


def filled(uri: str, stream: str, start: int, stop: int) -> None:
    with Publisher(uri, stream, reference="filler") as publisher:
        for at in range(start, stop, 100):
            publisher.publish(numbers(at, at + 100))


def test_a_truncated_start_is_an_error(stream_uri: str, streams: Connection) -> None:
    create_stream(streams, "small", SMALL)
    filled(stream_uri, "small", 0, 20_000)
    first = first_and_end(streams, "small").first
    assert first > 100
    with Reader(stream_uri, "small", 100) as reader, pytest.raises(DataLost) as caught:
        reader.read(timeout=60)
    assert (caught.value.stream, caught.value.expected) == ("small", 100)
    assert caught.value.first <= first
    assert "stream 'small'" in str(caught.value)
    assert "expected offset 100" in str(caught.value)
    with Reader(stream_uri, "small", 100, fail_on_data_loss=False) as reader:
        batch = reader.read(timeout=60)
    assert batch.column("offset")[0].as_py() >= first


def test_a_reader_that_retention_overtakes(stream_uri: str, streams: Connection) -> None:
    create_stream(streams, "small", SMALL)
    filled(stream_uri, "small", 0, 500)
    with Reader(stream_uri, "small", batch_bytes=1) as reader:
        assert reader.read(timeout=60) is not None
        filled(stream_uri, "small", 500, 30_000)
        with pytest.raises(DataLost) as caught:
            for _ in reader:
                pass
    assert caught.value.expected < caught.value.first


def test_a_stream_that_is_deleted_ends_its_reader(stream_uri: str, streams: Connection, stream: str) -> None:
    filled(stream_uri, stream, 0, 100)
    with Reader(stream_uri, stream) as reader:
        assert reader.read(timeout=60).num_rows == 100
        delete_stream(streams, stream)
        with pytest.raises(StreamMissing, match="does not exist"):
            reader.read(timeout=60)


def test_a_stream_that_is_made_again_is_another_one(
    stream_uri: str, streams: Connection, stream: str
) -> None:
    filled(stream_uri, stream, 0, 100)
    with Reader(stream_uri, stream) as reader:
        assert reader.read(timeout=60).num_rows == 100
        delete_stream(streams, stream)
        create_stream(streams, stream)
        filled(stream_uri, stream, 0, 300)
        with pytest.raises(StreamError, match="deleted and made again"):
            reader.read(timeout=60)
