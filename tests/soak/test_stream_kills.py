"""A million messages from streams to a stream; driver, task workers and brokers are killed at random, and the
leaders of streams move.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from leash.amqp.uri import parse
from leash.broker import Broker, Cluster
from tests.faults.kit import add_vhost
from tests.spark.streams.storm import SOURCES, crash, storm
from tests.streams.kit import move_leader

KILLS = int(os.environ.get("LEASH_SOAK_KILLS", "40"))
SEED = int(os.environ.get("LEASH_SOAK_SEED", "1"))
COUNT = int(os.environ.get("LEASH_SOAK_MESSAGES", "1000000"))
VHOST = "soak"

pytestmark = pytest.mark.soak


def victims(*kinds: str) -> list[str]:
    chance = random.Random(SEED)
    return [chance.choice(kinds) for _ in range(KILLS)]


def test_every_row_once_and_in_order_over_forty_random_kills(
    broker: Broker, uri: str, coordinated: None, tmp_path: Path
) -> None:
    place = broker.stream_place(parse(uri).vhost).reveal()
    killed = victims("driver", "worker", "worker", "broker")
    storm(place, {"broker": lambda: crash(broker)}, tmp_path, COUNT, COUNT // (3 * KILLS), killed, SEED)


def test_every_row_once_and_in_order_while_nodes_are_killed_and_leaders_move(
    coordinated_cluster: Cluster, tmp_path: Path
) -> None:
    cluster, chance = coordinated_cluster, random.Random(SEED)
    add_vhost(cluster, VHOST)
    place = cluster.stream_place(VHOST).reveal()

    def kill() -> None:
        crash(chance.choice(cluster.nodes))
        cluster.wait_joined()

    faults = {"node": kill, "leader": lambda: move_leader(cluster, VHOST, chance.choice([*SOURCES, "out"]))}
    killed = victims("driver", "worker", "node", "leader")
    storm(place, faults, tmp_path, COUNT, COUNT // (3 * KILLS), killed, SEED)
