"""What the demo puts into its queues, the limits that it sets, and the broker that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from leash.amqp import connect
from leash.amqp.topology import delete_queue
from leash.amqp.wire import Outgoing
from leash.errors import LeashError
from leash.management import Management


def _quanta() -> dict[str, int]:
    return {f"p{i}": 4 * (i + 1) for i in range(10)}


@dataclass(frozen=True)
class Load:
    """The queues are equally full, so that only the consumer makes the shares."""

    quanta: dict[str, int] = field(default_factory=_quanta)
    fill: int = 7_000
    """Messages in each queue."""
    rounds: int = 130
    """It ends after this many; every queue still has messages then."""
    batch_rounds: int = 40
    rate: int = 2_000
    burst: int = 4_000

    @property
    def round(self) -> int:
        return sum(self.quanta.values())

    @property
    def enough(self) -> int:
        return self.rounds * self.round

    def target(self, queue: str) -> float:
        """The share that a queue should get."""
        return self.quanta[queue] / self.round


class Place(NamedTuple):
    """A broker; its URIs hold the password."""

    uri: str
    stream_port: int | None
    """None: it has no streams."""
    version: str
    shown: str = "LEASH_URI's"
    """For people, without a password."""


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """A virtual host on LEASH_URI's broker, or a node that is deleted afterwards."""
    from leash.broker import Broker, beside, own_uri
    from leash.lab import live

    own = own_uri()
    if own:
        management = beside(own) or Management.beside(own)
        with live.place(own, management) as uri:
            yield _known(uri, management)
        return
    with Broker(folder, owned=True) as node:
        yield _known(node.uri, node.management)._replace(shown="a private node")


def _known(uri: str, management: Management) -> Place:
    told = management.ask("GET", "/api/overview")
    ports = [each["port"] for each in told.get("listeners", ()) if each["protocol"] == "stream"]
    return Place(uri, ports[0] if ports else None, str(told.get("rabbitmq_version", "unknown")))


def fill(uri: str, load: Load) -> None:
    """Fresh queues, all equally full."""
    from leash.lab.live import fill

    with connect(uri, name="leash demo") as connection, connection.channel() as channel:
        for name in load.quanta:
            delete_queue(channel, name)
    fill(uri, {name: _messages(name, load.fill) for name in load.quanta})


def _messages(queue: str, count: int) -> Iterator[Outgoing]:
    return (Outgoing(b'{"n": %d}' % number, "", queue) for number in range(count))


def reachable(uri: str) -> str | None:
    """Why the broker cannot be reached; None: it can."""
    try:
        with connect(uri, name="leash demo"):
            return None
    except (LeashError, OSError) as error:
        return str(error)
