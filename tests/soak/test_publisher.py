"""A million messages from eight threads, and the broker killed three times."""

from __future__ import annotations

import pytest

from leash.broker import Broker
from tests.consumer.kit import until
from tests.faults.publishing import Publishing

COUNT = 1_000_000


@pytest.mark.soak
def test_a_million_messages_and_three_kills(uri: str, broker: Broker) -> None:
    publishing = Publishing(uri, COUNT)
    publishing.run(broker, 3, COUNT, lambda condition: until(condition, 3600))
    publishing.check()
    assert len(publishing.confirmed) == COUNT
