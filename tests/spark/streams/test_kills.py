"""A short storm; tests/soak has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from leash.broker import Broker

from .storm import crash, storm


@pytest.mark.spark
def test_every_row_once_and_in_order_while_driver_worker_and_broker_are_killed(
    place: str, broker: Broker, tmp_path: Path
) -> None:
    faults = {"broker": lambda: crash(broker)}
    storm(place, faults, tmp_path, 60_000, 3_000, ["worker", "broker", "driver"], seed=1)
