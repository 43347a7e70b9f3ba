"""Tenants: one flow of messages, split by who sent them, so that a noisy one waits for itself.

    publishers -> exchange `jobs` -> a pinned key: its own lane
                        |
                        +-> all others, as the alternate exchange: `jobs.hash`, a hash exchange -> 64 lanes

What is pinned, and which queues are adopted, is stored with the layout of the hash exchange, in the stream
`jobs.hash.layout`. Lanes have no order, so a key that moves needs no gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from leash.amqp import Channel, Connection, Publisher, connect, topology
from leash.amqp.queue_traits import traits
from leash.amqp.topology import KINDS
from leash.amqp.uri import Uri
from leash.errors import BrokerError, ConfigError, NotFound, PreconditionFailed, TopologyError
from leash.fleet.tenants.move_bindings import Binding, rewire
from leash.fleet.tenants.move_messages import move
from leash.management import Management
from leash.partitions import Partitions, layout_store
from leash.partitions.declare import declare_queue, exists
from leash.partitions.layout import Layout
from leash.policies.exact_numbers import whole
from leash.policies.ring.hash_input import check_by

MOST_LANES, MOST_OWN = 1000, 100
_PATIENCE = 30.0
_PINS, _ADOPTED, _OWN = "pins", "adopted", "own"


class Adopted(NamedTuple):
    """What `adopt` did: bindings turned over, bindings that stay, and why, if none could be looked at."""

    moved: list[Binding]
    stay: list[Binding]
    trouble: str


class State(NamedTuple):
    """What is stored about tenants."""

    tenants: Tenants
    pins: dict[str, str]
    """Isolated keys, and their lanes."""
    adopted: tuple[str, ...]
    """Queues whose messages are moved to the lanes."""
    layout: Layout

    def lane(self, key: str) -> str:
        """The lane that a message of this tenant goes to."""
        return self.pins.get(key) or self.layout.route(key)


class Tenants:
    """One flow of messages in lanes, by tenant, so that all tenants are served fairly; see docs/tenants.md.

    Publish to the exchange `name`, and consume with `Consumer(tenants=...)`.

    Arguments:
        name: The exchange to publish to. The lanes are queues called `<name>.lane-000` and so on.
        by: What tells the tenant: "header:NAME" or "routing_key".
        lanes: How many lanes the tenants are hashed to. Default: 64.
        own: How many tenants can be isolated at a time, each in a lane of its own. Default: 8.
        kind: The lanes' type, "classic" (the default) or "quorum".
        arguments: More arguments for declaring the lanes, such as `{"x-max-length": 100_000}`. Default:
            none.
    """

    def __init__(
        self,
        name: str,
        by: str,
        lanes: int = 64,
        *,
        own: int = 8,
        kind: str = "classic",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= 180:
            raise ConfigError("name", name, "a name of 1 to 180 bytes")
        if not isinstance(by, str) or by.startswith("property:"):
            raise ConfigError("by", by, "'header:NAME' or 'routing_key'")
        if kind not in KINDS[:2]:
            raise ConfigError("kind", kind, "'classic' or 'quorum'")
        self.name = name
        self.by = check_by(by)
        self.kind = kind
        self.arguments = dict(arguments or {})
        self.lanes = [f"{name}.lane-{at:03}" for at in range(whole("lanes", lanes, 1, MOST_LANES))]
        self.own = _own(name, whole("own", own, 0, MOST_OWN))

    def __repr__(self) -> str:
        return f"<Tenants {self.name!r} by {self.by}: {len(self.lanes)} lanes, {len(self.own)} own>"

    @property
    def queues(self) -> list[str]:
        """All lanes, shared ones first."""
        return [*self.lanes, *self.own]

    @property
    def ring(self) -> str:
        """The hash exchange."""
        return f"{self.name}.hash"

    @property
    def header(self) -> str | None:
        """The header that tells the tenant; None: the routing key does."""
        return self.by.partition(":")[2] or None

    # --- making ---

    def declare(self, uri: str | Uri) -> None:
        """Declare the exchanges and the lanes, if they do not exist. Many processes may call this."""
        with connect(uri, name=f"leash tenants {self.name}") as connection:
            stored = layout_store.recall(connection, self.ring).layout
            if stored is not None and stored.beside:
                self.check(stored)
            elif stored is None and exists(connection, self.name):
                raise TopologyError(
                    f"exchange {self.name!r} exists, and Leash did not make it: "
                    "choose another name, or delete it"
                )
        self._partitions().declare(uri)
        with self._alone(uri, made=False) as (connection, publisher, layout):
            for queue in self.own:
                declare_queue(connection, layout, queue)
            with connection.channel() as channel:
                self._declare_front(channel)
                for key, queue in layout.beside.get(_PINS, {}).items():
                    self._bind(channel, queue, key)
            if not layout.beside:
                beside = {_OWN: len(self.own), _PINS: {}, _ADOPTED: []}
                layout_store.remember(publisher, replace(layout, beside=beside))

    def check(self, layout: Layout) -> None:
        """Raise if these are not the tenants that are stored."""
        asked = (self.by, len(self.lanes), len(self.own), self.kind, self.arguments)
        made = (layout.by, len(layout.queues), layout.beside[_OWN], layout.kind, dict(layout.arguments))
        for argument, value, present in zip(
            ("by", "lanes", "own", "kind", "arguments"), asked, made, strict=True
        ):
            if value != present:
                raise ConfigError(
                    argument, value, f"{present!r}, as tenants {self.name!r} were made; it cannot be changed"
                )

    def delete(self, uri: str | Uri, *, queues: bool = False) -> None:
        """Delete the exchanges and what is stored; with `queues`, the lanes and their messages too."""
        with self._alone(uri) as (connection, _, _), connection.channel() as channel:
            topology.delete_exchange(channel, self.name)
            for queue in self.own if queues else ():
                topology.delete_queue(channel, queue)
        self._partitions().delete(uri, queues=queues)

    def _partitions(self) -> Partitions:
        weights = dict.fromkeys(self.lanes, 1)
        return Partitions(
            self.ring,
            weights,
            self.by,
            layout="direct",
            kind=self.kind,
            ordered=False,
            arguments=self.arguments,
        )

    def _declare_front(self, channel: Channel) -> None:
        try:
            topology.declare_exchange(
                channel,
                self.name,
                kind="headers" if self.header else "direct",
                arguments={"alternate-exchange": self.ring},
            )
        except PreconditionFailed as error:
            reason = error.text.removeprefix("PRECONDITION_FAILED - ")
            raise TopologyError(
                f"exchange {self.name!r} exists and is something else ({reason}): "
                "choose another name, or delete it"
            ) from error

    # --- one tenant ---

    def isolate(self, uri: str | Uri, tenant: str) -> tuple[str, int]:
        """Give a tenant a lane of its own. Returns the lane, and how many waiting messages were moved.

        New messages go there at once. Those that wait in the shared lane are published again, its own to the
        new lane, those of the others to the end of the shared one.
        """
        _text(tenant)
        with self._alone(uri) as (connection, publisher, layout):
            pins = dict(layout.beside[_PINS])
            with connection.channel() as channel:
                if tenant not in pins:
                    pins[tenant] = self._free(channel, tenant, pins)
                    layout_store.remember(publisher, _with(layout, pins=pins))
                self._bind(channel, pins[tenant], tenant)
                shared = layout.route(tenant)
                waiting = topology.state(channel, shared).ready
            return pins[tenant], move(uri, shared, self.name, waiting)

    def release(self, uri: str | Uri, tenant: str) -> str:
        """Undo `isolate`: new messages go to the shared lane again. Returns the lane that it had.

        Consumers go on with what waits there.
        """
        with self._alone(uri) as (connection, publisher, layout):
            pins = dict(layout.beside[_PINS])
            if tenant not in pins:
                known = ", ".join(map(repr, pins)) or "no tenant"
                raise TopologyError(f"tenant {tenant!r} of {self.name!r} is not isolated: {known} is")
            with connection.channel() as channel:
                if self.header:
                    topology.unbind_queue(channel, pins[tenant], self.name, "", self._match(tenant))
                else:
                    topology.unbind_queue(channel, pins[tenant], self.name, tenant)
            lane: str = pins.pop(tenant)
            layout_store.remember(publisher, _with(layout, pins=pins))
            return lane

    def _free(self, channel: Channel, tenant: str, pins: Mapping[str, str]) -> str:
        """The lane with the fewest messages of those that no tenant has."""
        free = [queue for queue in self.own if queue not in pins.values()]
        if not free:
            used = f"release one of {', '.join(map(repr, pins))}" if pins else "they were made with own=0"
            raise TopologyError(f"tenants {self.name!r} have no free lane for {tenant!r}: {used}")
        return min(free, key=lambda queue: topology.state(channel, queue).ready)

    def _bind(self, channel: Channel, queue: str, tenant: str) -> None:
        if self.header:
            topology.bind_queue(channel, queue, self.name, "", self._match(tenant))
        else:
            topology.bind_queue(channel, queue, self.name, tenant)

    def _match(self, tenant: str) -> dict[str, str]:
        assert self.header
        return {"x-match": "all", self.header: tenant}

    # --- an existing queue ---

    def adopt(self, uri: str | Uri, queue: str, management: Management | None = None) -> Adopted:
        """Move an existing queue's messages to the lanes, from now on, without stopping its publishers.

        Every consumer of these tenants moves what comes to the queue. With the management plugin, what is
        bound to the queue is bound to the tenants' exchange instead, so that those messages need no moving.
        """
        if not isinstance(queue, str) or not queue:
            raise ConfigError("queue", queue, "a queue's name")
        if queue in self.queues:
            raise ConfigError("queue", queue, f"a queue that is no lane of {self.name!r}")
        with self._alone(uri) as (connection, publisher, layout):
            try:
                told = traits(connection, queue)
            except NotFound:
                raise TopologyError(f"queue {queue!r} does not exist: there is nothing to adopt") from None
            if told is not None and told.kind == "stream":
                raise TopologyError(f"queue {queue!r} is a stream: streams cannot be adopted")
            adopted = list(dict.fromkeys([*layout.beside[_ADOPTED], queue]))
            layout_store.remember(publisher, _with(layout, adopted=adopted))
            if management is None:
                return Adopted([], [], "the management plugin was not asked")
            try:
                return Adopted(*rewire(connection, management, queue, self.name), "")
            except BrokerError as error:
                return Adopted([], [], str(error))

    def unadopt(self, uri: str | Uri, queue: str) -> None:
        """Move no more messages from a queue. The queue stays, and so do bindings that were turned over."""
        with self._alone(uri) as (_, publisher, layout):
            adopted = [each for each in layout.beside[_ADOPTED] if each != queue]
            if len(adopted) == len(layout.beside[_ADOPTED]):
                known = ", ".join(map(repr, adopted)) or "none"
                raise TopologyError(f"queue {queue!r} is not adopted by {self.name!r}: those are {known}")
            layout_store.remember(publisher, _with(layout, adopted=adopted))

    # --- looking ---

    def state(self, uri: str | Uri) -> State:
        """What is stored."""
        return read(uri, self.name)

    @contextmanager
    def _alone(self, uri: str | Uri, made: bool = True) -> Iterator[tuple[Connection, Publisher, Layout]]:
        with (
            connect(uri, name=f"leash tenants {self.name}") as connection,
            layout_store.alone(connection, self.ring, _PATIENCE),
            Publisher(connection) as publisher,
        ):
            layout = need(connection, self.name, made)
            if made:
                self.check(layout)
            yield connection, publisher, layout


def read(uri: str | Uri, name: str) -> State:
    """Existing tenants."""
    with connect(uri, name=f"leash tenants {name}") as connection:
        layout = need(connection, name)
    made = Tenants(
        name,
        layout.by,
        len(layout.queues),
        own=layout.beside[_OWN],
        kind=layout.kind,
        arguments=layout.arguments,
    )
    return State(made, dict(layout.beside[_PINS]), adopted(layout), layout)


def need(connection: Connection, name: str, made: bool = True) -> Layout:
    """What is stored about tenants, or an error that says how to make them."""
    layout = layout_store.recall(connection, f"{name}.hash").layout
    if layout is None or (made and _OWN not in layout.beside):
        raise TopologyError(f"tenants {name!r} do not exist: make them with `leash tenants declare {name}`")
    return layout


def lanes_of(layout: Layout, name: str) -> list[str]:
    """All lanes of stored tenants."""
    return [*layout.queues, *_own(name, layout.beside[_OWN])]


def _own(name: str, count: int) -> list[str]:
    return [f"{name}.own-{at:02}" for at in range(count)]


def adopted(layout: Layout) -> tuple[str, ...]:
    """The queues whose messages are moved to the lanes."""
    return tuple(layout.beside.get(_ADOPTED, ()))


def _with(layout: Layout, **changes: object) -> Layout:
    return replace(layout, beside={**layout.beside, **changes})


def _text(tenant: object) -> None:
    if not isinstance(tenant, str) or not tenant:
        raise ConfigError("tenant", tenant, "text, as publishers write it: other values cannot be pinned")
