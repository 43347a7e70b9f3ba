"""The bound, over several processes that are killed, stopped and cut off, at the starts of their handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.kit import Fleet, excess, publish

RATE, BURST, LEASE = 200, 40, 0.1


@pytest.fixture
def fleet(uri: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(uri, tmp_path / "ledger", f"rate={RATE}", f"burst={BURST}")
    yield made
    made.end()


def test_no_interval_has_more_starts_than_the_budget_allows_through_kills(fleet: Fleet) -> None:
    publish(fleet.uri, "work", 2000)
    for _ in range(3):
        fleet.start("work")
    fleet.wait_for(BURST + 20)
    for _ in range(4):
        seen = len(fleet.starts())
        fleet.kill()
        fleet.start("work")
        fleet.wait_for(seen + 30)
    assert excess(fleet.starts(), RATE, BURST, LEASE) <= 0


def test_a_process_that_was_stopped_starts_nothing_with_the_permits_it_had(fleet: Fleet) -> None:
    publish(fleet.uri, "work", 2000)
    for _ in range(3):
        fleet.start("work")
    fleet.wait_for(BURST + 20)
    for seconds in (0.3, 1.0, 0.6):
        seen = len(fleet.starts())
        fleet.stop_and_continue(seconds)
        fleet.wait_for(seen + 30)
    assert excess(fleet.starts(), RATE, BURST, LEASE) <= 0


def test_a_broker_that_crashes_gives_nobody_more(fleet: Fleet, broker: object) -> None:
    publish(fleet.uri, "work", 2000, lasting=True)
    for _ in range(2):
        fleet.start("work")
    fleet.wait_for(BURST + 40)
    seen = len(fleet.starts())
    broker.kill()  # type: ignore[attr-defined]
    broker.start()  # type: ignore[attr-defined]
    fleet.wait_for(seen + 2 * BURST)
    assert excess(fleet.starts(), RATE, BURST, LEASE) <= 0
