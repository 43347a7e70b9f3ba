"""Declares a layout: completely, or without leaving anything new behind.

Every step may be done twice. No messages flow until the last steps, the bindings of the hash exchange. These
are made in the order of the ring, because that order decides where a key goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from leash.amqp import Channel, Connection, connect, topology
from leash.errors import AmqpError, ConnectionLost, NotFound, PreconditionFailed, TopologyError
from leash.partitions import layout_store
from leash.partitions.layout import Layout

PLUGIN = "rabbitmq_consistent_hash_exchange"
LIMITED = "x-delivery-limit"


class Undo:
    """Remembers what is about to be created, in order to delete it after an error."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.exchanges: list[str] = []
        self.queues: list[str] = []
        self.stream = ""

    def queue(self, name: str) -> None:
        """Note a queue, unless it exists already."""
        with suppress(NotFound), self._connection.channel() as channel:
            topology.state(channel, name)
            return
        self.queues.append(name)

    @contextmanager
    def on_error(self) -> Iterator[None]:
        """Delete what was created, on a separate connection: a refusal may have ended the other."""
        try:
            yield
        except Exception:
            with suppress(AmqpError), connect(self._connection.uri, name="leash undo") as again:
                self._run(again)
            raise

    def _run(self, connection: Connection) -> None:
        for name in self.exchanges:
            with suppress(AmqpError), connection.channel() as channel:
                topology.delete_exchange(channel, name)
        for name in self.queues:
            with suppress(AmqpError), connection.channel() as channel:
                if name == self.stream or not topology.state(channel, name).ready:
                    topology.delete_queue(channel, name)


def exchanges(layout: Layout) -> list[str]:
    """All exchanges of a layout, the hash exchange first."""
    if layout.shape == "direct":
        return [layout.name]
    return [layout.name, layout.moving, *map(layout.slot, sorted(layout.order))]


def exists(connection: Connection, exchange: str) -> bool:
    """True if there is such an exchange."""
    with suppress(NotFound), connection.channel() as channel:
        topology.check_exchange(channel, exchange)
        return True
    return False


def create(connection: Connection, layout: Layout, undo: Undo) -> None:
    """Declare a new layout; an error if one of its exchanges exists already."""
    for name in exchanges(layout):
        if exists(connection, name):
            raise TopologyError(
                f"exchange {name!r} exists, and Leash did not make it: choose another name, or delete it"
            )
    undo.stream = layout_store.stream(layout.name)
    undo.queue(undo.stream)
    with connection.channel() as channel, _no_other("queue", undo.stream):
        layout_store.begin(channel, layout.name)
    undo.exchanges += exchanges(layout)
    for queue in layout.queues:
        undo.queue(queue)


def declare(connection: Connection, layout: Layout) -> None:
    """Declare missing exchanges, queues and bindings; an error if something else has their names."""
    kind, _, what = layout.by.partition(":")
    with connection.channel() as channel:
        _declare_hash(channel, layout.name, {f"hash-{kind}": what} if what else {})
        if layout.shape == "slots":
            _declare_slots(channel, layout)
    for queue in layout.queues:
        declare_queue(connection, layout, queue)
    with connection.channel() as channel:
        if layout.shape == "direct":
            _bind_queues(channel, layout)
        else:
            _bind_slots(channel, layout)


def declare_queue(connection: Connection, layout: Layout, queue: str) -> None:
    """Declare one queue of the layout; without a delivery limit, since gates must never be dropped."""
    arguments = dict(layout.arguments)
    if layout.ordered:
        arguments["x-single-active-consumer"] = True
    if layout.kind == "quorum" and LIMITED not in arguments and connection.version >= (4,):
        try:
            with connection.channel() as channel:
                topology.declare_queue(channel, queue, kind=layout.kind, arguments={**arguments, LIMITED: -1})
            return
        except PreconditionFailed as error:
            if (
                LIMITED not in error.text
            ):  # made by an earlier version of Leash or of the broker: used as it is
                raise _another("queue", queue, error) from error
    with connection.channel() as channel, _no_other("queue", queue):
        topology.declare_queue(channel, queue, kind=layout.kind, arguments=arguments)


def _declare_hash(channel: Channel, name: str, arguments: dict[str, str]) -> None:
    with _no_other("exchange", name):
        try:
            topology.declare_exchange(channel, name, kind="x-consistent-hash", arguments=arguments)
        except (
            ConnectionLost,
            PreconditionFailed,
        ) as error:  # RabbitMQ 3 closes the connection, 4 the channel
            if "exchange type 'x-consistent-hash'" not in str(error):
                raise
            raise TopologyError(
                f"the broker has no x-consistent-hash exchanges: run `rabbitmq-plugins enable {PLUGIN}` there"
            ) from error


def _declare_slots(channel: Channel, layout: Layout) -> None:
    with _no_other("exchange", layout.moving):
        topology.declare_exchange(channel, layout.moving, kind="fanout")
    for slot in sorted(layout.order):
        name = layout.slot(slot)
        with _no_other("exchange", name):
            topology.declare_exchange(
                channel, name, kind="fanout", arguments={"alternate-exchange": layout.moving}
            )


def _bind_slots(channel: Channel, layout: Layout) -> None:
    taken = () if layout.taking is None else layout.taking.slots
    for slot, owner in enumerate(layout.owners):
        if slot not in taken:  # those are moving, and the move binds them
            topology.bind_queue(channel, owner, layout.slot(slot))
    for slot in layout.order:
        topology.bind_exchange(channel, layout.slot(slot), layout.name, "1")


def _bind_queues(channel: Channel, layout: Layout) -> None:
    """Bind new queues first, so that the ring is never empty; unbinding shifts all later buckets."""
    leaving = [queue for queue, _ in layout.leaving]
    for queue, weight in layout.weights:
        if queue not in leaving:
            topology.bind_queue(channel, queue, layout.name, str(weight))
    for queue, weight in layout.leaving:
        topology.unbind_queue(channel, queue, layout.name, str(weight))
    for queue, weight in layout.weights:
        topology.bind_queue(channel, queue, layout.name, str(weight))


@contextmanager
def _no_other(what: str, name: str) -> Iterator[None]:
    try:
        yield
    except PreconditionFailed as error:
        raise _another(what, name, error) from error


def _another(what: str, name: str, error: PreconditionFailed) -> TopologyError:
    reason = error.text.removeprefix("PRECONDITION_FAILED - ")
    return TopologyError(
        f"{what} {name!r} exists and is something else ({reason}): choose another name, or delete it"
    )
