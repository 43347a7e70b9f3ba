"""Declaring tenants, pinning and adopting: what goes where, and what is refused."""

from __future__ import annotations

import pytest

from leash import Consumer, Tenants
from leash.amqp import Channel, Connection, Outgoing, topology
from leash.broker import Broker
from leash.errors import ConfigError, LeashError, TopologyError
from leash.fleet.tenants.tenants import read
from tests.tenants.kit import JOBS, apart, message, send, together


def depths(channel: Channel, tenants: Tenants = JOBS) -> dict[str, int]:
    found = {queue: topology.state(channel, queue).ready for queue in tenants.queues}
    return {queue: ready for queue, ready in found.items() if ready}


def test_a_tenant_has_one_lane_and_the_lane_is_known_in_advance(uri: str, channel: Channel) -> None:
    JOBS.declare(uri)
    state = JOBS.state(uri)
    names = [f"tenant {n}" for n in range(100)]
    send(uri, [message(name) for name in names for _ in range(2)])
    expected: dict[str, int] = {}
    for name in names:
        expected[state.lane(name)] = expected.get(state.lane(name), 0) + 2
    assert depths(channel) == expected
    assert len(expected) == len(JOBS.lanes)


def test_the_routing_key_can_tell_the_tenant(uri: str, channel: Channel) -> None:
    tenants = Tenants("mail", "routing_key", 4, own=1, kind="quorum")
    tenants.declare(uri)
    lane = tenants.state(uri).lane("acme")
    send(uri, [Outgoing(b"", "mail", "acme")])
    own, moved = tenants.isolate(uri, "acme")
    send(uri, [Outgoing(b"", "mail", "acme")])
    assert moved == 1
    assert depths(channel, tenants) == {own: 2}
    assert tenants.release(uri, "acme") == own
    send(uri, [Outgoing(b"", "mail", "acme")])
    assert depths(channel, tenants) == {own: 2, lane: 1}


def test_messages_that_name_no_tenant_are_not_lost(uri: str, channel: Channel) -> None:
    JOBS.declare(uri)
    send(uri, [Outgoing(b"", "jobs")] * 3)
    assert list(depths(channel).values()) == [3]


def test_declaring_again_changes_nothing_and_other_numbers_are_refused(uri: str) -> None:
    JOBS.declare(uri)
    JOBS.isolate(uri, "acme")
    JOBS.declare(uri)
    assert list(read(uri, "jobs").pins) == ["acme"]
    for other, said in (
        (Tenants("jobs", "header:tenant", 16, own=2), "lanes=16: 8, as tenants 'jobs' were made"),
        (Tenants("jobs", "header:tenant", 8, own=3), "own=3: 2, as"),
        (Tenants("jobs", "header:customer", 8, own=2), "by='header:customer': 'header:tenant', as"),
        (Tenants("jobs", "header:tenant", 8, own=2, kind="quorum"), "kind='quorum': 'classic', as"),
    ):
        with pytest.raises(ConfigError) as refused:
            other.declare(uri)
        assert said in str(refused.value)
        consumer = Consumer(uri, tenants=other)
        consumer.handler(lambda _: None)
        with pytest.raises(ConfigError):
            consumer.start()


def test_a_foreign_exchange_is_left_alone(uri: str, channel: Channel) -> None:
    topology.declare_exchange(channel, "jobs", kind="topic")
    with pytest.raises(TopologyError, match="'jobs' exists, and Leash did not make it: choose another name"):
        JOBS.declare(uri)
    topology.delete_exchange(channel, "jobs")
    JOBS.declare(uri)


def test_what_does_not_exist_is_named_with_the_remedy(uri: str, channel: Channel) -> None:
    consumer = Consumer(uri, tenants=JOBS)
    consumer.handler(lambda _: None)
    with pytest.raises(TopologyError, match="'jobs' do not exist: make them with `leash tenants declare"):
        consumer.start()
    with pytest.raises(TopologyError, match="'jobs' do not exist"):
        JOBS.isolate(uri, "acme")
    JOBS.declare(uri)
    with pytest.raises(TopologyError, match="queue 'old' does not exist: there is nothing to adopt"):
        JOBS.adopt(uri, "old")
    topology.declare_queue(channel, "log", kind="stream")
    with pytest.raises(TopologyError, match="'log' is a stream"):
        JOBS.adopt(uri, "log")
    with pytest.raises(ConfigError, match="a queue that is no lane of 'jobs'"):
        JOBS.adopt(uri, JOBS.lanes[0])
    with pytest.raises(TopologyError, match="'old' is not adopted by 'jobs': those are none"):
        JOBS.unadopt(uri, "old")
    with pytest.raises(TopologyError, match="'acme' of 'jobs' is not isolated: no tenant is"):
        JOBS.release(uri, "acme")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Tenants("", "header:tenant"), "name='': a name of 1 to 180 bytes"),
        (lambda: Tenants("jobs", "property:message_id"), "'header:NAME' or 'routing_key'"),
        (lambda: Tenants("jobs", "header:"), "by='header:'"),
        (lambda: Tenants("jobs", "header:tenant", 0), "lanes=0"),
        (lambda: Tenants("jobs", "header:tenant", own=-1), "own=-1"),
        (lambda: Tenants("jobs", "header:tenant", kind="stream"), "kind='stream': 'classic' or 'quorum'"),
        (lambda: Consumer("amqp://x", ["q"], tenants=JOBS), "queues, partitions or tenants: one of them"),
        (lambda: Consumer("amqp://x", partitions="p", tenants=JOBS), "one of them"),
        (lambda: Consumer("amqp://x", tenants="jobs"), "tenants='jobs': Tenants, like"),  # type: ignore[arg-type]
        (lambda: JOBS.isolate("amqp://x", ""), "tenant='': text"),
        (lambda: JOBS.isolate("amqp://x", 42), "tenant=42: text"),  # type: ignore[arg-type]
        (lambda: JOBS.adopt("amqp://x", ""), "queue='': a queue's name"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(make: object, said: str) -> None:
    with pytest.raises(LeashError) as refused:
        make()  # type: ignore[operator]
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_isolating_moves_what_waits_and_what_comes(uri: str, channel: Channel) -> None:
    JOBS.declare(uri)
    other = together(JOBS, uri, "acme")
    shared = JOBS.state(uri).lane("acme")
    send(uri, [message("acme" if n % 3 else other, b"%d" % n) for n in range(600)])
    own, moved = JOBS.isolate(uri, "acme")
    assert moved >= 600
    assert own in JOBS.own
    assert depths(channel) == {own: 400, shared: 200}
    send(uri, [message("acme"), message(other)])
    assert depths(channel) == {own: 401, shared: 201}
    assert JOBS.isolate(uri, "acme")[0] == own, "again: the same lane"
    assert JOBS.release(uri, "acme") == own
    send(uri, [message("acme")])
    assert depths(channel) == {own: 401, shared: 202}


def test_there_are_as_many_lanes_of_their_own_as_were_asked_for(uri: str, channel: Channel) -> None:
    JOBS.declare(uri)
    first, second = (JOBS.isolate(uri, name)[0] for name in ("a", "b"))
    assert {first, second} == set(JOBS.own)
    with pytest.raises(TopologyError, match="'jobs' have no free lane for 'c': release one of 'a', 'b'"):
        JOBS.isolate(uri, "c")
    send(uri, [message("a")])
    JOBS.release(uri, "a")
    JOBS.release(uri, "b")
    assert JOBS.isolate(uri, "c")[0] == second, "an empty one is taken first"


def test_bindings_are_turned_over_once_each(uri: str, broker: Broker, channel: Channel) -> None:
    JOBS.declare(uri)
    topology.declare_queue(channel, "old")
    topology.declare_exchange(channel, "events", kind="topic")
    topology.declare_exchange(channel, "hashed", kind="x-consistent-hash")
    topology.bind_queue(channel, "old", "events", "job.*")
    topology.bind_queue(channel, "old", "amq.direct", "work")
    topology.bind_queue(channel, "old", "amq.headers", "", {"x-match": "any", "tenant": "acme"})
    topology.bind_queue(channel, "old", "hashed", "1")
    lane = JOBS.state(uri).lane("acme")
    for already in (False, True):
        moved, stay, trouble = JOBS.adopt(uri, "old", broker.management)
        assert sorted(each.source for each in moved) == (
            [] if already else ["amq.direct", "amq.headers", "events"]
        )
        assert [each.source for each in stay] == ["hashed"]
        assert trouble == ""
    for source, key in (("events", "job.new"), ("amq.direct", "work"), ("amq.headers", ""), ("hashed", "x")):
        send(uri, [message("acme", b"", source, key)])
    assert depths(channel) == {lane: 3}
    assert topology.state(channel, "old").ready == 1
    assert JOBS.state(uri).adopted == ("old",)
    JOBS.unadopt(uri, "old")
    assert JOBS.state(uri).adopted == ()


def test_a_turnover_that_was_interrupted_is_completed(uri: str, broker: Broker, channel: Channel) -> None:
    JOBS.declare(uri)
    topology.declare_queue(channel, "old")
    between = "jobs.adopt.old"
    topology.declare_exchange(channel, between, kind="fanout", arguments={"alternate-exchange": "jobs"})
    topology.bind_queue(channel, "old", between)
    topology.bind_exchange(channel, between, "amq.direct", "work")
    send(uri, [message("acme", b"", "amq.direct", "work")])
    assert topology.state(channel, "old").ready == 1
    moved, _, _ = JOBS.adopt(uri, "old", broker.management)
    assert [each.key for each in moved] == ["work"]
    send(uri, [message("acme", b"", "amq.direct", "work")])
    assert depths(channel) == {JOBS.state(uri).lane("acme"): 1}


def test_without_the_plugin_a_queue_is_adopted_all_the_same(uri: str, channel: Channel) -> None:
    from leash.management import Management

    JOBS.declare(uri)
    topology.declare_queue(channel, "old")
    adopted = JOBS.adopt(uri, "old", Management("http://127.0.0.1:1", "a", "b"))
    assert "the management plugin" in adopted.trouble
    assert JOBS.state(uri).adopted == ("old",)


def test_deleting_leaves_nothing_behind(uri: str, broker: Broker, connection: Connection) -> None:
    JOBS.declare(uri)
    JOBS.isolate(uri, "acme")
    JOBS.delete(uri, queues=True)
    vhost = connection.uri.vhost
    assert [each["name"] for each in broker.management.ask("GET", f"/api/queues/{vhost}")] == []
    names = [each["name"] for each in broker.management.ask("GET", f"/api/exchanges/{vhost}")]
    assert [name for name in names if name.startswith("jobs")] == []
    with pytest.raises(TopologyError, match="do not exist"):
        JOBS.state(uri)


def test_lanes_of_names_are_apart(uri: str) -> None:
    JOBS.declare(uri)
    state = JOBS.state(uri)
    names = apart(JOBS, uri, 3, "acme")
    assert len({state.lane(name) for name in [*names, "acme"]}) == 4
