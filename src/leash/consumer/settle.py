"""Settling: every delivery ends in exactly one of these, once, on the channel that it came by.

    outcome       on the wire               when
    DONE          ack, coalesced            the handler returned, or said ack()
    REPUBLISHED   ack, coalesced            it failed; its copy in the retry or dead queue is confirmed
    RESCUED       ack, coalesced            it came back too often; its copy in limbo is confirmed
    DISCARDED     ack, coalesced            it failed for the last time, and on_exhausted="discard"
    GIVEN_BACK    nack(requeue)             not started: shutdown, pause, or CoDel returns it
    REQUEUED      reject(requeue)           the handler said requeue(): counts as a delivery on quorum queues;
                                            out of limbo it is REPUBLISHED to its own queue instead, and on
                                            an ordered lane it stays, as the next to begin
    REJECTED      reject                    the handler said reject(), or on_exhausted="reject"; out of limbo
                                            it is REPUBLISHED to the dead-letter exchange, or parked
    DROPPED       nack                      past its deadline, in drop mode
    (nothing)                               the channel is gone: the broker delivers it again

Acks wait for each other in the `Ledger` of their channel; everything else goes out at once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from leash.consumer.raw import BODY, LINK, TAG, Raw

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
    REJECTED = "rejected"
    DROPPED = "dropped"


ACKED: Final = (Outcome.DONE, Outcome.REPUBLISHED, Outcome.RESCUED, Outcome.DISCARDED)


class Settler:
    """Of one consumer. Where it does not take the engine's lock itself, whoever calls has it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.on_settled: Callable[[str, bytes, Outcome], None] | None = None
        """Told of every delivery, its queue and body, as it is settled."""
        self.out_of_limbo: Callable[[Message, Outcome], None] | None = None
        """Requeues or rejects a message by a copy: from limbo there is no other way."""

    def done(self, raws: list[Raw]) -> None:
        """Their handlers returned. Nearly every message ends here: a link is looked at once in a row."""
        link: Link | None = None
        for raw in raws:
            if raw[LINK] is not link:
                link = raw[LINK]
                ack = link.acks()
            if ack(raw[TAG]) and self.on_settled is not None:
                self.on_settled(raw[LINK].queue, raw[BODY], Outcome.DONE)

    def claim(self, message: Message) -> bool:
        """It failed, and is not the handler's any more. False: it was settled, or its channel is gone."""
        with self._engine.lock:
            if self._over(message):
                return False
            message.outcome = Outcome.REPUBLISHED
        return True

    def _over(self, message: Message) -> bool:
        """By hand, by a handler that returned long ago, or by the channel's end."""
        link = message.link
        return message.outcome is not None or not link.alive or link.ledger.is_settled(message.tag)

    def settle(self, message: Message, outcome: Outcome, claimed: bool = False) -> bool:
        """One message, by hand or, once it is claimed, after it was republished. Takes the lock."""
        link = message.link
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
        """Requeue on an ordered lane: at the broker those that are buffered here would overtake it."""
        engine, link = self._engine, message.link
        with engine.lock:
            if self._over(message):
                return False
            message.outcome = Outcome.REQUEUED
            message.redelivered = True
            engine.counts[link.queue][Outcome.REQUEUED.value] += 1
            if not engine.stopping:  # else the channel's end gives it back
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
        """Messages that no worker began."""
        if link.spec.ordered or not link.alive:
            return  # to keep the order, only the channel's end gives them back
        for raw in raws:
            link.settle(raw[TAG], Outcome.GIVEN_BACK)
            if self.on_settled is not None:
                self.on_settled(link.queue, raw[BODY], Outcome.GIVEN_BACK)
        self._engine.counts[link.queue][Outcome.GIVEN_BACK.value] += len(raws)

    def shed(self, shed: Shed) -> None:
        """CoDel returns a message, or drops it."""
        outcome = Outcome.GIVEN_BACK if shed.kind == "return" else Outcome.DROPPED
        raw = shed.message
        if raw[LINK].settle(raw[TAG], outcome):
            self._engine.counts[shed.lane]["returned" if shed.kind == "return" else "dropped"] += 1
            if self.on_settled is not None:
                self.on_settled(shed.lane, raw[BODY], outcome)

    def ack_due(self, link: Link) -> None:
        """Acks wait for each other for as long as the lane's window allows for it."""
        lane = self._engine.flow.lanes[link.queue]
        due = min(lane.most, max(1, lane.credit // 2))
        if link.ledger.unsent >= due:
            link.flush(singles=False)
            if link.ledger.unsent >= due:
                link.flush()
        link.resume()
