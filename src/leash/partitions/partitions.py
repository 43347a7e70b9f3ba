"""The front door: describe the partitions, see the difference, apply it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

from leash.amqp import Connection, Publisher, connect, topology
from leash.amqp.topology import KINDS
from leash.amqp.uri import Uri
from leash.errors import ConfigError, TopologyError, Unroutable
from leash.partitions import gates, layout_store
from leash.partitions.declare import Undo, create, declare, declare_queue, exchanges, exists
from leash.partitions.layout import Layout, Shape
from leash.partitions.moves import SETTLE, Mover, finish, move
from leash.partitions.plan import Plan, compare
from leash.partitions.ring_check import actual, stated
from leash.policies.ring import HashRing
from leash.policies.ring.hash_input import check_by

SLOTS = 120
"""Divides evenly by 1 to 6, 8, 10 and 12, the usual numbers of queues."""
MOST_SLOTS = 1000
HAS_STREAMS = (3, 9)
_PATIENCE = 30.0


class Partitions:
    """One flow of messages over several queues, by key; see docs/partitions.md.

    Arguments:
        name: The exchange to publish to. The layout is stored beside it, in `<name>.layout`.
        weights: Queues and their shares: `{"orders.0": 1, "orders.1": 2}`.
        by: What the key is: "routing_key" (the default), "header:NAME" or "property:NAME" (message_id,
            correlation_id or timestamp).
        layout: "slots" (the default) can be resized safely; "direct" binds the queues to the hash exchange
            itself.
        slots: The number of slots, the units in which keys move. Default: 120. Only for "slots".
        kind: The queues' type, "classic" (the default) or "quorum".
        ordered: One consumer at a time for each queue, and gates when slots move, so that keys stay in
            order. Default: True.
        arguments: More arguments for declaring the queues, such as `{"x-max-length": 100_000}`. Default:
            none.
    """

    def __init__(
        self,
        name: str,
        weights: Mapping[str, int],
        by: str = "routing_key",
        *,
        layout: Shape = "slots",
        slots: int = SLOTS,
        kind: str = "classic",
        ordered: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= 200:
            raise ConfigError("name", name, "a name of 1 to 200 bytes")
        if isinstance(by, list | tuple):
            raise ConfigError(
                "by", by, "one of them: an exchange hashes by a header or by a property, not both"
            )
        if layout not in get_args(Shape):
            raise ConfigError("layout", layout, "'slots' or 'direct'")
        if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= MOST_SLOTS:
            raise ConfigError("slots", slots, f"a whole number from 1 to {MOST_SLOTS}")
        if kind not in KINDS[:2]:
            raise ConfigError("kind", kind, "'classic' or 'quorum'")
        if not isinstance(weights, Mapping) or not weights:
            raise ConfigError("weights", weights, "queues and their weights, such as {'orders.0': 1}")
        check_by(by)
        self.name = name
        self._asked = Layout(
            name,
            layout,
            HashRing(weights).bindings,
            by,
            kind,
            ordered,
            dict(arguments or {}),
            order=tuple(range(slots)) if layout == "slots" else (),
        )
        if layout == "slots":
            compare(None, self.asked_on((3, 13)))  # report wrong weights now

    def __repr__(self) -> str:
        return f"<Partitions {self.name!r}: {dict(self._asked.weights)}>"

    def asked_on(self, version: tuple[int, ...]) -> Layout:
        """The layout asked for, as a broker of this version routes it."""
        return replace(self._asked, version=version)

    # --- looking ---

    def layout(self, uri: str | Uri) -> Layout:
        """The current layout."""
        return read(uri, self.name)

    def plan(self, uri: str | Uri) -> Plan:
        """The difference between the current layout and the one asked for; changes nothing."""
        with connect(uri, name=f"leash partitions {self.name}") as connection:
            return self._plan(connection)

    def _plan(self, connection: Connection) -> Plan:
        if connection.version < HAS_STREAMS:
            raise TopologyError("partitions need RabbitMQ 3.9 or newer: their layout is stored in a stream")
        known = layout_store.recall(connection, self.name).layout
        foreign = known is None and exists(connection, self.name)
        return compare(known, self.asked_on(connection.version), foreign)

    # --- doing ---

    def declare(self, uri: str | Uri) -> Layout:
        """Declare the partitions if they do not exist. Moves no key: to change weights, use `apply`.

        Many processes may call this when they start: each waits for the others.
        """
        with _alone(uri, self.name, _PATIENCE) as (connection, publisher):
            plan = self._plan(connection)
            if plan.before is not None and plan.before.weights != plan.after.weights:
                raise TopologyError(
                    f"partitions {self.name!r} exist with other weights, {dict(plan.before.weights)}: "
                    "look at plan(), then apply()"
                )
            return self._apply(Mover(connection, publisher), plan)

    def apply(
        self,
        uri: str | Uri,
        plan: Plan | None = None,
        *,
        settle: float = SETTLE,
        reached: Callable[[str], None] = lambda _: None,
    ) -> Layout:
        """Declare the partitions, or change them. With a plan: only if it is still up to date."""
        with _alone(uri, self.name) as (connection, publisher):
            now = self._plan(connection)
            if plan is not None and (plan.before, plan.after) != (now.before, now.after):
                raise TopologyError(f"partitions {self.name!r} changed since that plan: look again")
            return self._apply(Mover(connection, publisher, settle, reached), now)

    def _apply(self, mover: Mover, plan: Plan) -> Layout:
        if plan.before is None:
            return self._create(mover, plan.after)
        layout = plan.before
        declare(mover.connection, layout)  # finish an interrupted change, restore what was deleted
        if not layout.ready:
            layout = layout_store.remember(mover.publisher, replace(layout, ready=True, leaving=()))
        if layout.taking is not None:
            layout = finish(mover, layout)
        if layout.weights != plan.after.weights:
            layout = self._bring(mover, layout, plan.after)
        for target, slots in plan.takeovers.items():
            layout = move(mover, layout, target, slots)
        return layout

    def _create(self, mover: Mover, layout: Layout) -> Layout:
        undo = Undo(mover.connection)
        with undo.on_error():
            create(mover.connection, layout, undo)
            layout_store.remember(mover.publisher, layout)
            mover.reached("begun")
            declare(mover.connection, layout)
            mover.reached("declared")
            return layout_store.remember(mover.publisher, replace(layout, ready=True))

    def _bring(self, mover: Mover, layout: Layout, after: Layout) -> Layout:
        """Add queues and change weights; in a direct layout, that is all."""
        undo = Undo(mover.connection)
        with undo.on_error():
            for queue in after.queues:
                undo.queue(queue)
                declare_queue(mover.connection, layout, queue)
        mover.reached("queues")
        if layout.shape == "slots":
            known = replace(layout, weights=after.weights, retired=after.retired)
            return layout_store.remember(mover.publisher, known)
        leaving = tuple(pair for pair in layout.weights if pair not in after.weights)
        begun = layout_store.remember(mover.publisher, replace(after, ready=False, leaving=leaving))
        mover.reached("begun")
        declare(mover.connection, begun)
        mover.reached("declared")
        return layout_store.remember(mover.publisher, after)

    def delete_retired(self, uri: str | Uri) -> list[str]:
        """Delete the retired queues that are empty and finished; returns which.

        Finished: nobody consumes them, or Leash's consumers have settled everything from before the last
        move.
        """
        with _alone(uri, self.name) as (connection, publisher):
            known = layout_store.recall(connection, self.name)
            layout = known.layout or layout_store.need(connection, self.name)
            left = dict(layout.left)
            gone = []
            with connection.channel() as channel:
                for queue in layout.retired:
                    state = topology.state(channel, queue)
                    passed = (left.get(queue), queue) in known.passed
                    if not state.ready and (passed or not state.consumers):
                        topology.delete_queue(channel, queue)
                        gone.append(queue)
            kept = tuple(queue for queue in layout.retired if queue not in gone)
            layout_store.remember(publisher, replace(layout, retired=kept))
            return gone

    def delete(self, uri: str | Uri, *, queues: bool = False) -> None:
        """Delete the exchanges and the stored layout; with `queues`, the queues and their messages too."""
        with _alone(uri, self.name) as (connection, _):
            layout = layout_store.need(connection, self.name)
            with connection.channel() as channel:
                for name in exchanges(layout):
                    topology.delete_exchange(channel, name)
                for queue in layout.all_queues if queues else ():
                    topology.delete_queue(channel, queue)
                topology.delete_queue(channel, layout_store.stream(self.name))


def check(uri: str | Uri, name: str, *, state: str | None = None, fix: bool = False) -> tuple[Layout, Layout]:
    """The stored layout and the broker's actual one; `fix` stores the latter.

    Probes find the order of the slots; for a direct layout, `state` must give it, as
    `rabbitmq-diagnostics consistent_hash_exchange_ring_state` prints it.
    """
    with _alone(uri, name) as (connection, publisher):
        known = layout_store.need(connection, name)
        actual_layout = actual(connection, known) if state is None else stated(known, state)
        if fix and actual_layout != known:
            layout_store.remember(publisher, actual_layout)
        return known, actual_layout


def remind(uri: str | Uri, name: str) -> list[tuple[int, str]]:
    """Publish again the markers that were not passed, to the end of their queues; returns which.

    A purge or a time to live can remove a marker; then a gate waits forever. A second one is harmless.
    """
    with _alone(uri, name) as (connection, publisher):
        known = layout_store.recall(connection, name)
        layout = known.layout or layout_store.need(connection, name)
        if layout.taking is not None:
            raise TopologyError(f"partitions {name!r} are half-way through a change: apply it first")
        for number, queue in known.awaited:
            try:
                publisher.publish([gates.marker(name, number, queue)])
            except Unroutable:  # the queue is gone, with everything ahead of its marker
                layout_store.passed(publisher, name, number, queue)
        return list(known.awaited)


@contextmanager
def _alone(
    uri: str | Uri, name: str, patience: float | None = None
) -> Iterator[tuple[Connection, Publisher]]:
    with (
        connect(uri, name=f"leash partitions {name}") as connection,
        layout_store.alone(connection, name, patience),
        Publisher(connection) as publisher,
    ):
        yield connection, publisher


def read(uri: str | Uri, name: str) -> Layout:
    """The layout of existing partitions."""
    with connect(uri, name=f"leash partitions {name}") as connection:
        return layout_store.need(connection, name)
