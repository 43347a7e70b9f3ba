"""Topologies on the real broker: made, checked, changed, and every message where `route` said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from leash.amqp import Connection, connect, topology
from leash.amqp.queue_traits import traits
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.errors import ConfigError, LeashError, TopologyError
from leash.management import Management
from leash.partitions import Layout, Partitions, layout_store, read, remind
from leash.partitions import check as check_ring
from tests.partitions.helpers import drain, landed, publish, random_keys, weights


def check(uri: str, layout: Layout, keys: list[str]) -> Counter[str]:
    """Publish, and find every single message where it should be."""
    publish(uri, layout.name, keys)
    with connect(uri) as connection:
        places = landed(drain(connection, layout.all_queues, len(keys)))
    assert len(places) == len(keys)
    expected = layout.route_many(keys)
    wrong = [i for i, queue in places.items() if expected[i] != queue]
    assert not wrong, f"{len(wrong)} of {len(keys)} went elsewhere"
    return Counter(places.values())


@pytest.fixture
def management(broker: Broker) -> Management:
    return broker.management


def things(management: Management, uri: str) -> tuple[list[str], list[str]]:
    """The exchanges and queues of the virtual host."""
    vhost = parse(uri).vhost
    exchanges = [found["name"] for found in management.ask("GET", f"/api/exchanges/{vhost}")]
    queues = [found["name"] for found in management.ask("GET", f"/api/queues/{vhost}")]
    return sorted(name for name in exchanges if name and not name.startswith("amq.")), sorted(queues)


@pytest.mark.parametrize("shape", ["slots", "direct"])
def test_a_hundred_thousand_random_keys_over_1_1_2_2_land_where_route_said(uri: str, shape: str) -> None:
    shares = {"q0": 1, "q1": 1, "q2": 2, "q3": 2}
    layout = Partitions("e", shares, layout=shape).declare(uri)  # type: ignore[arg-type]
    count = 100_000 if shape == "direct" else 10_000
    received = check(uri, layout, random_keys(count))
    for queue, weight in shares.items():
        assert received[queue] == pytest.approx(count * weight / 6, rel=0.05)


def test_growing_and_shrinking_slots_moves_a_fifth_and_back(uri: str) -> None:
    four, five = Partitions("orders", weights(4)), Partitions("orders", weights(5))
    keys = random_keys(5000)
    first = four.declare(uri)
    check(uri, first, keys)
    plan = five.plan(uri)
    assert plan.moved() == pytest.approx(0.2, abs=1 / 120)
    assert {move.target for move in plan.moves} == {"orders.4"}
    grown = five.apply(uri, plan, settle=0.05)
    assert five.plan(uri).nothing
    check(uri, grown, keys)
    back = four.plan(uri)
    assert back.moved() == pytest.approx(0.2, abs=1 / 120)
    assert {move.source for move in back.moves} == {"orders.4"}
    shrunk = four.apply(uri, back, settle=0.05)
    assert shrunk.retired == ("orders.4",)
    check(uri, shrunk, keys)
    assert four.delete_retired(uri) == ["orders.4"]
    assert read(uri, "orders").all_queues == four._asked.queues


def test_removing_the_first_of_ten_direct_queues_moves_what_the_plan_says(uri: str) -> None:
    ten = Partitions("orders", weights(10), layout="direct")
    nine = Partitions("orders", {f"orders.{i}": 1 for i in range(1, 10)}, layout="direct")
    keys = random_keys(20_000)
    before = ten.declare(uri)
    publish(uri, "orders", keys)
    with connect(uri) as connection:
        first = landed(drain(connection, before.queues, len(keys)))
    plan = nine.plan(uri)
    assert plan.moved() == pytest.approx(0.989, abs=0.001)
    after = nine.apply(uri, plan)
    publish(uri, "orders", keys)
    with connect(uri) as connection:
        second = landed(drain(connection, after.queues, len(keys)))
    really = sum(first[i] != second[i] for i in first) / len(keys)
    assert really == plan.moved(keys)
    assert [second[i] for i in range(len(keys))] == list(after.route_many(keys))


def test_a_direct_layout_that_is_reweighted_and_grown_is_predicted_too(uri: str) -> None:
    Partitions("orders", {"a": 1, "b": 2, "c": 1}, layout="direct").declare(uri)
    other = Partitions("orders", {"a": 3, "b": 2, "d": 1}, layout="direct")
    check(uri, other.apply(uri), random_keys(5000))
    assert other.plan(uri).nothing


@pytest.mark.parametrize("by", ["header:customer", "property:message_id"])
def test_headers_and_properties_are_hashed_as_asked(connection: Connection, uri: str, by: str) -> None:
    from leash.amqp import Outgoing, Properties, Publisher

    layout = Partitions("orders", weights(3), by=by, kind="quorum", slots=12).declare(uri)
    keys = random_keys(1000)
    with Publisher(connection) as publisher:
        for number, key in enumerate(keys):
            told = Properties(headers={"customer": key}, message_id=key)
            publisher.publish([Outgoing(b"%d" % number, "orders", "same", told, mandatory=True)])
    places = landed(drain(connection, layout.queues, len(keys)))
    assert [places[i] for i in range(len(keys))] == list(layout.route_many(keys))


def test_declaring_again_changes_nothing_and_heals_what_is_missing(
    uri: str, connection: Connection, management: Management
) -> None:
    partitions = Partitions("orders", weights(3), slots=12)
    layout = partitions.declare(uri)
    before = things(management, uri)
    assert before[0] == sorted(["orders", "orders.moving", *(f"orders.slot-{i:03}" for i in range(12))])
    assert before[1] == ["orders.0", "orders.1", "orders.2", "orders.layout"]
    assert partitions.declare(uri) == layout
    topology.unbind_queue(connection.channel(), layout.owners[5], layout.slot(5))
    assert partitions.declare(uri) == layout
    assert things(management, uri) == before
    check(uri, layout, random_keys(2000))


def test_declaring_with_other_weights_moves_nothing_and_says_so(uri: str) -> None:
    Partitions("orders", weights(2), slots=12).declare(uri)
    with pytest.raises(TopologyError, match=r"with other weights, .* look at plan"):
        Partitions("orders", weights(3), slots=12).declare(uri)
    assert read(uri, "orders").queues == ("orders.0", "orders.1")


def test_a_plan_that_is_out_of_date_is_not_carried_out(uri: str) -> None:
    Partitions("orders", weights(2), slots=12).declare(uri)
    plan = Partitions("orders", weights(3), slots=12).plan(uri)
    Partitions("orders", weights(4), slots=12).apply(uri, settle=0)
    with pytest.raises(TopologyError, match="changed since that plan"):
        Partitions("orders", weights(3), slots=12).apply(uri, plan)


def test_two_at_once_are_kept_apart(
    uri: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_store, "PATIENCE", 0.3)
    with layout_store.alone(connection, "orders"):
        with pytest.raises(TopologyError, match="being changed by another process"):
            Partitions("orders", weights(2), slots=12).apply(uri)


TWO, THREE = (Partitions("orders", weights(count), slots=12) for count in (2, 3))
TAKERS: dict[str, Callable[[str], object]] = {
    "declare": TWO.declare,
    "apply": lambda uri: THREE.apply(uri, settle=0),
    "delete_retired": TWO.delete_retired,
    "check": lambda uri: check_ring(uri, "orders"),
    "remind": lambda uri: remind(uri, "orders"),
    "delete": TWO.delete,
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_lock_that_outlives_its_holder_is_waited_for(uri: str, taker: str) -> None:
    TWO.declare(uri)
    holder = connect(uri)
    with ThreadPoolExecutor(1) as others:
        held = layout_store.alone(holder, "orders")
        held.__enter__()
        waiting = others.submit(TAKERS[taker], uri)
        done, _ = wait([waiting], 1.0)
        assert not done, waiting.exception()
        holder.abort()  # as a crash would
        waiting.result(20)


def test_reading_partitions_that_are_not_there_says_how_to_make_them(uri: str) -> None:
    with pytest.raises(TopologyError, match="partitions 'orders' do not exist"):
        read(uri, "orders")


@pytest.mark.parametrize("shape", ["slots", "direct"])
@pytest.mark.parametrize("what", ["exchange", "queue", "slot", "stream"])
def test_what_exists_as_something_else_is_refused_and_nothing_is_left_behind(
    uri: str, connection: Connection, management: Management, shape: str, what: str
) -> None:
    channel = connection.channel()
    if what == "exchange":
        topology.declare_exchange(channel, "orders", kind="direct")
    elif what == "slot":
        topology.declare_exchange(channel, "orders.slot-005", kind="topic")
    else:
        topology.declare_queue(channel, "orders.1" if what == "queue" else "orders.layout", kind="quorum")
    before = things(management, uri)
    partitions = Partitions("orders", weights(3), layout=shape, slots=12)  # type: ignore[arg-type]
    if shape == "direct" and what == "slot":
        partitions.declare(uri)
        return
    with pytest.raises(LeashError) as caught:
        partitions.declare(uri)
    assert isinstance(caught.value, TopologyError | ConfigError)
    assert "\n" not in str(caught.value)
    assert things(management, uri) == before


def test_a_queue_that_is_something_else_stops_a_resize_before_anything_moved(
    uri: str, connection: Connection, management: Management
) -> None:
    layout = Partitions("orders", weights(2), slots=12).declare(uri)
    topology.declare_queue(connection.channel(), "orders.3", kind="quorum")
    before = things(management, uri)
    with pytest.raises(TopologyError, match=r"queue 'orders\.3' exists and is something else"):
        Partitions("orders", weights(4), slots=12).apply(uri)
    assert things(management, uri) == before
    assert read(uri, "orders") == layout


def test_a_broker_without_the_plugin_says_how_to_enable_it(
    broker: Broker, uri: str, management: Management
) -> None:
    broker.ctl("disable", "rabbitmq_consistent_hash_exchange", tool="rabbitmq-plugins")
    try:
        with pytest.raises(TopologyError, match="rabbitmq-plugins enable rabbitmq_consistent_hash_exchange"):
            Partitions("orders", weights(2), slots=12).declare(uri)
        assert things(management, uri) == ([], [])
    finally:
        broker.ctl("enable", "rabbitmq_consistent_hash_exchange", tool="rabbitmq-plugins")
    Partitions("orders", weights(2), slots=12).declare(uri)


def test_deleting_leaves_nothing(uri: str, management: Management) -> None:
    partitions = Partitions("orders", weights(2), slots=12)
    partitions.declare(uri)
    partitions.delete(uri, queues=True)
    assert things(management, uri) == ([], [])


@pytest.mark.parametrize("older", [False, True])
def test_quorum_partitions_have_no_delivery_limit_where_there_is_one_by_default(
    uri: str, connection: Connection, older: bool
) -> None:
    """A gate or marker that the broker drops would stop a move, or break the order."""
    if older:  # made by an earlier version of the broker, or of Leash: used as it is
        arguments = {"x-single-active-consumer": True}
        topology.declare_queue(connection.channel(), "orders.1", kind="quorum", arguments=arguments)
    Partitions("orders", weights(3), kind="quorum", slots=12).declare(uri)
    limits = [
        made.arguments.get("x-delivery-limit")
        for made in (traits(connection, f"orders.{number}") for number in range(3))
        if made is not None
    ]
    unlimited = -1 if connection.version >= (4,) else None
    assert limits == [unlimited, None if older else unlimited, unlimited]
