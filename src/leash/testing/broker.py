"""The part of RabbitMQ that a consumer touches, in memory: queues, credit, requeueing, expiry, dead letters.

It behaves like the broker wherever a handler could tell the difference: a returned message goes to its old
place and is flagged redelivered; one that is rejected or expires goes to its queue's dead-letter key; closing
a channel returns the messages that it held. It has only the default exchange, one kind of queue, and no
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from leash.amqp.properties import decode_properties
from leash.amqp.wire import Deliveries
from leash.errors import ConfigError, NotFound, PreconditionFailed

_ROUNDING = 10  # ns: an event loop's timers are floats
_CLASSIC = ("x-queue-type", "classic")  # a queue's default type


def _type(value: object) -> str:
    return "bool" if isinstance(value, bool) else "signedint" if isinstance(value, int) else "longstr"


class Stored(NamedTuple):
    """A message in a queue."""

    serial: int
    """Its position in the queue."""
    body: bytes
    exchange: str
    routing_key: str
    raw_properties: bytes
    redelivered: bool = False

    @property
    def headers(self) -> Mapping[str, Any]:
        return decode_properties(self.raw_properties).headers or {}


class Subscriber:
    """A consumer on a channel, with its credit."""

    __slots__ = ("channel", "credit", "deliver", "held", "queue", "tag")

    def __init__(
        self, channel: Holder, tag: str, queue: MemoryQueue, deliver: Callable[[Deliveries], None]
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.credit = channel.prefetch
        self.held = 0
        self.deliver = deliver


class Holder:
    """What one channel holds: its consumers, and the deliveries that are not settled."""

    __slots__ = ("last_tag", "prefetch", "subscribers", "unsettled")

    def __init__(self) -> None:
        self.prefetch = 0
        self.last_tag = 0
        self.subscribers: dict[str, Subscriber] = {}
        self.unsettled: dict[int, tuple[MemoryQueue, Stored, Subscriber | None]] = {}


@dataclass(slots=True)
class MemoryQueue:
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    ready: list[Stored] = field(default_factory=list)  # a heap, ordered by position
    subscribers: list[Subscriber] = field(default_factory=list)
    unsettled: int = 0


class MemoryBroker:
    """`later(ns, action)` calls back in virtual time; `changed` is called when a message is settled."""

    def __init__(self, now: Callable[[], int], later: Callable[[int, Callable[[], None]], object]) -> None:
        self.queues: dict[str, MemoryQueue] = {}
        self.changed: Callable[[], None] = lambda: None
        self._now = now
        self._later = later
        self._due: dict[int, int] = {}  # a message's position -> when it expires
        self._serial = 0
        self._pumping = False

    # --- queues ---

    def declare(self, name: str, arguments: Mapping[str, Any], again: bool = False) -> MemoryQueue:
        """Declare a queue. `again`: change the arguments of an existing one, unlike a broker."""
        exchange = arguments.get("x-dead-letter-exchange")
        if exchange:
            only = "'' and an x-dead-letter-routing-key: in memory there is only the default exchange"
            raise ConfigError("x-dead-letter-exchange", exchange, only)
        wanted = {key: value for key, value in arguments.items() if (key, value) != _CLASSIC}
        found = self.queues.setdefault(name, MemoryQueue(name, wanted))
        if again:
            found.arguments = wanted
        for key in sorted({*wanted, *found.arguments}):
            if wanted.get(key) != found.arguments.get(key):
                now = found.arguments.get(key)
                current = "none" if now is None else f"the value '{now}' of type '{_type(now)}'"
                raise PreconditionFailed(
                    406,
                    f"PRECONDITION_FAILED - inequivalent arg '{key}' for queue '{name}' in memory: "
                    f"received another but current is {current}",
                )
        return found

    def queue(self, name: str) -> MemoryQueue:
        if name not in self.queues:
            raise NotFound(404, f"NOT_FOUND - no queue '{name}' in memory")
        return self.queues[name]

    def publish(self, name: str, body: bytes, exchange: str, routing_key: str, properties: bytes) -> None:
        self._serial += 1
        self._put(self.queue(name), Stored(self._serial, body, exchange, routing_key, properties))

    def _put(self, queue: MemoryQueue, message: Stored) -> None:
        heappush(queue.ready, message)
        wait = queue.arguments.get("x-message-ttl")
        if wait is not None:
            self._due.setdefault(message.serial, self._now() + wait * 1_000_000)
            self._later(wait * 1_000_000, lambda: self._expire(queue))
        self.pump()

    def _expire(self, queue: MemoryQueue) -> None:
        """Expire messages from the head on, like the broker: simultaneous timers fire in any order."""
        soon = self._now() + _ROUNDING
        while queue.ready and self._due.get(queue.ready[0].serial, soon + 1) <= soon:
            message = heappop(queue.ready)
            del self._due[message.serial]
            self._dead_letter(queue, message)
            self.changed()

    def _dead_letter(self, queue: MemoryQueue, message: Stored) -> None:
        exchange = queue.arguments.get("x-dead-letter-exchange")
        key = queue.arguments.get("x-dead-letter-routing-key", message.routing_key)
        if exchange is not None and key in self.queues:
            self.publish(key, message.body, exchange, key, message.raw_properties)

    # --- consumers ---

    def subscribe(self, channel: Holder, tag: str, name: str, deliver: Callable[[Deliveries], None]) -> None:
        queue = self.queue(name)
        subscriber = channel.subscribers[tag] = Subscriber(channel, tag, queue, deliver)
        queue.subscribers.append(subscriber)
        self.pump()

    def unsubscribe(self, channel: Holder, tag: str) -> None:
        subscriber = channel.subscribers.pop(tag, None)
        if subscriber is not None:
            subscriber.queue.subscribers.remove(subscriber)

    def close(self, channel: Holder) -> None:
        for tag in list(channel.subscribers):
            self.unsubscribe(channel, tag)
        for delivery in list(channel.unsettled):
            self.settle(channel, delivery, requeue=True)

    def get(self, channel: Holder, name: str) -> tuple[int, Stored, int] | None:
        """Get one message: its tag, itself, and how many are left."""
        queue = self.queue(name)
        if not queue.ready:
            return None
        message = heappop(queue.ready)
        return self._hand_out(channel, queue, message, None), message, len(queue.ready)

    def settle(self, channel: Holder, tag: int, *, requeue: bool | None) -> None:
        """Settle a message. `requeue` None: ack; True: return to the queue; False: dead-letter."""
        if tag not in channel.unsettled:
            raise PreconditionFailed(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        queue, message, subscriber = channel.unsettled.pop(tag)
        queue.unsettled -= 1
        if subscriber is not None:
            subscriber.held -= 1
        if requeue:
            self._put(queue, message._replace(redelivered=True))
        elif requeue is not None:
            self._dead_letter(queue, message)
        self.pump()
        self.changed()

    def _hand_out(
        self, channel: Holder, queue: MemoryQueue, message: Stored, subscriber: Subscriber | None
    ) -> int:
        channel.last_tag += 1
        channel.unsettled[channel.last_tag] = queue, message, subscriber
        queue.unsettled += 1
        return channel.last_tag

    def pump(self) -> None:
        """Deliver what credit allows, a moment later, and not inside the call that settles or publishes."""
        if not self._pumping:
            self._pumping = True
            self._later(0, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        for queue in self.queues.values():
            batches: dict[str, tuple[Subscriber, Deliveries]] = {}
            while queue.ready and (subscriber := _with_credit(queue)) is not None:
                _, batch = batches.setdefault(subscriber.tag, (subscriber, Deliveries(0, subscriber.tag)))
                message = heappop(queue.ready)
                subscriber.held += 1
                batch.tags.append(self._hand_out(subscriber.channel, queue, message, subscriber))
                batch.redelivered.append(message.redelivered)
                batch.exchanges.append(message.exchange)
                batch.routing_keys.append(message.routing_key)
                batch.properties.append(message.raw_properties)
                batch.bodies.append(message.body)
            for subscriber, batch in batches.values():
                subscriber.deliver(batch)


def _with_credit(queue: MemoryQueue) -> Subscriber | None:
    """The next subscriber in turn that has credit."""
    for index, subscriber in enumerate(queue.subscribers):
        if not subscriber.credit or subscriber.held < subscriber.credit:
            queue.subscribers.append(queue.subscribers.pop(index))
            return subscriber
    return None
