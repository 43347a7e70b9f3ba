"""Queues for tests of delivery limits."""

from __future__ import annotations

import re

from leash.amqp import Channel
from leash.amqp.topology import declare_queue, state
from tests.consumer.kit import publish, until


def fill(channel: Channel, name: str, poison: int | None, count: int = 40, **arguments: object) -> set[str]:
    """A default quorum queue with numbered messages, one of them poison; returns the names of the others."""
    declare_queue(channel, name, kind="quorum", arguments=arguments)
    bodies = [b"poison" if number == poison else b"%d" % number for number in range(count)]
    publish(channel, name, bodies)
    return {f"{name} {number}" for number in range(count) if number != poison}


def until_it_comes(channel: Channel, queue: str) -> bytes:
    came: list[bytes] = []
    until(lambda: came or ((got := channel.get(queue)) is not None and came.append(got.body)))  # type: ignore[func-returns-value]
    return came[0]


def parked(channel: Channel, queue: str) -> list[tuple[bytes, str]]:
    """Bodies and reasons in a queue's dead queue."""
    found = []
    with channel.connection.channel() as taker:
        while (came := taker.get(f"leash.dead.{queue}")) is not None:
            reason = re.search(rb"x-leash-errorS....(.*?)(?:\x11x-leash|$)", came.properties, re.DOTALL)
            found.append((came.body, reason.group(1).decode() if reason else ""))
    return found


def empty(channel: Channel, queues: list[str]) -> bool:
    return not any(state(channel, queue).ready for queue in queues)
