"""A publisher, and the queue `q`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leash import Publisher
from leash.amqp import Channel, topology


@pytest.fixture
def publisher(uri: str, channel: Channel) -> Iterator[Publisher]:
    topology.declare_queue(channel, "q")
    with Publisher(uri) as opened:
        yield opened
