"""A stream of its own for each test, in a virtual host of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leash.amqp.uri import parse as parse_amqp
from leash.broker import Broker
from leash.streams import Connection, connect, create_stream
from tests.consumer.kit import until

STREAM = "s"


@pytest.fixture(scope="session")
def coordinated(broker: Broker) -> None:
    """A node that is killed within a second of the first stream it ever had forgets that it coordinates
    streams, and has none of them for good: RabbitMQ writes that name to its disk later than all else.
    """
    with connect(broker.stream_uri) as opened:
        create_stream(opened, "the first one")

    def written() -> bool:
        return any(b"rabbit_stream_coordinator" in f.read_bytes() for f in broker.folder.rglob("names.dets"))

    until(written, 60, "the stream coordinator is not on disk")


@pytest.fixture
def stream_uri(uri: str, broker: Broker, coordinated: None) -> str:
    """The stream port of the test's virtual host."""
    return broker.stream_place(parse_amqp(uri).vhost).reveal()


@pytest.fixture
def streams(stream_uri: str) -> Iterator[Connection]:
    """A connection to it."""
    with connect(stream_uri, name="tests") as opened:
        yield opened


@pytest.fixture
def stream(streams: Connection) -> str:
    """The name of an empty stream."""
    create_stream(streams, STREAM)
    return STREAM
