"""Settling: every delivery ends in exactly one of these, once, on the channel that delivered it.

    outcome       on the wire               when
    DONE          ack, coalesced            the handler returned, or said ack()
    REPUBLISHED   ack, coalesced            it failed; its copy in the retry or dead queue is confirmed
    RESCUED       ack, coalesced            redelivered too often; its copy in limbo is confirmed
    DISCARDED     ack, coalesced            it failed for the last time, and on_exhausted="discard"
    GIVEN_BACK    nack(requeue)             not started: shutdown, pause, or CoDel returns it
    REQUEUED      reject(requeue)           the handler said requeue(): counts as a delivery on quorum queues;
                                            out of limbo it is REPUBLISHED to its own queue instead, and on
                                            an ordered lane it stays, to be handled next
    DELAYED       reject(requeue)           it failed, and its queue delays it until the next try
    REJECTED      reject                    the handler said reject(), or on_exhausted="reject"; out of limbo
                                            it is REPUBLISHED to the dead-letter exchange, or parked
    DROPPED       nack                      past its deadline, in drop mode
    (nothing)                               the channel is gone: the broker redelivers it

Acks wait for each other in the `Ledger` of their channel; everything else goes out at once. To a stream
nothing goes out: what is acked or DROPPED is written off, and the offset below which all is so is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from leash.consumer.raw_delivery import BODY, LINK, TAG, Raw
from leash.errors import ConfigError

if TYPE_CHECKING:
    from leash.consumer.engine import Engine
    from leash.consumer.link import Link
    from leash.consumer.message import Message
    from leash.flow import Shed


class Outcome(Enum):
    DONE = "done"
    REPUBLISHED = "republished"
    RESCUED = "rescued"
    DISCARDED = "discarded"
    GIVEN_BACK = "given back"
    REQUEUED = "requeued"
    DELAYED = "delayed"
    REJECTED = "rejected"
    DROPPED = "dropped"


ACKED: Final = (Outcome.DONE, Outcome.REPUBLISHED, Outcome.RESCUED, Outcome.DISCARDED)


class Settler:
    """Settles the deliveries of one consumer. Its methods need the engine's lock unless they say that they
    take it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.on_settled: Callable[[str, bytes, Outcome], None] | None = None
        """Called with every settled delivery's queue and body."""
        self.out_of_limbo: Callable[[Message, Outcome], None] | None = None
        """Requeues or rejects a message by a copy: the only way for one from limbo."""

    def done(self, raws: list[Raw]) -> None:
        """Ack messages whose handlers returned. Most messages end here, so each run of one link is acked
        together.
        """
        link: Link | None = None
        for raw in raws:
            if raw[LINK] is not link:
                link = raw[LINK]
                ack = link.acks()
            if ack(raw[TAG]) and self.on_settled is not None:
                self.on_settled(raw[LINK].queue, raw[BODY], Outcome.DONE)

    def claim(self, message: Message) -> bool:
        """Claim a failed message from its handler. False: it was settled, or its channel is gone."""
        with self._engine.lock:
            if self._over(message):
                return False
            message.outcome = Outcome.REPUBLISHED
        return True

    def _over(self, message: Message) -> bool:
        """True if it was settled by hand, by a handler that returned long ago, or by the channel's end."""
        link = message.link
        return message.outcome is not None or not link.alive or link.ledger.is_settled(message.tag)

    def settle(self, message: Message, outcome: Outcome, claimed: bool = False) -> bool:
        """Settle one message, by hand or, once claimed, after it was republished. Takes the lock."""
        link = message.link
        if link.stream and outcome in (Outcome.REQUEUED, Outcome.REJECTED):
            verb = "requeue" if outcome is Outcome.REQUEUED else "reject"
            raise ConfigError(
                verb, link.queue, "not for a stream, which takes no message back: ack it, or raise"
            )
        if link.limbo and not claimed and outcome in (Outcome.REQUEUED, Outcome.REJECTED):
            return self._out_of_limbo(message, outcome)
        if link.spec.ordered and not claimed and outcome is Outcome.REQUEUED:
            return self._in_place(message)
        with self._engine.lock:
            if (message.outcome is not None and not claimed) or not link.settle(message.tag, outcome):
                return False
            message.outcome = outcome
            self._engine.counts[link.queue][outcome.value] += 1
            self.ack_due(link)
        if self.on_settled is not None:
            self.on_settled(link.queue, message.body, outcome)
        return True

    def _in_place(self, message: Message) -> bool:
        """Requeue on an ordered lane. Sent to the broker, it would be overtaken by the messages buffered
        here.
        """
        engine, link = self._engine, message.link
        with engine.lock:
            if self._over(message):
                return False
            message.outcome = Outcome.REQUEUED
            message.redelivered = True
            engine.counts[link.queue][Outcome.REQUEUED.value] += 1
            if not engine.stopping:  # otherwise closing the channel returns it
                now = engine.clock.now()
                engine.flow.retry_in_place(now, link.queue, message.raw, now)
        return True

    def _out_of_limbo(self, message: Message, outcome: Outcome) -> bool:
        if not self.claim(message):
            return False
        assert self.out_of_limbo is not None
        self.out_of_limbo(message, outcome)
        return True

    def give_back(self, link: Link, raws: list[Raw]) -> None:
        """Return messages that no worker began."""
        if link.spec.in_place or not link.alive:
            return  # closing the channel returns them, in order; in a stream they stay
        for raw in raws:
            raw[LINK].settle(raw[TAG], Outcome.GIVEN_BACK)  # one out of limbo has another link
            if self.on_settled is not None:
                self.on_settled(link.queue, raw[BODY], Outcome.GIVEN_BACK)
        self._engine.counts[link.queue][Outcome.GIVEN_BACK.value] += len(raws)

    def shed(self, shed: Shed) -> None:
        """Return or drop a message, as CoDel decided."""
        outcome = Outcome.GIVEN_BACK if shed.kind == "return" else Outcome.DROPPED
        raw = shed.message
        if raw[LINK].settle(raw[TAG], outcome):
            self._engine.counts[shed.lane]["returned" if shed.kind == "return" else "dropped"] += 1
            if self.on_settled is not None:
                self.on_settled(shed.lane, raw[BODY], outcome)

    def ack_due(self, link: Link) -> None:
        """Send acks once as many wait as the lane's window allows."""
        lane = self._engine.flow.lanes[link.queue]
        due = min(lane.most, max(1, lane.credit // 2))
        if link.ledger.unsent >= due:
            link.flush(singles=False)
            if link.ledger.unsent >= due:
                link.flush()
        link.resume()
