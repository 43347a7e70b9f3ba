"""Where the streams of a test's virtual host are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leash.amqp.uri import parse
from leash.broker import Broker
from leash.streams import Connection, connect


@pytest.fixture
def place(uri: str, broker: Broker, coordinated: None) -> str:
    """The URL of its stream port."""
    return broker.stream_place(parse(uri).vhost).reveal()


@pytest.fixture
def link(place: str) -> Iterator[Connection]:
    """A connection to it."""
    with connect(place, name="tests") as opened:
        yield opened
