"""Slots move while messages flow, and whoever moves them may die at any step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leash.amqp import Connection, Outgoing, Publisher, connect, topology
from leash.errors import TopologyError
from leash.partitions import Partitions, gates, layout_store, read, remind
from leash.partitions.moves import STEPS
from tests.partitions.helpers import drain, landed, publish, random_keys, weights
from tests.partitions.mover import SETTLE, SLOTS, die_at

FOUR, FIVE = (Partitions("orders", weights(count), slots=SLOTS) for count in (4, 5))


class Flow:
    """Publishes numbered messages until it is stopped; `sent` says how many."""

    def __init__(self, uri: str) -> None:
        self.sent = 0
        self.error: Exception | None = None
        self._uri = uri
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        keys = random_keys(1000)
        try:
            with connect(self._uri) as connection, Publisher(connection) as publisher:
                while not self._stop.wait(0.005):
                    lot = range(self.sent, self.sent + 20)
                    publisher.publish(
                        Outgoing(b"%d" % n, "orders", keys[n % 1000], mandatory=True) for n in lot
                    )
                    self.sent += 20
        except Exception as error:
            self.error = error

    def stop(self) -> int:
        self._stop.set()
        self.thread.join()
        assert self.error is None, self.error
        return self.sent


@contextmanager
def flowing(uri: str) -> Iterator[Flow]:
    flow = Flow(uri)
    flow.thread.start()
    try:
        yield flow
    finally:
        flow._stop.set()
        flow.thread.join()


def controls(connection: Connection, queue: str) -> list[gates.Gate | gates.Marker | gates.Probe]:
    """The control messages that a queue holds, which stay there."""
    found = []
    with connection.channel() as channel:
        channel.consume(queue)
        while (batch := channel.deliveries(0.2)) is not None:
            found += [read for raw in batch.properties if (read := gates.read(raw)) is not None]
    return found


def test_a_resize_under_load_loses_nothing_and_repeats_nothing(uri: str, connection: Connection) -> None:
    FOUR.declare(uri)
    with flowing(uri) as flow:
        FIVE.apply(uri, settle=SETTLE)
        FOUR.apply(uri, settle=SETTLE)
        FIVE.apply(uri, settle=SETTLE)
        sent = flow.stop()
    assert set(landed(drain(connection, FIVE._asked.queues, sent))) == set(range(sent))


def test_a_move_puts_a_gate_in_the_target_and_a_marker_in_every_source(
    uri: str, connection: Connection
) -> None:
    FOUR.declare(uri)
    FIVE.apply(uri, settle=0)
    sources = tuple(f"orders.{i}" for i in range(4))
    assert controls(connection, "orders.4") == [gates.Gate("orders", 1, sources)]
    for queue in sources:
        assert controls(connection, queue) == [gates.Marker("orders", 1)]


def test_without_order_asked_for_there_are_no_control_messages(uri: str, connection: Connection) -> None:
    Partitions("orders", weights(2), slots=SLOTS, ordered=False).declare(uri)
    Partitions("orders", weights(3), slots=SLOTS, ordered=False).apply(uri, settle=0)
    for queue in weights(3):
        assert topology.state(connection.channel(), queue).ready == 0


@pytest.mark.parametrize("step", ["queues", *STEPS])
def test_a_mover_that_is_killed_at_any_step_loses_nothing_and_the_next_one_finishes(
    uri: str, connection: Connection, step: str
) -> None:
    FOUR.declare(uri)
    with flowing(uri) as flow:
        assert die_at(step, uri, 5) == -9
        FIVE.apply(uri, settle=SETTLE)
        sent = flow.stop()
    layout = read(uri, "orders")
    assert FIVE.plan(uri).nothing
    assert set(landed(drain(connection, layout.queues, sent))) == set(range(sent))
    keys = random_keys(1000, seed=7)
    publish(uri, "orders", keys)
    places = landed(drain(connection, layout.queues, 1000))
    assert [places[i] for i in range(1000)] == list(layout.route_many(keys))


def test_an_interrupted_move_is_finished_even_when_something_else_is_asked_for(
    uri: str, connection: Connection
) -> None:
    FOUR.declare(uri)
    assert die_at("unbound", uri, 5) == -9
    assert "finish the move to 'orders.4'" in str(FOUR.plan(uri))
    keys = random_keys(1000)
    publish(uri, "orders", keys)  # half-way: by the alternate exchange
    FOUR.apply(uri, settle=SETTLE)
    publish(uri, "orders", keys)
    found = drain(connection, FIVE._asked.queues, 2000)
    assert sorted(n for numbers in found.values() for n in numbers) == sorted([*range(1000), *range(1000)])
    assert FOUR.plan(uri).nothing


@pytest.mark.parametrize("step", ["begun", "declared"])
def test_a_first_declaration_that_is_killed_is_finished_by_the_next(uri: str, step: str) -> None:
    assert die_at(step, uri, 4) == -9
    assert "finish what was begun" in str(FOUR.plan(uri))
    layout = FOUR.declare(uri)
    keys = random_keys(1000)
    publish(uri, "orders", keys)
    with connect(uri) as connection:
        places = landed(drain(connection, layout.queues, 1000))
    assert [places[i] for i in range(1000)] == list(layout.route_many(keys))


def test_what_consumers_pass_is_remembered(uri: str, connection: Connection) -> None:
    FOUR.declare(uri)
    with Publisher(connection) as publisher:
        layout_store.passed(publisher, "orders", 3, "orders.1")
    assert layout_store.recall(connection, "orders").passed == {(3, "orders.1"): None}


def test_control_messages_are_told_from_users_messages() -> None:
    from leash.amqp import Properties, encode_properties

    gate = gates.gate("orders", 4, ("a", "b"), "q")
    marker = gates.marker("orders", 4, "q")
    assert gates.read(encode_properties(gate.properties)) == gates.Gate("orders", 4, ("a", "b"))
    assert gates.read(encode_properties(marker.properties)) == gates.Marker("orders", 4)
    for headers in ({"h": 1}, {"x-leash-control": "gate"}, {"text": "x-leash-control"}):
        assert gates.read(encode_properties(Properties(headers=headers))) is None  # type: ignore[arg-type]


def test_markers_that_got_lost_are_put_again_and_a_queue_that_is_gone_counts_as_passed(
    uri: str, connection: Connection
) -> None:
    FOUR.declare(uri)
    FIVE.apply(uri, settle=0)
    with Publisher(connection) as publisher, connection.channel() as channel:
        layout_store.passed(publisher, "orders", 1, "orders.2")
        topology.purge_queue(channel, "orders.0")
        topology.delete_queue(channel, "orders.3")
    assert remind(uri, "orders") == [(1, "orders.0"), (1, "orders.1"), (1, "orders.3")]
    assert controls(connection, "orders.0") == [gates.Marker("orders", 1)]
    assert layout_store.recall(connection, "orders").awaited == ((1, "orders.0"), (1, "orders.1"))


def test_a_move_that_is_half_done_is_not_reminded_of(uri: str) -> None:
    FOUR.declare(uri)
    assert die_at("unbound", uri, 5) == -9
    with pytest.raises(TopologyError, match="apply it first"):
        remind(uri, "orders")
