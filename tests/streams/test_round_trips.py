"""Written and read again, on a real broker."""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from leash.errors import ConfigError, StreamExists, StreamMissing, StreamUnsupported
from leash.streams import (
    Connection,
    Publisher,
    Reader,
    Subscription,
    connect,
    create_stream,
    create_super_stream,
    delete_stream,
    delete_super_stream,
    first_and_end,
    partition_of,
    partitions,
    query_offset,
    query_sequence,
    route,
    single_active,
    store_offset,
    wire,
)
from leash.streams.compression import CODECS
from leash.streams.wire import Key
from tests.consumer.kit import until
from tests.streams.kit import everything


def odd_sizes(count: int) -> list[bytes]:
    chosen = random.Random(5)
    return [chosen.randbytes(chosen.choice([0, 1, 2, 99, 255, 256, 257, 5000])) for _ in range(count)]


def test_odd_sizes(stream_uri: str, streams: Connection, stream: str) -> None:
    bodies = odd_sizes(20_000)
    with Publisher(stream_uri, stream) as publisher:
        assert publisher.publish(bodies) == 20_000
        assert publisher.publish(pa.chunked_array([["text", "ü"], ["three"]])) == 3
    assert everything(stream_uri, stream, streams) == [*bodies, b"text", "ü".encode(), b"three"]


def test_an_empty_stream_has_nothing(stream_uri: str, streams: Connection, stream: str) -> None:
    assert first_and_end(streams, stream)[:2] == (0, 0)
    assert everything(stream_uri, stream, streams) == []
    with Reader(stream_uri, stream) as reader:
        assert reader.read(timeout=0.2) is None
        with Publisher(stream_uri, stream) as publisher:
            publisher.publish([b"now"])
        assert reader.read(timeout=60).column("value").to_pylist() == [b"now"]
    bounds = first_and_end(streams, stream)
    assert bounds[:2] == (0, 1)
    assert bounds.last is not None


def test_messages_of_a_megabyte(stream_uri: str, streams: Connection, stream: str) -> None:
    bodies = [random.Random(n).randbytes(1_000_000) for n in range(5)]
    with Publisher(stream_uri, stream) as publisher:
        publisher.publish(bodies)
        with pytest.raises(ConfigError, match=r"1048\d\d\d bytes with id 7.*frame_max is 1048576"):
            publisher.publish([b"small", bytes(1 << 20)])
        publisher.publish([b"and on it goes"])
    assert everything(stream_uri, stream, streams) == [*bodies, b"and on it goes"]


@pytest.mark.parametrize("codec", CODECS)
def test_sub_entries(stream_uri: str, streams: Connection, stream: str, codec: str) -> None:
    bodies = odd_sizes(2000)
    with Publisher(stream_uri, stream) as publisher:
        publisher.publish(bodies, sub_entries=100, codec=codec)
        publisher.publish([b"plain"])
    assert everything(stream_uri, stream, streams) == [*bodies, b"plain"]
    with Reader(stream_uri, stream, 150, end=160) as reader:
        (batch,) = list(reader)
    assert batch.column("offset").to_pylist() == list(range(150, 160))
    assert batch.column("value").to_pylist() == bodies[150:160]


def test_filters(stream_uri: str, streams: Connection, stream: str) -> None:
    with Publisher(stream_uri, stream) as publisher:
        if not streams.can(Key.PUBLISH, 2):
            with pytest.raises(StreamUnsupported, match=r"filters need RabbitMQ 3\.13"):
                publisher.publish([b"x"], filters=["a"])
            with pytest.raises(StreamUnsupported, match=r"filters need RabbitMQ 3\.13"):
                Reader(stream_uri, stream, filters=["a"]).read(timeout=1)
            return
        bodies: dict[str | None, list[bytes]] = {}
        for turn, name in enumerate(
            ("emea", "apac", None, "emea", "amer")
        ):  # each is waited for: a chunk each
            column = [b"%d of %d" % (n, turn) for n in range(50)]
            publisher.publish(column, filters=[name] * 50)
            bodies[name] = bodies.get(name, []) + column
    end = first_and_end(streams, stream).end
    cases: list[tuple[tuple[str, ...], bool, list[bytes]]] = [
        (("emea",), False, bodies["emea"]),
        (("apac", "amer"), False, bodies["apac"] + bodies["amer"]),
        (("apac",), True, bodies["apac"] + bodies[None]),
    ]
    for filters, unfiltered, expected in cases:
        with Reader(stream_uri, stream, end=end, filters=filters, unfiltered=unfiltered) as reader:
            assert [value for batch in reader for value in batch.column("value").to_pylist()] == expected
        assert reader.done  # though the last chunk may not have come


def test_where_to_begin(stream_uri: str, streams: Connection, stream: str) -> None:
    def first_of(start: Any) -> Any:
        with Reader(stream_uri, stream, start) as reader:
            return reader.read(timeout=60).column("offset")[0].as_py()

    with Publisher(stream_uri, stream) as publisher:
        publisher.publish([b"a"] * 100)
        last = first_and_end(streams, stream).last
        assert last is not None
        until(lambda: time.time() * 1000 > last.timestamp + 2)  # so that the second chunk has another time
        between = datetime.fromtimestamp(last.timestamp / 1000 + 0.001, UTC)
        publisher.publish([b"b"] * 100)
        assert first_of("first") == 0
        assert first_of(42) == 42
        assert first_of("last") >= 100
        assert first_of(between) >= 100
        assert first_of(timedelta(hours=1)) == first_of("1h") == 0
        with Reader(stream_uri, stream, "next") as reader:
            assert reader.next == 200
            publisher.publish([b"c"])
            assert reader.read(timeout=60).column("offset").to_pylist() == [200]


def test_deduplication(stream_uri: str, streams: Connection, stream: str) -> None:
    bodies = [b"%d" % n for n in range(1000)]
    with Publisher(stream_uri, stream, reference="me") as publisher:
        assert publisher.last_id == 0
        publisher.publish(bodies[:700])
    with Publisher(stream_uri, stream, reference="me") as publisher:
        assert publisher.last_id == 700
        publisher.publish(bodies, ids=range(1, 1001))
        publisher.publish([b"late"], ids=[5])
        for wrong in ([2, 1], [1, 1], [0, 1]):
            with pytest.raises(ConfigError, match="rising, from 1 on"):
                publisher.publish([b"x", b"y"], ids=wrong)
    assert everything(stream_uri, stream, streams) == bodies
    assert query_sequence(streams, "me", stream) == 1000
    assert query_sequence(streams, "nobody", stream) == 0


def test_references_of_256_bytes_never_reach_the_broker(
    stream_uri: str, streams: Connection, stream: str
) -> None:
    for use in (
        lambda: Publisher(stream_uri, stream, reference="x" * 256),
        lambda: store_offset(streams, "x" * 256, stream, 1),
        lambda: query_offset(streams, "x" * 256, stream),
        lambda: single_active("x" * 256),
    ):
        with pytest.raises(ConfigError, match="from 1 to 255 bytes"):
            use()


def test_stored_offsets(stream_uri: str, streams: Connection, stream: str) -> None:
    with Publisher(stream_uri, stream) as publisher:
        publisher.publish([b"a"] * 10)
    assert query_offset(streams, "billing", stream) is None
    store_offset(streams, "billing", stream, 7)
    deadline = time.monotonic() + 60
    while query_offset(streams, "billing", stream) != 7:
        assert time.monotonic() < deadline
    bounds = first_and_end(streams, stream)
    assert bounds.end == 10  # though there is something at 10 by now
    with Publisher(stream_uri, stream) as publisher:
        publisher.publish([b"b"] * 10)
    with Reader(stream_uri, stream, end=first_and_end(streams, stream).end) as reader:
        offsets = [each for batch in reader for each in batch.column("offset").to_pylist()]
    assert len(offsets) == 20
    assert offsets[-1] > 19  # the gap is no loss


def test_streams_are_made_and_deleted(streams: Connection) -> None:
    assert create_stream(streams, "x", {"max-length-bytes": "1000000"})
    assert not create_stream(streams, "x", {"max-length-bytes": "1000000"})
    with pytest.raises(StreamExists):
        create_stream(streams, "x", {"max-length-bytes": "2000000"})
    assert delete_stream(streams, "x")
    assert not delete_stream(streams, "x")
    with pytest.raises(StreamMissing, match="stream 'x': does not exist"):
        first_and_end(streams, "x")
    with pytest.raises(StreamMissing):
        Reader(str(streams.uri.reveal()), "x").read(timeout=1)
    with pytest.raises(StreamMissing):
        Publisher(str(streams.uri.reveal()), "x")


def test_super_streams(stream_uri: str, uri: str, streams: Connection) -> None:
    assert create_super_stream(streams, "orders", 3, amqp=uri)
    assert not create_super_stream(streams, "orders", 3, amqp=uri)
    names = partitions(streams, "orders")
    assert names == ["orders-0", "orders-1", "orders-2"]
    assert route(streams, "orders", "1") == ["orders-1"]
    assert route(streams, "orders", "no such key") == []
    keys = [f"hello{n}" for n in range(1, 11)]
    places = partition_of(keys, len(names))
    for number, name in enumerate(names):
        with Publisher(stream_uri, name) as publisher:
            publisher.publish([key.encode() for key, at in zip(keys, places, strict=True) if at == number])
    assert everything(stream_uri, "orders-0", streams) == [b"hello2", b"hello5", b"hello7", b"hello9"]
    with pytest.raises(StreamMissing):
        partitions(streams, "no-orders")
    assert delete_super_stream(streams, "orders", amqp=uri)
    with pytest.raises(StreamMissing):
        partitions(streams, "orders")


def test_one_of_two_consumers_is_active(stream_uri: str, streams: Connection, stream: str) -> None:
    if not streams.can(Key.STREAM_STATS):
        with pytest.raises(StreamUnsupported, match=r"needs RabbitMQ 3\.11"):
            Subscription(streams, stream, wire.FIRST, properties=single_active("billing"))
        return
    with Publisher(stream_uri, stream) as publisher:
        publisher.publish([b"a"] * 10)
    activated = [threading.Event(), threading.Event()]

    def consume(connection: Connection, number: int, start: int) -> Subscription:
        def chosen(active: bool) -> wire.Offset:
            if active:
                activated[number].set()
            return wire.at_offset(start)

        return Subscription(
            connection, stream, wire.NEXT, properties=single_active("billing"), activated=chosen
        )

    with connect(stream_uri) as first, connect(stream_uri) as second:
        one = consume(first, 0, 0)
        assert activated[0].wait(60)
        assert one.take(60)[0].first == 0
        two = consume(second, 1, 5)
        assert two.take(0.3) == []
        assert not two.active
        first.abort()
        assert activated[1].wait(60)
        chunk = two.take(60)[0]
        assert chunk.first <= 5 < chunk.end  # whole: what is before 5 is to be skipped
