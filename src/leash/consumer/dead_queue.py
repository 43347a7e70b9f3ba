"""Parked messages: look at them, send them back to work, or drop them.

Looking takes messages and returns them: to their places in classic queues, to the end of quorum queues.
Sending back publishes with a confirm and then acks, so a crash between the two leaves a copy in both queues
and loses none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pamqp.commands import Basic

from leash.amqp import (
    Channel,
    Connection,
    Outgoing,
    Publisher,
    delivery_limit,
    salvage_properties,
    with_headers,
)
from leash.amqp.last_acks import AT_ONCE, settled
from leash.amqp.publish import refused
from leash.amqp.queue_traits import traits
from leash.amqp.topology import purge_queue, state
from leash.amqp.wire import ContentEvent
from leash.consumer.copies import ERROR, FROM, TRACE, dead_queue
from leash.consumer.message import EXCHANGE, ROUTING_KEY, TRIES
from leash.errors import NotFound, Rejected
from leash.management import Management
from leash.wording import counted

PREFIX = dead_queue("")
_LOT = 100  # messages published and then acked together

OURS = (TRIES, EXCHANGE, ROUTING_KEY, ERROR, TRACE, FROM, delivery_limit.RESCUED, *delivery_limit.COUNTS)


@dataclass(frozen=True, slots=True)
class Parked:
    """A message in a dead queue."""

    body: bytes
    headers: Mapping[str, Any]

    @property
    def error(self) -> str:
        return str(self.headers.get(ERROR, "not said"))

    @property
    def traceback(self) -> str:
        return str(self.headers.get(TRACE, ""))

    @property
    def tries(self) -> int | None:
        return self.headers.get(TRIES)

    @property
    def address(self) -> str:
        """Where it was published first."""
        exchange = str(self.headers.get(EXCHANGE, ""))
        return f"{exchange or '(default exchange)'} {self.headers.get(ROUTING_KEY, '?')}"

    @property
    def others(self) -> dict[str, Any]:
        """The headers that the publisher set."""
        return {name: value for name, value in self.headers.items() if name not in OURS}


def plain(name: str) -> str:
    """The work queue's name, given its own or its dead queue's."""
    return name.removeprefix(PREFIX)


def known(management: Management, vhost: str) -> list[str]:
    """The work queues that have a dead queue; only the management plugin can list queues."""
    listed = management.ask("GET", f"/api/queues/{quote(vhost, safe='')}?columns=name")
    return sorted(plain(str(each["name"])) for each in listed if str(each["name"]).startswith(PREFIX))


def count(connection: Connection, name: str) -> int:
    """How many are parked."""
    with connection.channel() as channel:
        return _there(channel, name)


def _there(channel: Channel, name: str) -> int:
    try:
        return state(channel, dead_queue(plain(name))).ready
    except NotFound:
        raise NotFound(404, f"nothing was ever parked for {plain(name)!r}") from None


def look(connection: Connection, name: str, limit: int) -> list[Parked]:
    """The first `limit` messages, which stay parked."""
    with connection.channel() as channel:
        taken = list(_take(channel, name, limit))
        _give_back(channel, connection, name, taken)
        return [_parked(event) for event in taken]


def _give_back(channel: Channel, publishing: Connection, name: str, taken: list[ContentEvent]) -> None:
    """Return messages; up to RabbitMQ 4.2 that counts towards a limit: see `leash.amqp.delivery_limit`."""
    counts = [delivery_limit.delivery_count(event.properties) for event in taken]
    if any(counts):
        queue = dead_queue(plain(name))
        limit = delivery_limit.limit_of(traits(channel.connection, queue), channel.connection.version)
        danger = delivery_limit.danger(limit)
        again = [event for event, count in zip(taken, counts, strict=True) if count >= danger]
        if again:
            with Publisher(publishing) as publisher:
                publisher.publish(delivery_limit.copy(queue, event.body, event.properties) for event in again)
            for event in again:
                channel.ack(_tag(event))
            _settle(channel, queue, len(again))
    channel.nack(0, multiple=True)  # all that are not acked yet


def _settle(channel: Channel, queue: str, acks: int) -> None:
    if acks > AT_ONCE:  # each of a message that was got on its own
        settled([(channel, queue)])


def _take(channel: Channel, name: str, limit: int) -> Iterator[ContentEvent]:
    for _ in range(limit):
        event = channel.get(dead_queue(plain(name)))
        if event is None:
            return
        yield event


def _tag(event: ContentEvent) -> int:
    assert isinstance(event.method, Basic.GetOk)
    return event.method.delivery_tag or 0


def _parked(event: ContentEvent) -> Parked:
    return Parked(event.body, salvage_properties(event.properties).headers or {})


def send_back(connection: Connection, publishing: Connection, name: str, limit: int | None = None) -> int:
    """Publish parked messages to their queue again as if they had never failed; returns how many. Stops after
    the number that is parked now, since messages that fail again are parked again. Raises Rejected when the
    queue takes no more; those that it took have left the dead queue."""
    target = plain(name)
    there = count(connection, name)
    _require(connection, target)
    left = there if limit is None else min(limit, there)
    moved = 0
    with connection.channel() as channel, Publisher(publishing) as publisher:
        while left > moved and (lot := list(_take(channel, name, min(_LOT, left - moved)))):
            copies = [_fresh(event, target) for event in lot]
            try:
                publisher.publish(copies)
            except Rejected as error:
                moved += _keep_refused(channel, publishing, name, lot, refused(copies, error.messages))
                sent = counted(moved, "message")
                text = f"{sent} sent back to {target!r}, {there - moved} stay parked: {error}"
                raise type(error)(text, error.messages) from error
            channel.ack(_tag(lot[-1]), multiple=True)
            moved += len(lot)
        _settle(channel, dead_queue(target), moved)
        channel.nack(0, multiple=True)
    return moved


def _require(connection: Connection, target: str) -> None:
    """Asked before anything is taken: whatever comes back without a rescue is closer to being dropped."""
    with connection.channel() as channel:
        try:
            state(channel, target)
        except NotFound:
            raise NotFound(404, f"queue {target!r} does not exist, so nothing was sent back") from None


def _keep_refused(
    channel: Channel, publishing: Connection, name: str, lot: list[ContentEvent], refused: list[bool]
) -> int:
    """Ack those that were published; returns how many."""
    taken = [event for event, no in zip(lot, refused, strict=True) if not no]
    for event in taken:
        channel.ack(_tag(event))
    _settle(channel, dead_queue(plain(name)), len(taken))
    _give_back(channel, publishing, name, [event for event, no in zip(lot, refused, strict=True) if no])
    return len(taken)


def _fresh(event: ContentEvent, target: str) -> Outgoing:
    """The message as published, plus the headers that show a handler its first address."""
    changes: dict[str, Any] = {TRIES: 0, **dict.fromkeys([ERROR, TRACE, FROM, *delivery_limit.COUNTS])}
    return Outgoing(event.body, "", target, with_headers(event.properties, changes), mandatory=True)


def key(event: ContentEvent) -> str:
    """What a message is picked by: the same for messages that are alike to the last byte, and for the copy
    that a rescue made of one.
    """
    told = salvage_properties(event.properties)
    added = (*delivery_limit.COUNTS, delivery_limit.RESCUED)
    headers = {name: value for name, value in (told.headers or {}).items() if name not in added}
    return hashlib.sha256(
        repr((event.body, sorted(headers.items(), key=str), told.message_id)).encode()
    ).hexdigest()[:16]


def look_keyed(connection: Connection, name: str, limit: int) -> list[tuple[str, Parked]]:
    """As `look`, each with the key by which `pick` finds it again."""
    with connection.channel() as channel:
        taken = list(_take(channel, name, limit))
        _give_back(channel, connection, name, taken)
        return [(key(event), _parked(event)) for event in taken]


def pick(
    connection: Connection, publishing: Connection, name: str, keys: Collection[str], retry: bool
) -> int:
    """Send back those that have one of these keys, or drop them; the others stay. Returns how many. As with
    `send_back`, each is published with a confirm before it leaves the dead queue.
    """
    wanted, target = set(keys), plain(name)
    if retry:
        _require(connection, target)
    with connection.channel() as channel, Publisher(publishing) as publisher:
        taken = list(_take(channel, name, _there(channel, name)))
        chosen = [event for event in taken if key(event) in wanted]
        others = [event for event in taken if key(event) not in wanted]
        if retry and chosen:
            copies = [_fresh(event, target) for event in chosen]
            try:
                publisher.publish(copies)
            except Rejected as error:
                stay = [*refused(copies, error.messages), *[True] * len(others)]
                moved = _keep_refused(channel, publishing, name, [*chosen, *others], stay)
                text = f"{counted(moved, 'message')} sent back to {target!r}, the others stay parked: {error}"
                raise type(error)(text, error.messages) from error
        for event in chosen:
            channel.ack(_tag(event))
        _settle(channel, dead_queue(target), len(chosen))
        _give_back(channel, publishing, name, others)
        return len(chosen)


def purge(connection: Connection, name: str) -> int:
    """Drop all parked messages; returns how many."""
    with connection.channel() as channel:
        _there(channel, name)
        return purge_queue(channel, dead_queue(plain(name)))
