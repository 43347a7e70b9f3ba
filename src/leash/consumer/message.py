"""What a handler gets: a delivery, decoded only when its parts are read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from leash.amqp.delivery_limit import COUNTS, delivery_count, rescues
from leash.amqp.properties import Properties, decode_properties, read_header, with_headers
from leash.consumer.raw_delivery import Raw
from leash.consumer.settle import Outcome
from leash.errors import ProtocolError

TRIES = "x-leash-tries"
EXCHANGE = "x-leash-exchange"
ROUTING_KEY = "x-leash-routing-key"

_TRIED = TRIES.encode()
_TRIES_MOST = 1 << 30  # a header may say anything


class Message:
    """A delivery. Returning from the handler acks it; raising fails it; or settle it by hand, once.

    Attributes: `queue` (or stream), `body` (bytes), `exchange`, `routing_key`, `redelivered`, `tag`,
    `offset`, `properties`, `tries` and `age`.
    """

    __slots__ = (
        "_settle",
        "arrived",
        "body",
        "exchange",
        "failures",
        "link",
        "outcome",
        "raw_properties",
        "redelivered",
        "routing_key",
        "tag",
    )

    def __init__(self, raw: Raw, settle: Callable[[Message, Outcome], bool]) -> None:
        (
            self.tag,
            self.redelivered,
            self.exchange,
            self.routing_key,
            self.raw_properties,
            self.body,
            self.link,
            self.arrived,
        ) = raw
        self._settle = settle
        self.outcome: Outcome | None = None
        self.failures = self.link.failures.get(self.tag, 0) if self.link.failures else 0
        if _TRIED in self.raw_properties:
            self._restore()

    def __repr__(self) -> str:
        return f"<Message {self.tag} of {self.queue!r}, {len(self.body)} bytes>"

    def _restore(self) -> None:
        """Restore the first address of one of our copies, and mark it as redelivered."""
        if rescues(self.raw_properties):
            self.redelivered = True
        self.exchange = _text(read_header(self.raw_properties, EXCHANGE), self.exchange)
        self.routing_key = _text(read_header(self.raw_properties, ROUTING_KEY), self.routing_key)

    @property
    def queue(self) -> str:
        return self.link.queue

    @property
    def offset(self) -> int | None:
        """Its offset, if it came from a stream."""
        return self.tag if self.link.stream else None

    @property
    def properties(self) -> Properties:
        """The AMQP properties. Read-only: equal ones share an object."""
        return decode_properties(self.raw_properties)

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.properties.headers or {}

    @property
    def tries(self) -> int:
        """How often it failed before."""
        failures = self.failures + (delivery_count(self.raw_properties) if self.link.delays else 0)
        if _TRIED not in self.raw_properties:
            return failures
        tries = read_header(
            self.raw_properties, TRIES
        )  # other malformed headers are the handler's to deal with
        return failures + (min(max(0, tries), _TRIES_MOST) if isinstance(tries, int) else 0)

    @property
    def age(self) -> float:
        """Seconds since its timestamp, which has whole seconds; since it arrived here if it has none."""
        stamp = self.properties.timestamp
        if stamp is not None:
            return max(0.0, self.link.clock.wall() - stamp.timestamp())
        return (self.link.clock.now() - self.arrived) / 1e9

    def raw_again(self) -> Raw:
        """The raw tuple for another try in place, on an ordered lane or of a stream."""
        self.link.failed(self.tag, self.failures + 1, identity(self.raw_properties, self.body))
        return self.raw

    @property
    def raw(self) -> Raw:
        """The raw tuple for another worker."""
        return (
            self.tag,
            self.redelivered,
            self.exchange,
            self.routing_key,
            self.raw_properties,
            self.body,
            self.link,
            self.arrived,
        )

    @property
    def settled(self) -> bool:
        return self.outcome is not None

    def ack(self) -> bool:
        """Ack it. False, without effect, if it was settled before or its connection is gone."""
        return self._settle(self, Outcome.DONE)

    def reject(self) -> bool:
        """Send it to the queue's dead-letter exchange, or drop it if there is none. Returns as `ack` does.
        Not for streams.
        """
        return self._settle(self, Outcome.REJECTED)

    def requeue(self) -> bool:
        """Return it to the queue, which may redeliver it at once; on an ordered lane it is handled next.
        It may be requeued any number of times without being dropped. Returns as `ack` does. Not for streams.
        """
        return self._settle(self, Outcome.REQUEUED)


def identity(properties: bytes, body: bytes) -> object:
    """What identifies a message when it is redelivered: all but the broker's counts."""
    try:
        return with_headers(properties, {**dict.fromkeys(COUNTS), "": 0}), body  # always with headers
    except (ProtocolError, ValueError, IndexError, struct.error):
        return body


def _text(value: object, otherwise: str) -> str:
    """A header's text: decoding leaves what is not UTF-8 as bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else otherwise
