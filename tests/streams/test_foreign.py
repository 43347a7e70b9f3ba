"""Streams that other clients wrote."""

from __future__ import annotations

import asyncio

import pytest

from leash.amqp import Outgoing, Properties, Publisher, connect, decode_properties
from leash.amqp.uri import parse
from leash.streams import Connection, Reader, decode, first_and_end
from tests.streams.kit import everything


def test_written_by_amqp_0_9_1(uri: str, stream_uri: str, streams: Connection, stream: str) -> None:
    bodies = [b"x" * (n % 300) for n in range(3000)]
    properties = Properties(content_type="text/plain", message_id="m", headers={"k": "v"})
    with connect(uri) as connection, Publisher(connection) as publisher:
        publisher.publish(Outgoing(body, "", stream, properties) for body in bodies)
    assert everything(stream_uri, stream, streams) == bodies
    with Reader(stream_uri, stream, 5, end=6, columns=["message"]) as reader:
        (batch,) = list(reader)
    message = decode(batch.column("message")[0].as_py())
    assert message.body == bodies[5]
    assert message.properties["message_id"] == "m"
    assert message.properties["content_type"] == "text/plain"
    assert message.application_properties["k"] == "v"


def test_written_by_rstream(stream_uri: str, streams: Connection, stream: str) -> None:
    import rstream

    place = parse(stream_uri.replace("rabbitmq-stream", "amqp"))
    plain = [b"raw %d" % n for n in range(50)]
    wrapped = [b"wrapped %d" % n for n in range(50)]
    packed = [b"packed %d" % n for n in range(50)]

    async def write() -> None:
        host, port = place.hosts[0]
        async with rstream.Producer(
            host, port=port, username=place.username, password=place.password, vhost=place.vhost
        ) as producer:
            for body in plain:
                await producer.send_wait(stream, body)
            messages = [rstream.AMQPMessage(body=body, application_properties={"k": "v"}) for body in wrapped]
            for message in messages:
                await producer.send_wait(stream, message)
            batch = [rstream.AMQPMessage(body=body) for body in packed]
            await producer.send_sub_entry(
                stream, compression_type=rstream.CompressionType.Gzip, sub_entry_messages=batch
            )

    asyncio.run(write())
    expected = plain + wrapped + packed
    with Reader(stream_uri, stream) as reader:
        found: list[bytes] = []
        while len(found) < len(expected):
            batch = reader.read(timeout=60)
            assert batch is not None
            found += batch.column("value").to_pylist()
    assert found == expected
    assert first_and_end(streams, stream).end == len(expected)


def test_written_by_amqp_1_0(uri: str, stream_uri: str, streams: Connection, stream: str) -> None:
    if streams.version < (4, 0):
        pytest.skip("AMQP 1.0 is a plugin before RabbitMQ 4.0")
    proton = pytest.importorskip("proton")
    from proton.utils import BlockingConnection

    place = parse(uri)
    host, port = place.hosts[0]
    opened = BlockingConnection(
        f"amqp://{host}:{port}",
        user=place.username,
        password=place.password,
        virtual_host=f"vhost:{place.vhost}",
        allowed_mechs="PLAIN",
    )
    try:
        sender = opened.create_sender(f"/queues/{stream}")
        sender.send(proton.Message(body=b"binary data", inferred=True, id="one", subject="s"))
        sender.send(proton.Message(body=b"binary value"))
        sender.send(proton.Message(body="text value", properties={"n": 1}))
    finally:
        opened.close()
    assert everything(stream_uri, stream, streams) == [b"binary data", b"binary value", b"text value"]


def test_read_by_amqp_0_9_1(uri: str, stream_uri: str, streams: Connection, stream: str) -> None:
    """What we write is a message to everybody else, too."""
    from leash.streams import Publisher as StreamPublisher
    from leash.streams import sections

    with StreamPublisher(stream_uri, stream) as publisher:
        publisher.publish([b"hello"], sections=sections({"message_id": "m"}, {"k": "v"}))
    with connect(uri) as connection:
        channel = connection.channel()
        channel.qos(10)
        channel.consume(stream, arguments={"x-stream-offset": "first"})
        came = channel.deliveries(60)
        assert came is not None
        assert list(came.bodies) == [b"hello"]
        properties = decode_properties(came.properties[0])
        assert properties.message_id == "m"
        assert (properties.headers or {})["k"] == "v"
