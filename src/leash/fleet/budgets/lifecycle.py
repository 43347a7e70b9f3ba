"""Makes, replaces, changes and deletes wheels, under the lock of their budget.

The law: a budget never has two wheels that give permits. The card says "not ready" before the old wheel is
deleted and until all tokens of the next one are confirmed; deleting a wheel cancels its consumers. The tokens
of every wheel but the first are made as if they had just been taken: it gives no permits before its period is
over, so the bound holds through the change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from leash.amqp import Channel, Connection, Outgoing, Properties, Publisher, connect, topology
from leash.amqp.locks import exclusively
from leash.errors import AccessRefused, BudgetError, ConfigError, PreconditionFailed
from leash.fleet.budgets.rate_to_tokens import Shape
from leash.fleet.budgets.settings import Terms, spoken
from leash.fleet.budgets.state_at_broker import (
    DELAYED_FROM,
    Card,
    Form,
    Reader,
    card_queue,
    cooling_queue,
    deleted_queue,
    lock_queue,
    ready,
    seen_queue,
    turn_queue,
    wheel_queue,
)
from leash.logfmt import logger

log = logger("leash.fleet")

PATIENCE = 30.0
"""Seconds to wait for the lock."""

LOST_CARD = 12.0
"""Seconds within which a process that uses the wheel restores a card that is gone."""

LASTING = Properties(delivery_mode=2)

_LOOKS, _EVERY = 4, 0.4
"""A wheel is empty if it has no token at `_LOOKS` looks, `_EVERY` seconds apart."""


@contextmanager
def alone(connection: Connection, name: str) -> Iterator[None]:
    """Hold the lock of this budget; a refusal by the broker becomes a BudgetError."""
    try:
        with exclusively(connection, lock_queue(name), PATIENCE) as got:
            if not got:
                raise BudgetError(f"budget {name!r} is being changed by another process: try again")
            yield
    except AccessRefused as error:
        raise BudgetError(
            f"budget {name!r}: this user needs the permissions configure, write and read on "
            rf"'leash\.budget\..*', and write on 'amq\.default' ({error.text})"
        ) from error
    except PreconditionFailed as error:
        raise BudgetError(
            f"budget {name!r}: a queue of its name exists and is something else: choose another name, or "
            f"delete it ({error.text})"
        ) from error


def join(connection: Connection, budget: Terms) -> Card:
    """The card of a usable wheel, which is made or replaced if necessary."""
    name, fresh = budget.name, False
    with alone(connection, name):
        if ready(connection, card_queue(name)) is None:
            fresh = True
            _declare_card(connection, name)
    if not fresh:
        _await_card(connection, name)
    with alone(connection, name), connection.channel() as channel:
        reader = Reader(channel, name)
        card = reader.read()
        try:
            if card is not None and not card.allows(budget.numbers):
                raise ConfigError(
                    "budget",
                    name,
                    f"asked for with {spoken(budget.numbers)}, but it was made with {spoken(card.asked)}"
                    + ("" if card.asked == card.numbers else f" and set to {spoken(card.numbers)}")
                    + ": name the same numbers everywhere, change them with `leash budget set`, or delete it",
                )
            if card is not None and card.ready and _whole(connection, name, card):
                return card
            first = fresh and card is None and ready(connection, deleted_queue(name)) is None
            return _make(connection, reader, name, budget.numbers, first=first)
        finally:
            if not channel.closed:
                reader.put_back()


def find(connection: Connection, name: str) -> Card | None:
    """The card of a budget, if there is one."""
    if ready(connection, card_queue(name)) is None:
        return None
    with alone(connection, name), connection.channel() as channel:
        reader = Reader(channel, name)
        card = reader.read()
        reader.put_back()
        return card


def renew(connection: Connection, name: str, old: Card, numbers: dict[str, Any] | None = None) -> Card:
    """Replace a wheel, to change its numbers or because it lost tokens, unless another process did."""
    with alone(connection, name), connection.channel() as channel:
        reader = Reader(channel, name)
        card = reader.read()
        if numbers is None and card is not None and card.generation != old.generation:
            reader.put_back()
            return card
        return _make(connection, reader, name, numbers or old.numbers, asked=old.asked)


def resize(connection: Connection, name: str, at_once: int, patience: float) -> Card:
    """Change `at_once`. If it gets smaller, permits are removed when their work ends."""
    with alone(connection, name), connection.channel() as channel:
        reader = Reader(channel, name)
        card = reader.read()
        if card is None or card.form != "held":
            raise BudgetError(f"budget {name!r} has a rate, and no at_once")
        had, wheel = int(card.numbers["at_once"]), wheel_queue(name, card.generation)
        with _publisher(connection, name) as publisher:
            if at_once > had:
                more = [Outgoing(f"{at} 1".encode(), "", wheel, LASTING, True) for at in range(had, at_once)]
                publisher.publish(more)
            left = had - at_once
            deadline = time.monotonic() + patience
            while left > 0 and time.monotonic() < deadline:
                came = channel.get(wheel)
                if came is None:
                    time.sleep(_EVERY)
                    continue
                method: Any = came.method
                channel.ack(method.delivery_tag)
                left -= 1
            card = replace(card, numbers={"at_once": at_once + max(0, left)})
            reader.replace(publisher, card)
    if left > 0:
        raise BudgetError(
            f"budget {name!r}: {left} more than at_once={at_once} are still in use, so at_once is "
            f"{at_once + left} now: set it again when they are done"
        )
    return card


def put_back_card(connection: Connection, name: str, card: Card) -> None:
    """Restore a card that was removed while its wheel is in use."""
    with alone(connection, name), connection.channel() as channel:
        reader = Reader(channel, name)
        if reader.read() is None and ready(connection, card_queue(name)) is not None:
            with _publisher(connection, name) as publisher:
                reader.replace(publisher, card)
            log.warning("event=budget_card_restored budget=%r", name)
        reader.put_back()


def delete(connection: Connection, name: str) -> bool:
    """Delete a budget and all its queues; False if there was none. Processes that use it create it again."""
    if ready(connection, card_queue(name)) is None:
        return False
    with alone(connection, name), connection.channel() as channel:
        card = Reader(channel, name).read()
        if card is not None:
            _delete_wheel(channel, name, card.generation)
            period = terms_of(name, card.numbers).shape.period
            topology.declare_queue(channel, deleted_queue(name), arguments={"x-expires": period + 1000})
        topology.delete_queue(channel, seen_queue(name))
        topology.delete_queue(channel, card_queue(name))
    return True


# --- inside ---


def _declare_card(connection: Connection, name: str) -> None:
    with connection.channel() as channel:
        if connection.version >= DELAYED_FROM:
            topology.declare_queue(
                channel, card_queue(name), kind="quorum", arguments={"x-delivery-limit": -1}
            )
        else:
            topology.declare_queue(channel, card_queue(name))


def _await_card(connection: Connection, name: str) -> None:
    """Wait for a card that another process is reading, or that is gone: users of the wheel restore it."""
    deadline = time.monotonic() + LOST_CARD
    while not ready(connection, card_queue(name)) and time.monotonic() < deadline:
        time.sleep(0.1)


def _whole(connection: Connection, name: str, card: Card) -> bool:
    """True if the wheel is there. Before 4.3 its tokens do not survive a restart of the broker."""
    wheel = wheel_queue(name, card.generation)
    if card.form != "cooling":
        return ready(connection, wheel) is not None
    for left in reversed(range(_LOOKS)):
        here, cooling = ready(connection, wheel), ready(connection, cooling_queue(name, card.generation))
        if here is None or cooling is None:
            return False
        if here + cooling:
            return True
        if left:
            time.sleep(_EVERY)
    return False


def _make(
    connection: Connection,
    reader: Reader,
    name: str,
    numbers: dict[str, Any],
    asked: dict[str, Any] | None = None,
    first: bool = False,
) -> Card:
    old = reader.card
    known = 0 if old is None else old.generation
    form: Form = "delayed" if connection.version >= DELAYED_FROM else "cooling"
    if "at_once" in numbers:
        form = "held"
    card = Card(max(known + 1, int(time.time())), form, False, numbers, asked or numbers)
    shape = terms_of(name, numbers).shape
    with _publisher(connection, name) as publisher:
        reader.replace(publisher, card)
        with connection.channel() as channel:
            if known:
                _delete_wheel(channel, name, known)
            _declare_wheel(connection, channel, name, card, shape)
            _publish_tokens(channel, publisher, name, card, shape, taken=not first)
        reader.read()
        card = replace(card, ready=True)
        reader.replace(publisher, card)
    log.info("event=budget_made budget=%r wheel=%d numbers=%r", name, card.generation, spoken(numbers))
    return card


def terms_of(name: str, numbers: dict[str, Any]) -> Terms:
    """The budget with the numbers of a card."""
    return Terms(name, **numbers)


@contextmanager
def _publisher(connection: Connection, name: str) -> Iterator[Publisher]:
    """A publisher with its own connection: an alarm must not stop takes."""
    with connect(connection.uri, name=f"leash budget {name}") as own:
        yield Publisher(own)


def _declare_wheel(connection: Connection, channel: Channel, name: str, card: Card, shape: Shape) -> None:
    wheel, cooling = wheel_queue(name, card.generation), cooling_queue(name, card.generation)
    lasting = connection.version >= DELAYED_FROM
    kind = "quorum" if lasting else "classic"
    unlimited = {"x-delivery-limit": -1} if lasting else {}
    if card.form == "delayed":
        delay = {"x-delayed-retry-min": shape.period, "x-delayed-retry-max": shape.period}
        topology.declare_queue(
            channel, wheel, kind=kind, arguments={"x-delayed-retry-type": "failed", **delay, **unlimited}
        )
    elif card.form == "cooling":
        topology.declare_queue(channel, wheel, arguments=_to(cooling))
        topology.declare_queue(channel, cooling, arguments={"x-message-ttl": shape.period, **_to(wheel)})
    else:
        topology.declare_queue(channel, wheel, kind=kind, arguments=unlimited)
    if card.form != "held":
        topology.declare_queue(channel, turn_queue(name, card.generation), kind=kind, arguments=unlimited)


def _to(queue: str) -> dict[str, str]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def _publish_tokens(
    channel: Channel, publisher: Publisher, name: str, card: Card, shape: Shape, taken: bool
) -> None:
    """Publish all tokens. Those of a cooling wheel are transient: a crash could double durable ones."""
    wheel = wheel_queue(name, card.generation)
    lasting = Properties(delivery_mode=1 if card.form == "cooling" else 2)
    target = cooling_queue(name, card.generation) if taken and card.form == "cooling" else wheel
    bodies = [f"{at} {worth}".encode() for at, worth in enumerate(shape.worths)]
    publisher.publish([Outgoing(body, "", target, lasting, mandatory=True) for body in bodies])
    if card.form != "held":
        turn = turn_queue(name, card.generation)
        publisher.publish([Outgoing(b"turn", "", turn, LASTING, mandatory=True)])
    if taken and card.form == "delayed":
        _take_all(channel, wheel, len(bodies))


def _take_all(channel: Channel, wheel: str, count: int) -> None:
    channel.qos(0)
    tag = channel.consume(wheel)
    while count:
        batch = channel.deliveries(30.0)
        if batch is None:
            raise BudgetError(f"{count} new tokens did not come out of {wheel!r}: try again")
        for each in batch.tags:
            channel.reject(each)
        count -= len(batch)
    channel.cancel(tag)


def _delete_wheel(channel: Channel, name: str, generation: int) -> None:
    for queue in (wheel_queue, cooling_queue, turn_queue):
        topology.delete_queue(channel, queue(name, generation))
