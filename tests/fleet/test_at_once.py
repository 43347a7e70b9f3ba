"""So many at work and no more, over several processes, through kills; and no permit is lost for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leash.amqp import connect
from leash.fleet.budgets import lifecycle
from leash.fleet.budgets.state_at_broker import ready, wheel_queue
from tests.fleet.kit import Fleet, most_at_once, publish
from tests.waiting import until

AT_ONCE = 5


@pytest.fixture
def fleet(uri: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(uri, tmp_path / "ledger", f"at_once={AT_ONCE}")
    yield made
    made.end()


def test_never_one_too_many_at_work_through_kills_and_none_is_lost(fleet: Fleet) -> None:
    publish(fleet.uri, "work", 500)
    for _ in range(3):
        fleet.start("work", workers=3, seconds=0.05)
    fleet.wait_for(20)
    for _ in range(4):
        seen = len(fleet.starts())
        fleet.kill()
        fleet.start("work", workers=3, seconds=0.05)
        fleet.wait_for(seen + 20)
    rows = fleet.rows()
    for process in list(fleet.processes):
        fleet.kill(process)
    assert most_at_once(rows, fleet.dead) == AT_ONCE
    with connect(fleet.uri) as connection:
        card = lifecycle.find(connection, "sms")
        assert card is not None
        wheel = wheel_queue("sms", card.generation)
        until(lambda: ready(connection, wheel) == AT_ONCE, what="a permit is lost")
