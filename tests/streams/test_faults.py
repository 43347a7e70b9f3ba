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
    query_offset,
    query_sequence,
    store_offset,
)
from leash.streams import reader as reader_module
from leash.streams.offsets import Bounds, first_kept, last_chunk_id
from leash.streams.wire import Key
from tests.consumer.kit import until
from tests.streams.kit import everything

SMALL = {"max-length-bytes": "200000", "stream-max-segment-size-bytes": "50000"}


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%0100d" % number for number in range(start, stop)]


def test_a_broker_that_is_killed_while_reading(
    broker: Broker, stream_uri: str, streams: Connection, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", 100_000)  # so that not all has come before the kill
    with Publisher(stream_uri, stream) as publisher:
        for at in range(0, 20_000, 500):  # many chunks
            publisher.publish(numbers(at, at + 500))
    end = first_and_end(streams, stream).end
    found: list[bytes] = []
    hosts = set()
    with Reader(stream_uri, stream, end=end, batch_bytes=100_000) as reader:
        for batch in reader:
            if not found:
                broker.kill()
                broker.start()
            found += batch.column("value").to_pylist()
            hosts.add(reader.connection)
    assert len(hosts) == 2
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


def read(reader: Reader, count: int) -> list[bytes]:
    """The next messages; the broker may have put them into several chunks."""
    found: list[bytes] = []
    while len(found) < count:
        batch = reader.read(timeout=60)
        assert batch is not None
        found += batch.column("value").to_pylist()
    return found


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
        assert read(reader, 100) == numbers(0, 100)
        delete_stream(streams, stream)
        with pytest.raises(StreamMissing, match="does not exist"):
            reader.read(timeout=60)


def test_a_stream_that_is_made_again_is_another_one(
    stream_uri: str, streams: Connection, stream: str
) -> None:
    filled(stream_uri, stream, 0, 100)
    with Reader(stream_uri, stream) as reader:
        assert read(reader, 100) == numbers(0, 100)
        delete_stream(streams, stream)
        create_stream(streams, stream)
        filled(stream_uri, stream, 0, 300)
        with pytest.raises(StreamError, match="deleted and made again"):
            reader.read(timeout=60)


@pytest.mark.parametrize("count", [40, 300], ids=["shorter", "longer"])
def test_all_of_a_stream_that_was_made_again_is_read_if_losses_are_allowed(
    stream_uri: str, streams: Connection, stream: str, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    filled(stream_uri, stream, 0, 100)
    with Reader(stream_uri, stream, fail_on_data_loss=False) as reader:
        assert read(reader, 100) == numbers(0, 100)
        delete_stream(streams, stream)
        create_stream(streams, stream)
        with Publisher(stream_uri, stream) as publisher:
            publisher.publish(numbers(0, count))
        found = read(reader, count)
    assert found == numbers(0, count)
    assert f"event=data_lost stream={stream} expected=100 first=0" in caplog.text
    assert "deleted and made again" in caplog.text


def test_a_shorter_stream_that_was_made_again_is_an_error(
    stream_uri: str, streams: Connection, stream: str
) -> None:
    filled(stream_uri, stream, 0, 100)
    with Reader(stream_uri, stream) as reader:
        assert read(reader, 100) == numbers(0, 100)
        delete_stream(streams, stream)
        create_stream(streams, stream)
        with Publisher(stream_uri, stream) as publisher:
            publisher.publish([b"short"])
        with pytest.raises(DataLost, match="deleted and made again") as caught:
            reader.read(timeout=60)
    assert (caught.value.expected, caught.value.first) == (100, 0)


def test_a_stream_that_is_made_again_before_its_first_message_is_another_one(
    stream_uri: str, streams: Connection, stream: str
) -> None:
    filled(stream_uri, stream, 0, 100)
    with Reader(stream_uri, stream, 100) as reader:
        assert reader.read(timeout=0.1) is None  # nothing was read that could be compared
        delete_stream(streams, stream)
        create_stream(streams, stream)
        filled(stream_uri, stream, 0, 300)
        with pytest.raises(DataLost, match="deleted and made again") as caught:
            reader.read(timeout=60)
    assert (caught.value.expected, caught.value.first) == (100, 0)


def test_what_a_filter_left_out_may_be_deleted(
    stream_uri: str, streams: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not streams.can(Key.PUBLISH, 2):
        pytest.skip("filters need RabbitMQ 3.13")
    monkeypatch.setattr(reader_module, "_QUIET", 0.05)
    monkeypatch.setattr(reader_module, "_QUIET_MAX", 0.05)
    create_stream(streams, "small", SMALL)
    with (
        Publisher(stream_uri, "small") as publisher,
        Reader(stream_uri, "small", filters=["ours"]) as reader,
    ):
        publisher.publish([b"first"], filters=["ours"])
        assert read(reader, 1) == [b"first"]
        for _ in range(100):
            publisher.publish([bytes(1000)] * 10, filters=["other"] * 10)
        until(lambda: first_kept(streams, "small") > 100)
        for _ in range(3):  # the reader sees that there is nothing for it
            assert reader.read(timeout=0.3) is None
        publisher.publish([b"second"], filters=["ours"])
        assert read(reader, 1) == [b"second"]


def test_an_offset_that_is_not_there_and_does_not_come_is_an_error(
    stream_uri: str, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_QUIET", 0.05)
    filled(stream_uri, stream, 0, 100)
    with Reader(stream_uri, stream, 500, patience=1) as reader:
        with pytest.raises(DataLost, match="ends before the offset that comes next") as caught:
            reader.read(timeout=60)
    assert (caught.value.expected, caught.value.first) == (500, 0)


def test_a_leader_that_shows_nothing_yet_is_not_taken_for_a_loss(
    stream_uri: str, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader, and with it every replica, has nothing to read until it knows what is replicated."""
    monkeypatch.setattr(reader_module, "_QUIET", 0.05)
    filled(stream_uri, stream, 0, 100)
    looks: list[Connection] = []
    replicated = threading.Event()

    def shown(connection: Connection, name: str) -> Bounds:
        looks.append(connection)
        return first_and_end(connection, name) if replicated.is_set() else Bounds(0, 0, None)

    monkeypatch.setattr(reader_module, "first_and_end", shown)
    with Reader(stream_uri, stream, 500, patience=0) as reader:
        while len(looks) < 6:
            assert reader.read(timeout=0.1) is None
        replicated.set()
        with pytest.raises(DataLost, match="ends before the offset that comes next"):
            reader.read(timeout=60)
    assert len(set(looks)) > 1  # the leader was asked


def test_an_idle_reader_costs_next_to_nothing(
    stream_uri: str, streams: Connection, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not streams.can(Key.STREAM_STATS):
        pytest.skip("RabbitMQ 3.10 cannot say where a stream ends without its last chunk")
    looks: list[int] = []

    def counted(connection: Connection, name: str) -> int:
        looks.append(connection.received)
        return last_chunk_id(connection, name)

    monkeypatch.setattr(reader_module, "last_chunk_id", counted)
    monkeypatch.setattr(reader_module, "_QUIET", 0.01)
    monkeypatch.setattr(reader_module, "_QUIET_MAX", 0.01)
    with Publisher(stream_uri, stream) as publisher:
        publisher.publish([bytes(500_000)])
    with Reader(stream_uri, stream) as reader:
        assert reader.read(timeout=60).num_rows == 1
        while len(looks) < 5:
            assert reader.read(timeout=0.01) is None
        assert looks[-1] - looks[0] < 2000
        store_offset(streams, "somebody", stream, 1)  # which is a chunk, too
        assert query_offset(streams, "somebody", stream) == 1
        before = len(looks)
        while len(looks) < before + 10:
            assert reader.read(timeout=0.01) is None
        assert looks[-1] - looks[before + 5] < 2000


def test_what_was_not_confirmed_is_sent_again_though_the_leader_has_it(
    broker: Broker, stream_uri: str, streams: Connection, stream: str
) -> None:
    """The leader may have it alone, and be lost."""
    with Publisher(stream_uri, stream, reference="me", timeout=60) as publisher:
        publisher.publish(numbers(0, 10))
        sent = publisher.connection
        sent.remove_publisher(0)  # the confirms of what comes now are not heard
        publisher.send(numbers(10, 20))
        until(lambda: query_sequence(streams, "me", stream) == 20)
        sent.abort()
        publisher.wait()
        assert publisher.connection is not sent
    assert everything(stream_uri, stream, streams) == numbers(0, 20)
