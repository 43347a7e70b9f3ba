"""Moves slots to another queue while messages flow: nothing lost, nothing repeated, every key in order.

    1  a gate G at the end of the target queue          its consumer stops there
    2  bind the target to `.moving`                     the slots' alternate exchange
    3  unbind the old queues from their slots           each the atomic switch: from now on by `.moving`
    4  wait                                             for messages routed before that have not arrived yet
    5  a marker M at the end of each old queue          when all ahead of it is settled, G opens
    6  bind the target to the slots                     again a switch, to the same queue
    7  unbind the target from `.moving`

Every step may be done twice, and all of them again: a move that a crash interrupted is on record, and the
next process does it from its beginning. A second G or M has the first one's number. Moves cannot deadlock: in
every queue the marks of an earlier move are ahead of those of a later one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from leash.amqp import Connection, Publisher, topology
from leash.partitions import gates, layout_store
from leash.partitions.layout import Layout, Taking

SETTLE = 1.0
"""Seconds between the switch and the marker."""

STEPS = ("written", "gate", "aside", "unbound", "waited", "marker", "bound", "done")


class Mover(NamedTuple):
    """What a move needs. `reached` is called after every step."""

    connection: Connection
    publisher: Publisher
    settle: float = SETTLE
    reached: Callable[[str], None] = lambda _: None


def move(mover: Mover, layout: Layout, target: str, slots: tuple[int, ...]) -> Layout:
    """Let `target` take over slots; returns the new layout."""
    number = layout.moves + 1
    begun = replace(layout, moves=number, taking=Taking(number, target, slots))
    layout_store.remember(mover.publisher, begun)
    mover.reached("written")
    return finish(mover, begun)


def finish(mover: Mover, layout: Layout) -> Layout:
    """Carry out the recorded move, from its beginning."""
    assert layout.taking is not None
    number, target, slots = layout.taking
    sources = layout.sources
    with mover.connection.channel() as channel:
        if layout.ordered:
            mover.publisher.publish([gates.gate(layout.name, number, sources, target)])
        mover.reached("gate")
        topology.bind_queue(channel, target, layout.moving)
        mover.reached("aside")
        for slot in slots:
            topology.unbind_queue(channel, layout.owners[slot], layout.slot(slot))
        mover.reached("unbound")
        time.sleep(mover.settle)
        mover.reached("waited")
        if layout.ordered:
            mover.publisher.publish([gates.marker(layout.name, number, queue) for queue in sources])
        mover.reached("marker")
        for slot in slots:
            topology.bind_queue(channel, target, layout.slot(slot))
        mover.reached("bound")
        topology.unbind_queue(channel, target, layout.moving)
    owners = tuple(target if slot in slots else owner for slot, owner in enumerate(layout.owners))
    left = {**dict(layout.left), **dict.fromkeys(sources, number)}
    after = replace(layout, owners=owners, left=tuple(left.items()), taking=None)
    done = layout_store.remember(mover.publisher, after)
    mover.reached("done")
    return done
