"""Messages of a stream as handlers see them, whoever wrote them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from leash import Consumer, Message, Stream
from leash.amqp import Channel, Outgoing, Properties
from leash.amqp import Publisher as AmqpPublisher
from leash.amqp.uri import parse
from leash.errors import StreamUnsupported, TlsError
from leash.streams import (
    Connection,
    Publisher,
    create_stream,
    query_offset,
    sections,
)
from tests.conftest import Tls
from tests.consumer.kit import running, until
from tests.streams.kit import made, numbers


def test_properties_of_amqp_and_of_streams(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    create_stream(streams, "s")
    properties = Properties(
        message_id="m1",
        headers={"tenant": "gold", "n": 7},
        content_type="text/plain",
        delivery_mode=2,
        timestamp=datetime(2026, 1, 31, 8, tzinfo=UTC),
    )
    with AmqpPublisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"by amqp", "", "s", properties)])
    with Publisher(stream_uri, "s") as stream_publisher:
        own = sections({"message_id": "m2", "content_type": "a/b"}, {"tenant": "free", "n": 8})
        stream_publisher.publish([b"by stream"], sections=own)
        stream_publisher.publish([b"bare"])
    seen: list[Message] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(seen.append)
    with running(consumer):
        until(lambda: len(seen) == 3)
    first, second, third = seen
    assert (first.body, first.properties.message_id, first.routing_key) == (b"by amqp", "m1", "s")
    assert (first.headers["tenant"], first.headers["n"]) == ("gold", 7)
    assert first.properties.content_type == "text/plain"
    assert first.properties.timestamp == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert (second.properties.message_id, second.properties.content_type) == ("m2", "a/b")
    assert second.headers == {"tenant": "free", "n": 8}
    assert (third.body, third.headers, third.properties.message_id) == (b"bare", {}, None)
    assert third.age < 300


def test_sub_entries_and_large_messages(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    create_stream(streams, "s")
    large = [bytes([number]) * 1_000_000 for number in range(20)]
    with Publisher(stream_uri, "s") as publisher:
        publisher.publish(numbers(1_000), sub_entries=100, codec="gzip")
        for body in large:
            publisher.publish([body])
    seen: list[bytes] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port, buffer_bytes=4 << 20)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == 1_020)
    assert seen == numbers(1_000) + large


def test_an_async_handler(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=1_000)
    seen: list[int] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port, workers=4)

    @consumer.handler
    async def work(body: bytes) -> None:
        seen.append(int(body))

    with running(consumer):
        until(lambda: len(seen) == 1_000)
    assert sorted(seen) == list(range(1_000))


def test_filters(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    """Chunks without the filter values never come, and nothing waits for them."""
    create_stream(streams, "s")
    made(streams, stream_uri, other=20_000)
    consumer = Consumer(
        uri, streams=[Stream("s", filters=["emea"], unfiltered=True), "other"], name="n", stream_port=port
    )
    seen: Counter[str] = Counter()
    consumer.handler(
        lambda message: seen.update([message.body.decode() if message.queue == "s" else "other"])
    )
    if streams.version < (3, 13):
        with pytest.raises(StreamUnsupported, match=r"'s'.*filters need RabbitMQ 3\.13"):
            consumer.start()
        return

    def publish(times: int) -> None:
        with Publisher(stream_uri, "s") as publisher:
            for _ in range(times):
                for region in ("emea", "apac", "amer"):
                    publisher.publish([region.encode()] * 100, filters=[region] * 100)
                publisher.publish([b"none"] * 100)

    publish(5)
    with running(consumer):
        until(lambda: seen == {"emea": 500, "none": 500, "other": 20_000})
        assert consumer.session.engine.flow.lanes["s"].expired == 0
        publish(1)
        until(lambda: seen["emea"] == seen["none"] == 600)
    assert set(seen) == {"emea", "none", "other"}


def test_by_tls(streams: Connection, stream_uri: str, uri: str, tls: Tls) -> None:
    made(streams, stream_uri, s=1_000)
    place = replace(parse(uri), hosts=(("localhost", tls.port),), tls=True, cafile=str(tls.ca))
    consumer = Consumer(place, streams=["s"], name="n", stream_port=tls.stream_port)
    seen: list[bytes] = []
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == 1_000)
    assert seen == numbers(1_000)
    assert query_offset(streams, "n", "s") == 999
    refused = Consumer(
        replace(place, cafile=str(tls.other_ca)), streams=["s"], name="n", stream_port=tls.stream_port
    )
    refused.handler(lambda _: None)
    with pytest.raises(TlsError, match="certificate not accepted"):
        refused.start()
