"""How a task applies `leash.amqp.delivery_limit`: what came back too often is copied before it is lost.

A copy's row looks like the original's: the same exchange, routing key and headers. It is always flagged
`redelivered`, since a crash between copy and ack leaves both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from leash.amqp import (
    Connection,
    Deliveries,
    Outgoing,
    Publisher,
    decode_properties,
    delivery_limit,
    with_headers,
)
from leash.consumer.message import EXCHANGE, ROUTING_KEY
from leash.errors import AmqpError, LeashError, ProtocolError
from leash.logfmt import logger

log = logger(__name__)

_TIMEOUT = 10.0  # seconds without a confirm before a task goes on without rescuing
_AROUND = 20  # bytes of a frame, around the properties
_SPARE = 1000  # more of them, for a copy that says where it was published
_HINT = delivery_limit.RESCUED.encode()
_OURS = dict.fromkeys([delivery_limit.RESCUED, EXCHANGE, ROUTING_KEY])
_ODD = (LeashError, ValueError, IndexError, struct.error, RecursionError)
_COLUMNS = ("tags", "redelivered", "exchanges", "routing_keys", "properties", "bodies")


def restore(lot: Deliveries) -> Deliveries:
    """Make rescued copies look like their originals."""
    for at, properties in enumerate(lot.properties):
        if _HINT in properties and delivery_limit.rescues(properties):
            lot.redelivered[at] = True
            try:
                headers = decode_properties(properties).headers or {}
                lot.exchanges[at] = _text(headers.get(EXCHANGE, lot.exchanges[at]))
                lot.routing_keys[at] = _text(headers.get(ROUTING_KEY, lot.routing_keys[at]))
                lot.properties[at] = with_headers(properties, _OURS)
            except (ProtocolError, *_ODD):
                continue  # an odd message is still a message
    return lot


def endangered(lot: Deliveries, danger: int) -> list[int]:
    """The indexes of messages redelivered so often that the broker may drop them."""
    return [
        at
        for at, again in enumerate(lot.redelivered)
        if again and delivery_limit.delivery_count(lot.properties[at]) >= danger
    ]


def only(lot: Deliveries, keep: Iterable[int]) -> Deliveries:
    """A part of a lot."""
    places = list(keep)
    found = Deliveries(lot.channel, lot.consumer_tag)
    for column in _COLUMNS:
        values = getattr(lot, column)
        setattr(found, column, [values[at] for at in places])
    return found


class Rescuer:
    """Publishes copies, on a connection of its own, since an alarm blocks those that publish."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self.able = True
        """False once a copy was refused, or not confirmed in time."""

    def send(self, target: str, lot: Deliveries, places: Iterable[int], in_order: bool = False) -> list[int]:
        """Copy these messages of a lot to a queue; returns those that were confirmed.

        One whose properties cannot be changed is left out; `in_order`, all after it are, too.
        """
        if not self.able:
            return []
        copies: dict[int, Outgoing] = {}
        try:
            link = self._connect()
            for at in places:
                copy = _copy(target, lot, at, link.frame_max - _AROUND)
                if copy is not None:
                    copies[at] = copy
                elif in_order:
                    break
            if copies:
                self._publish(link, copies.values())
        except AmqpError as error:
            self.able = False
            log.warning(
                "event=cannot_rescue messages=%d target=%r reason=%r", len(copies), target, str(error)
            )
            return []
        log.info("event=rescued messages=%d target=%r", len(copies), target)
        return list(copies)

    def _publish(self, link: Connection, copies: Iterable[Outgoing]) -> None:
        try:
            with Publisher(link, timeout=_TIMEOUT) as publisher:
                publisher.publish(copies)
        except AmqpError:
            link.abort()  # a blocked broker does not read a close either
            raise


def _copy(target: str, lot: Deliveries, at: int, room: int) -> Outgoing | None:
    body, raw = lot.bodies[at], lot.properties[at]
    address: dict[str, object] = {EXCHANGE: lot.exchanges[at], ROUTING_KEY: lot.routing_keys[at]}
    try:
        # Headers can nearly fill a frame: a copy without its address is better than none.
        copy = delivery_limit.copy(target, body, raw, address if len(raw) <= room - _SPARE else None)
    except _ODD:
        return None
    return copy if len(copy.properties or b"") <= room else None


def _text(value: object) -> str:
    """A header's text: decoding leaves what is not UTF-8 as bytes."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
