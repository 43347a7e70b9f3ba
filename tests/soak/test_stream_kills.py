"""A million messages from streams to a stream; driver, task workers and broker are killed at random."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from leash.amqp.uri import parse
from leash.broker import Broker
from tests.spark.streams.storm import storm

KILLS = int(os.environ.get("LEASH_SOAK_KILLS", "40"))
SEED = int(os.environ.get("LEASH_SOAK_SEED", "1"))
COUNT = int(os.environ.get("LEASH_SOAK_MESSAGES", "1000000"))

pytestmark = pytest.mark.soak


def test_every_row_once_and_in_order_over_forty_random_kills(
    broker: Broker, uri: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    victims = [chance.choice(["driver", "worker", "worker", "broker"]) for _ in range(KILLS)]
    place = broker.stream_place(parse(uri).vhost).reveal()
    storm(place, broker, tmp_path, COUNT, COUNT // (3 * KILLS), victims, SEED)
