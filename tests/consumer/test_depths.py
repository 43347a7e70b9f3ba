"""A queue that does not answer is left alone, and holds up no look at another one."""

from __future__ import annotations

import pytest

from leash.amqp import Channel, connect
from leash.consumer import depths as looks
from leash.consumer.depths import Looks
from leash.consumer.engine import Engine
from leash.flow import Flow
from leash.flow.lane import Lane
from leash.lab.proxy import slow
from tests.consumer.kit import fill, until


def test_a_queue_that_does_not_answer_is_asked_again_when_it_has(
    channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(channel, "late", 3)
    fill(channel, "quick", 4)
    engine = Engine(Flow([Lane("late"), Lane("quick")]), None)
    engine.links = dict.fromkeys(["late", "quick"])  # type: ignore[assignment]
    lanes = engine.flow.lanes
    proxy, far = slow(uri, 0.0)
    with proxy, connect(far) as connection:
        looking = Looks(engine)
        looking.connected(connection)
        looking.at(["quick"])
        monkeypatch.setattr(looks, "LATER", 0.001)
        proxy.delay = 3.0
        looking.at(["late"])  # comes back without an answer
        assert lanes["late"].depth is None
        proxy.delay = 0.0
        monkeypatch.setattr(looks, "LATER", 10.0)

        def answered() -> bool:
            looking.at(["late"])
            return lanes["late"].depth == 3

        until(answered)
