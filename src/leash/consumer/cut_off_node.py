"""Checks that the node we are connected to still serves us, and finds another one that would.

A node that is cut off from the others keeps its clients' connections open, answers their heartbeats and
delivers nothing: RabbitMQ 4.2 and later leave it at that, as earlier ones do unless they are told to pause.
Even the number of messages that it reports is outdated. So if other hosts are known and the quorum queues
are silent, one queue is asked for a second consumer every few seconds, which needs the consent of a majority.
If none is granted, all other nodes are asked at once, each in its own thread, and we move to the first that
grants one. If none does, we stay: a queue that has lost its leader is silent on every node. That may last a
second or two while nodes return, so they are asked again soon.

The second consumer is ended as soon as it is granted, and gives back what is sent to it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from pamqp import commands

from leash.amqp import Uri, connect, wire
from leash.amqp.channel import Channel, Reply
from leash.backoff import Backoff
from leash.consumer.link import Link
from leash.errors import AmqpError

QUIET = 3.0
"""Seconds without a message, or since the last proof, until a queue is asked."""
DOUBT = 1.0
"""Seconds for its answer, which takes milliseconds from a node that serves us, until the others are asked."""
PATIENCE = 2.0
"""Seconds for each step at another node."""
AGAIN, LONGEST = 1.0, 60.0
"""Seconds until the others are asked again, at first and at most. Once in vain, then with success, and a
reconnect: together with QUIET, DOUBT and some load that is below ten."""

_Consume = wire.unchecked(commands.Basic.Consume)

Ask = Callable[[Uri, str], bool]
Host = tuple[str, int]


class Question(NamedTuple):
    """A consumer that was asked for, and when."""

    link: Link
    reply: Reply
    asked: float
    proof: bool = False
    """It is to be ended as soon as it is granted."""


class Lookout:
    """Called at every turn of the upkeep; does not block."""

    def __init__(self, uri: Uri, ask: Ask | None = None) -> None:
        self._uri = uri
        self._ask = ask or proves
        self._delivered = -1
        self._next = 0.0
        self._backoff = Backoff(AGAIN, LONGEST)
        self._open: Question | None = None
        self._late: list[Question] = []  # those that nobody waits for any more
        self._channels: list[Channel] = []  # for questions
        self._seek_at = 0.0
        self._seekers: list[threading.Thread] = []
        self._better: list[Host] = []

    def connected(self, now: float) -> None:
        """Start afresh with a new connection."""
        self._end_doubt()
        self._late, self._channels = [], []
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
        question = self._open
        if question is not None and (
            delivered != self._delivered or question.reply.here() or not question.link.alive
        ):
            if question.proof:
                self._late.append(question)
            self._end_doubt()
            self._heard(now, delivered)
        self._end_proofs()
        if self._open is not None:
            return self._doubt(now, where)
        if delivered != self._delivered:
            self._heard(now, delivered)
        elif now >= self._next:
            self._question(now, links, opening)
        return None

    def _end_proofs(self) -> None:
        for question in [each for each in self._late if each.reply.here()]:
            self._late.remove(question)
            with contextlib.suppress(AmqpError):
                question.link.end_proof(question.reply.channel)
                self._channels.append(question.reply.channel)
        self._channels = [channel for channel in self._channels if not channel.closed]
        for channel in self._channels:
            while (batch := channel.deliveries(0.0)) is not None:  # after its end, lest it is sent them again
                channel.nack(batch.tags[-1], multiple=True)

    def _end_doubt(self) -> None:
        self._open, self._seekers, self._better = None, [], []  # who still asks tells nobody

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
            by = self._channels.pop() if self._channels else None
            self._open = Question(link, link.ask_proof(by), now, proof=True)
        if self._open is not None:
            self._seek_at = self._open.asked + DOUBT

    def _doubt(self, now: float, where: str) -> Host | None:
        assert self._open is not None
        if self._better:
            return self._better[0]
        if any(seeker.is_alive() for seeker in self._seekers):
            return None
        if self._seekers:
            self._seekers, self._seek_at = [], now + self._backoff.next()
        elif now >= self._seek_at:
            others = [host for host in self._uri.hosts if f"{host[0]}:{host[1]}" != where]
            self._seekers = [self._seeker(host, self._open.link.queue, self._better) for host in others]
        return None

    def _seeker(self, host: Host, queue: str, better: list[Host]) -> threading.Thread:
        def seek() -> None:
            if self._ask(replace(self._uri, hosts=(host,)), queue):
                better.append(host)

        thread = threading.Thread(target=seek, name="leash-lookout", daemon=True)
        thread.start()
        return thread


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
