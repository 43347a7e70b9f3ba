"""A private RabbitMQ node or cluster, for the demo, the lab, tests and experiments.

The law: nothing of it can be reached from outside this machine, and nothing is left behind. Every listener,
the distribution ports and epmd bind to loopback; the password is random and set before the first start, so
that guest never exists; `stop` ends every process, and so does a watchdog when the owner is killed.
"""

from __future__ import annotations

import os
from pathlib import Path

from leash.broker.base import Private
from leash.broker.cluster import Cluster
from leash.broker.files import PLUGINS
from leash.broker.node import Broker

__all__ = ["PLUGINS", "Broker", "Cluster", "Private", "at", "default_folder", "own_uri"]


def at(folder: Path | str) -> Private:
    """The cluster or node that is kept in a folder."""
    cluster = Cluster(folder)
    return cluster if cluster.exists else Broker(folder)


def default_folder() -> Path:
    """Where `leash broker` keeps its node or cluster: the user's state folder."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "leash" / "broker"


def own_uri() -> str | None:
    """LEASH_URI: the user's own broker, which everything then uses instead of a private node."""
    return os.environ.get("LEASH_URI") or None
