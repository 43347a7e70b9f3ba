"""What a handler gets: a delivery, decoded only as far as it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leash.amqp.properties import Properties, decode_properties
from leash.consumer.settle import Outcome
from leash.errors import ProtocolError

if TYPE_CHECKING:
    from leash.consumer.link import Link

TRIES = "x-leash-tries"
EXCHANGE = "x-leash-exchange"
ROUTING_KEY = "x-leash-routing-key"

_TRIED = TRIES.encode()
_TRIES_MOST = 1 << 30  # a header may say anything

Raw = tuple[int, bool, str, str, bytes, bytes, "Link", int]
"""Delivery tag, redelivered, exchange, routing key, property bytes, body, link, ns of arrival."""


class Message:
    """A delivery. Returning from the handler acks it; raising fails it; or settle it by hand, once."""

    __slots__ = (
        "_arrived",
        "_link",
        "_outcome",
        "_raw_properties",
        "_settle",
        "_tag",
        "body",
        "exchange",
        "failures",
        "redelivered",
        "routing_key",
    )

    def __init__(self, raw: Raw, settle: Callable[[Message, Outcome], bool]) -> None:
        (
            self._tag,
            self.redelivered,
            self.exchange,
            self.routing_key,
            self._raw_properties,
            self.body,
            self._link,
            self._arrived,
        ) = raw
        self._settle = settle
        self._outcome: Outcome | None = None
        self.failures = self._link.failures.get(self._tag, 0) if self._link.failures else 0
        if _TRIED in self._raw_properties:
            self._restore()

    def __repr__(self) -> str:
        return f"<Message {self._tag} of {self.queue!r}, {len(self.body)} bytes>"

    def _restore(self) -> None:
        """A retried copy came by way of its retry queue: show where it was published first."""
        headers = self._known_headers()
        self.exchange = _text(headers.get(EXCHANGE, self.exchange))
        self.routing_key = _text(headers.get(ROUTING_KEY, self.routing_key))

    def _known_headers(self) -> Mapping[str, Any]:
        """Malformed properties are for the handler to stumble over, not for us."""
        try:
            return self.headers
        except ProtocolError:
            return {}

    @property
    def queue(self) -> str:
        return self._link.queue

    @property
    def properties(self) -> Properties:
        """The AMQP properties. Read only: equal ones share an object."""
        return decode_properties(self._raw_properties)

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.properties.headers or {}

    @property
    def tries(self) -> int:
        """How often it failed before."""
        if _TRIED not in self._raw_properties:
            return self.failures
        tries = self._known_headers().get(TRIES)
        return self.failures + (min(max(0, tries), _TRIES_MOST) if isinstance(tries, int) else 0)

    @property
    def age(self) -> float:
        """Seconds since its timestamp, which has whole seconds; without one, since it arrived here."""
        stamp = self.properties.timestamp
        if stamp is not None:
            return max(0.0, self._link.clock.wall() - stamp.timestamp())
        return (self._link.clock.now() - self._arrived) / 1e9

    def raw_again(self) -> Raw:
        """For another try in place, on an ordered lane."""
        self._link.failures = {self._tag: self.failures + 1}
        return (
            self._tag,
            self.redelivered,
            self.exchange,
            self.routing_key,
            self._raw_properties,
            self.body,
            self._link,
            self._arrived,
        )

    @property
    def settled(self) -> bool:
        return self._outcome is not None

    def ack(self) -> bool:
        """Done with it. False, and nothing happens, if it was settled before or its connection is gone."""
        return self._settle(self, Outcome.DONE)

    def reject(self) -> bool:
        """To the queue's dead-letter exchange, if it has one; else it is gone."""
        return self._settle(self, Outcome.REJECTED)

    def requeue(self) -> bool:
        """Back to the queue, where it may come again at once."""
        return self._settle(self, Outcome.REQUEUED)


def _text(value: object) -> str:
    """A header as it was before it was one: pamqp leaves what is not UTF-8 as bytes."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
