"""What the broker keeps of a budget: its queues, and the card, a message that says which wheel is in force.

    leash.budget.sms            the card: numbers, and the number of the wheel in force (its generation)
    leash.budget.sms:lock       exclusive; held while a process reads the card or makes a wheel
    leash.budget.sms:7          the wheel: a token for each permit, or for several
    leash.budget.sms:7:cooling  before RabbitMQ 4.3, where its tokens wait after their use
    leash.budget.sms:7:turn     one message: its holder may gather several tokens
    leash.budget.sms:deleted    exists for a while after a delete: all permits may just have been used
    leash.budget.sms:seen       which tokens each process saw lately

The law: a wheel counts once the card says that it is ready. A process that finds another state makes the next
one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from leash.amqp import Channel, Connection, Outgoing, Properties, Publisher, topology
from leash.errors import NotFound

Form = Literal["delayed", "cooling", "held"]

DELAYED_FROM = (4, 3)
"""The first version in which a quorum queue sets a rejected message aside."""


def card_queue(name: str) -> str:
    return f"leash.budget.{name}"


def lock_queue(name: str) -> str:
    return f"{card_queue(name)}:lock"


def wheel_queue(name: str, generation: int) -> str:
    return f"{card_queue(name)}:{generation}"


def cooling_queue(name: str, generation: int) -> str:
    return f"{wheel_queue(name, generation)}:cooling"


def turn_queue(name: str, generation: int) -> str:
    return f"{wheel_queue(name, generation)}:turn"


def deleted_queue(name: str) -> str:
    return f"{card_queue(name)}:deleted"


def seen_queue(name: str) -> str:
    return f"{card_queue(name)}:seen"


@dataclass(frozen=True, slots=True)
class Card:
    """`numbers` are in force; `asked` are those in the code, which `leash budget set` does not change."""

    generation: int
    form: Form
    ready: bool
    numbers: dict[str, Any]
    asked: dict[str, Any]

    def allows(self, numbers: dict[str, Any]) -> bool:
        """True if a process that names these numbers may use this budget."""
        return numbers in (self.asked, self.numbers)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def from_json(body: bytes) -> Card:
    return Card(**json.loads(body))


class Reader:
    """Reads the card, under the lock. Others cannot read it until `put_back`."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._tags: list[int] = []
        self.card: Card | None = None
        """The newest card; a crash may leave an older one beside it."""

    def read(self) -> Card | None:
        while (came := self._channel.get(card_queue(self._name))) is not None:
            tag: Any = came.method
            card = from_json(bytes(came.body))
            if self.card is None or (card.generation, card.ready) > (self.card.generation, self.card.ready):
                self.card = card
                self._tags.append(tag.delivery_tag)
            else:
                self._tags.insert(0, tag.delivery_tag)
        return self.card

    def put_back(self) -> None:
        """Return the newest card to the queue and drop the others."""
        for tag in self._tags[:-1]:
            self._channel.ack(tag)
        if self._tags:
            self._channel.nack(self._tags[-1])
        self._tags.clear()

    def replace(self, publisher: Publisher, card: Card) -> None:
        """Publish another card, confirmed, and drop all that were read."""
        publisher.publish(
            [
                Outgoing(
                    card.to_json(), "", card_queue(self._name), Properties(delivery_mode=2), mandatory=True
                )
            ]
        )
        for tag in self._tags:
            self._channel.ack(tag)
        self._tags.clear()
        self.card = card


def ready(connection: Connection, queue: str) -> int | None:
    """How many messages are ready in a queue; None if there is no such queue."""
    try:
        with connection.channel() as channel:
            return topology.state(channel, queue).ready
    except NotFound:
        return None
