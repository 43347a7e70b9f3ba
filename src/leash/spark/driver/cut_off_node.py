"""Checks that the driver's node still knows how deep the queues are, and finds another one that does.

A node that is cut off from the others keeps its clients' connections open, answers their heartbeats, and
keeps reporting the old depths of quorum queues. So if other hosts are known and these depths have not changed
for some seconds, the node is asked to declare a queue, which needs a majority. If it cannot and another host
can, the driver moves. `leash.consumer.cut_off_node` does the same for a consumer by other means: the driver
must not consume.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from pamqp import commands

from leash.amqp import Connection, connect, topology, wire
from leash.backoff import Backoff
from leash.errors import AccessRefused, AmqpError, ConnectionLost
from leash.logfmt import logger

log = logger(__name__)

QUIET = 3.0
"""Seconds without a change, or since the last answer, before the node is asked."""
PATIENCE = 2.0
"""Seconds for each step of an answer."""
LONGEST = 60.0
"""Seconds until the next question while no node answers better than ours."""

_KHEPRI = (4, 2)
"""Earlier versions declare queues without a majority."""

_Declare = wire.unchecked(commands.Queue.Declare)


class Lookout:
    """Watches the depths that the driver's node reports."""

    def __init__(self) -> None:
        self._told: tuple[str, dict[str, int]] | None = None
        self._next = 0.0
        self._backoff = Backoff(QUIET, LONGEST)

    def look(self, link: Connection, depths: dict[str, int]) -> None:
        """`depths` are those of quorum queues. Closes the connection and raises if another host is better."""
        if not depths or len(link.uri.hosts) < 2 or link.version < _KHEPRI:
            return
        wait = QUIET
        if self._told != (link.where, depths):
            self._told = (link.where, dict(depths))
            self._backoff.reset()
        elif time.monotonic() < self._next:
            return
        elif grants(link):
            self._backoff.reset()
        elif (better := _better(link)) is not None:
            link.abort()
            self._told = None
            log.warning("event=moved from=%r to=%r reason=%r", link.where, better, "cut off from its cluster")
            raise ConnectionLost(f"{link.where} is cut off from its cluster")
        else:
            wait = self._backoff.next()
        self._next = time.monotonic() + wait


def grants(link: Connection) -> bool:
    """True if a node has a majority: it declares a queue and deletes it. Also True if this is not allowed."""
    name = f"leash.proof.{secrets.token_hex(8)}"
    try:
        channel = link.channel()
        # Exclusive: it is gone when the connection ends.
        request = _Declare(0, name, passive=False, durable=False, exclusive=True)
        channel.call(request, commands.Queue.DeclareOk, timeout=PATIENCE)
        topology.delete_queue(channel, name)
        channel.close()
    except AccessRefused:
        return True
    except AmqpError:
        return False
    return True


def _better(link: Connection) -> str | None:
    for host, port in link.uri.hosts:
        if f"{host}:{port}" == link.where:
            continue
        try:
            other = connect(replace(link.uri, hosts=((host, port),)), name="leash lookout", timeout=PATIENCE)
        except AmqpError:
            continue
        try:
            if grants(other):
                return other.where
        finally:
            other.abort()
    return None
