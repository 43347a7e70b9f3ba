"""The promise with the broker killed: what is confirmed is there, and only what was resent is there twice."""

from __future__ import annotations

import pytest

from leash.broker import Broker
from leash.errors import InDoubt
from tests.consumer.kit import until
from tests.faults.publishing import Publishing

COUNT = 4_000


def patiently(condition: object) -> None:
    until(condition, 300)  # type: ignore[arg-type]


@pytest.mark.parametrize("resend", [True, False])
def test_confirmed_messages_survive_three_kills_of_the_broker(uri: str, broker: Broker, resend: bool) -> None:
    publishing = Publishing(uri, COUNT, resend)
    publishing.run(broker, 3, COUNT, patiently)
    found = publishing.check()
    if resend:
        assert len(publishing.confirmed) == COUNT
    else:
        assert all(isinstance(error, InDoubt) for error in publishing.failed.values())
        assert len(publishing.confirmed) + len(publishing.failed) == COUNT
        assert set(found.values()) == {1}
