"""The worlds that a consumer is tried in: a real broker, and the one in memory."""

from __future__ import annotations

import pytest

from leash.amqp import Channel
from tests.consumer.worlds import Live, Memory, World


@pytest.fixture(params=[pytest.param("broker", marks=pytest.mark.broker), "memory"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return Memory()
    channel: Channel = request.getfixturevalue("channel")
    return Live(channel, request.getfixturevalue("uri"))
