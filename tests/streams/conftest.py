"""A stream of its own for each test, in a virtual host of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leash.amqp.uri import parse as parse_amqp
from leash.broker import Broker
from leash.streams import Connection, connect, create_stream

STREAM = "s"


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


@pytest.fixture
def port(broker: Broker) -> int:
    """The stream port."""
    return broker.port("stream")
