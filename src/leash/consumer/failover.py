"""Checks that the node we are connected to still serves us, and finds another one that would.

A node that is cut off from the others keeps its clients' connections open, answers their heartbeats and
delivers nothing: RabbitMQ 4.2 and later leave it at that, as earlier ones do unless they are told to pause.
Even the number of messages that it reports is outdated. So if other hosts are known and the quorum queues
are silent, one queue is asked for a second consumer every few seconds, which needs the consent of a majority.
If none is granted, another node is asked, in a separate thread; and only if that one grants it do we
move: a queue that has lost its leader is silent on every node.

The second consumer is ended as soon as it is granted. What is sent to it belongs to its link like the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from pamqp import commands

from leash.amqp import Uri, connect, wire
from leash.amqp.channel import Reply
from leash.backoff import Backoff
from leash.consumer.link import Link
from leash.errors import AmqpError

QUIET = 3.0
"""Seconds without a message, or since the last proof, until a queue is asked."""
PATIENCE = 2.0
"""Seconds for its answer, and for each step at another node. Together with QUIET, a reconnect and some load,
that is below ten."""
LONGEST = 60.0
"""Seconds until the next question while no node answers better than ours."""

_Consume = wire.unchecked(commands.Basic.Consume)

Ask = Callable[[Uri, str], bool]
Host = tuple[str, int]


class Question(NamedTuple):
    """A consumer that was asked for, and when."""

    link: Link
    reply: Reply
    asked: float


class Lookout:
    """Called at every turn of the upkeep; does not block."""

    def __init__(self, uri: Uri, ask: Ask | None = None) -> None:
        self._uri = uri
        self._ask = ask or proves
        self._delivered = -1
        self._next = 0.0
        self._backoff = Backoff(QUIET, LONGEST)
        self._open: Question | None = None
        self._seek_at = 0.0
        self._seeker: threading.Thread | None = None
        self._better: list[Host] = []

    def connected(self, now: float) -> None:
        """Start afresh with a new connection."""
        self._open, self._seeker = None, None
        self._next = now + QUIET

    def look(
        self, now: float, where: str, links: Iterable[Link], opening: Iterable[Question] = ()
    ) -> Host | None:
        """The host to move to, if ours is silent and another one is not.

        `links` are to quorum queues; `opening` those whose own consumer was not granted yet.
        """
        if len(self._uri.hosts) < 2:
            return None
        links = list(links)
        delivered = sum([link.ledger.delivered for link in links])
        if self._open is not None and (self._open.reply.here() or not self._open.link.alive):
            question, self._open, self._seeker = self._open, None, None
            self._heard(now, delivered)
            with contextlib.suppress(AmqpError):
                question.link.end_proof()
        if self._open is not None:
            return self._doubt(now, where)
        if delivered != self._delivered:
            self._heard(now, delivered)
        elif now >= self._next:
            self._question(now, links, opening)
        return None

    def _heard(self, now: float, delivered: int) -> None:
        self._delivered = delivered
        self._backoff.reset()
        self._next = now + QUIET

    def _question(self, now: float, links: list[Link], opening: Iterable[Question]) -> None:
        """Ask a queue that has room: silence of the others means nothing."""
        self._next = now + QUIET
        free = [link for link in links if link.idle_for_proof]
        waiting = [question for question in opening if now - question.asked >= PATIENCE]
        if waiting:
            self._open = waiting[0]
        elif free:
            link = max(free, key=lambda link: link.ledger.delivered)  # not one that never worked
            self._open = Question(link, link.ask_proof(), now)
        if self._open is not None:
            self._seek_at = self._open.asked + PATIENCE

    def _doubt(self, now: float, where: str) -> Host | None:
        assert self._open is not None
        if self._seeker is None and now >= self._seek_at:
            self._better = []
            seek = (where, self._open.link.queue, self._better)
            self._seeker = threading.Thread(target=self._seek, args=seek, name="leash-lookout", daemon=True)
            self._seeker.start()
        elif self._seeker is not None and not self._seeker.is_alive():
            if self._better:
                return self._better[0]
            self._seeker, self._seek_at = None, now + self._backoff.next()
        return None

    def _seek(self, where: str, queue: str, better: list[Host]) -> None:
        for host, port in self._uri.hosts:
            if f"{host}:{port}" != where and self._ask(replace(self._uri, hosts=((host, port),)), queue):
                better.append((host, port))
                return


def proves(uri: Uri, queue: str) -> bool:
    """True if a node can reach a queue. Messages that it sends meanwhile are returned."""
    try:
        connection = connect(uri, name="leash lookout", timeout=PATIENCE)
    except AmqpError:
        return False
    try:
        channel = connection.channel()
        channel.qos(1)
        tag = channel.expect_consumer("", None)
        channel.call(_Consume(0, queue, tag), commands.Basic.ConsumeOk, timeout=PATIENCE)
        return True
    except AmqpError:
        return False
    finally:
        connection.abort()
