"""A full stop of the broker: what it does to a ring, and how Leash finds out and goes on."""

from __future__ import annotations

import pytest

from leash.amqp import Connection, connect, topology
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.errors import TopologyError
from leash.partitions import Partitions, check, read
from leash.policies.ring.hashring import KEEPS_ITS_RING
from tests.partitions.helpers import drain, landed, publish, random_keys, weights


def misplaced(uri: str, name: str = "orders") -> int:
    """How many messages land elsewhere than the remembered layout says."""
    layout = read(uri, name)
    keys = random_keys(1000)
    publish(uri, name, keys)
    with connect(uri) as connection:
        places = landed(drain(connection, layout.all_queues, len(keys)))
    expected = layout.route_many(keys)
    return sum(expected[i] != places[i] for i in range(len(keys)))


@pytest.mark.parametrize("by", ["routing_key", "header:customer", "property:timestamp"])
def test_probes_find_the_order_of_the_slots_and_leave_nothing_in_the_queues(
    uri: str, connection: Connection, by: str
) -> None:
    layout = Partitions("orders", weights(3), by=by, slots=30).declare(uri)
    assert check(uri, "orders") == (layout, layout)
    for queue in layout.queues:
        assert topology.state(connection.channel(), queue).ready == 0


def test_a_shuffled_ring_is_found_out_and_predicted_again(uri: str, connection: Connection) -> None:
    layout = Partitions("orders", weights(3), slots=30).declare(uri)
    with connection.channel() as channel:
        for slot in (0, 17):  # to the end, as a binding that comes back late
            topology.unbind_exchange(channel, layout.slot(slot), "orders", "1")
            topology.bind_exchange(channel, layout.slot(slot), "orders", "1")
    assert misplaced(uri) > 0
    known, found = check(uri, "orders")
    assert known == layout
    assert found.order == (*range(1, 17), *range(18, 30), 0, 17)
    check(uri, "orders", fix=True)
    assert misplaced(uri) == 0


def test_a_direct_ring_is_checked_by_what_the_broker_prints(broker: Broker, uri: str) -> None:
    layout = Partitions("orders", weights(3), layout="direct").declare(uri)
    with connect(uri) as connection, connection.channel() as channel:
        topology.unbind_queue(channel, "orders.0", "orders", "1")
        topology.bind_queue(channel, "orders.0", "orders", "1")
    command = ("consistent_hash_exchange_ring_state", "-p", parse(uri).vhost, "orders")
    state = broker.ctl(*command, tool="rabbitmq-diagnostics")
    known, found = check(uri, "orders", state=state, fix=True)
    assert known == layout
    assert found.queues == ("orders.1", "orders.2", "orders.0")
    assert misplaced(uri) == 0
    with pytest.raises(TopologyError, match="ring_state orders` prints"):
        check(uri, "orders")


def test_a_half_made_change_is_not_checked(uri: str, connection: Connection) -> None:
    """Whichever slot is missing: no mixture of probes that came and probes on their way passes for it."""
    layout = Partitions("orders", weights(2), slots=12).declare(uri)
    with connection.channel() as channel:
        for slot in layout.order:
            topology.unbind_exchange(channel, layout.slot(slot), "orders", "1")
            with pytest.raises(TopologyError, match="not those that Leash made"):
                check(uri, "orders")
            topology.bind_exchange(channel, layout.slot(slot), "orders", "1")


def test_more_slots_than_the_broker_hands_out_at_a_time(uri: str) -> None:
    layout = Partitions("orders", weights(2), slots=600).declare(uri)
    assert check(uri, "orders") == (layout, layout)


def test_with_one_worker_a_restart_changes_nothing_and_without_leash_finds_out_what_it_did(
    broker: Broker, uri: str
) -> None:
    partitions = Partitions("orders", weights(4))
    layout = partitions.declare(uri)
    name = "rabbit, default_worker_pool_size"
    again = "rabbit:stop(), rabbit:start()"
    broker.eval(f"application:set_env({name}, 1), {again}, application:unset_env({name}).")
    assert check(uri, "orders") == (layout, layout)
    assert partitions.plan(uri).nothing
    broker.eval(f"{again}.")  # several workers: where the order is not kept, any may come of it
    _, found = check(uri, "orders", fix=True)
    assert sorted(found.order) == list(range(120))
    if layout.version is not None and layout.version >= KEEPS_ITS_RING:
        assert found == layout
    assert misplaced(uri) == 0


def test_a_ring_that_is_not_in_sorted_order_is_kept_where_the_broker_keeps_it(
    broker: Broker, uri: str
) -> None:
    layout = Partitions("orders", weights(3), slots=30).declare(uri)
    with connect(uri) as connection, connection.channel() as channel:
        for slot in (0, 17):
            topology.unbind_exchange(channel, layout.slot(slot), "orders", "1")
            topology.bind_exchange(channel, layout.slot(slot), "orders", "1")
    _, shuffled = check(uri, "orders", fix=True)
    broker.restart()
    known, found = check(uri, "orders")
    assert known == shuffled
    assert sorted(found.order) == list(range(30))
    if layout.version is not None and layout.version >= KEEPS_ITS_RING:
        assert found == shuffled
        assert misplaced(uri) == 0
