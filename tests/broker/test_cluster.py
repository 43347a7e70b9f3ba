"""Three private nodes: one cluster, on loopback, whose nodes can be ended, frozen, drained and cut off."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from leash.amqp import Outgoing, Properties, Publisher, connect
from leash.amqp.topology import declare_queue, state
from leash.amqp.uri import parse
from leash.broker import Broker, Cluster, at, files
from leash.errors import BrokerError, ConfigError, HostUnreachable, Nacked
from tests.broker.kit import LOOPBACK, leash, listening, processes_in
from tests.consumer.kit import until

pytestmark = pytest.mark.broker


def peers(node: Broker, *wanted: Broker) -> str:
    """The nodes that a node is connected to, as Erlang prints them, once it has tried to reach some."""
    pings = "".join(f"net_adm:ping('{each.name}'), " for each in wanted)
    return node.eval(f"{pings} nodes().")


def publish(uri: str, count: int) -> None:
    """Until all are taken: RabbitMQ 3.10 refuses all on a channel that was opened without a leader."""
    left: list[object] = [Outgoing(b"x", "", "kept", Properties(delivery_mode=2)) for _ in range(count)]

    def taken() -> bool:
        with connect(uri) as link, Publisher(link) as publisher:
            try:
                publisher.publish(cast(list[Outgoing], left))
            except Nacked as error:
                left[:] = error.messages
                return False
        return True

    until(taken)


def ready(uri: str) -> int:
    with connect(uri) as link, link.channel() as channel:
        return state(channel, "kept").ready


def test_three_nodes_are_one_cluster_and_cannot_be_reached_from_outside(cluster: Cluster) -> None:
    hosts = parse(cluster.uri).hosts
    assert hosts == tuple(("127.0.0.1", node.port("amqp")) for node in cluster.nodes)
    assert len(set(hosts)) == 3
    names = {node.name for node in cluster.nodes}
    for node in cluster.nodes:
        listed = node.management.ask("GET", "/api/nodes")
        assert {each["name"] for each in listed if each["running"]} == names
        for port in files.PORTS:
            places = listening(node.port(port))
            assert places, port
            assert set(places) <= LOOPBACK, f"{port} listens on {places}"
    assert len({node.port("epmd") for node in cluster.nodes}) == 1
    assert parse(cluster.uri).password not in cluster.shown()
    cluster.start()  # finds it running


def test_what_a_quorum_queue_confirmed_survives_the_loss_of_a_node_and_then_of_all(cluster: Cluster) -> None:
    with connect(cluster.uri) as link, link.channel() as channel:
        declare_queue(channel, "kept", kind="quorum")
    publish(cluster.uri, 100)
    first, second, third = cluster.nodes
    first.kill()
    assert processes_in(first.folder) == []
    assert second.running
    with connect(cluster.uri) as link:
        assert not link.where.endswith(str(first.port("amqp")))
    publish(cluster.uri, 100)
    until(lambda: ready(cluster.uri) == 200)
    first.start()
    for node in cluster.nodes:
        node.kill()
    assert not cluster.running
    cluster.start()
    until(lambda: ready(cluster.uri) == 200)
    third.restart()
    cluster.wait_joined()


def test_a_frozen_node_is_not_asked(cluster: Cluster) -> None:
    first = cluster.nodes[0]
    first.pause()
    try:
        assert first.paused
        assert cluster.management.ask("GET", "/api/whoami")  # this needs no other node
    finally:
        first.resume()
    assert not first.paused
    cluster.wait_joined()


def test_a_node_in_maintenance_takes_no_connections_until_it_is_revived(cluster: Cluster) -> None:
    second = cluster.nodes[1]
    second.drain()
    try:
        with pytest.raises(HostUnreachable):
            connect(second.uri)
    finally:
        second.revive()
    connect(second.uri).close()


def test_a_split_is_seen_from_both_sides_until_it_is_healed(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    with cluster.split(first):
        assert "leash" not in peers(first, second, third)
        for node, other in ((second, third), (third, second)):
            found = peers(node, first)
            assert other.name in found
            assert first.name not in found
    cluster.wait_joined()
    found = peers(first)
    assert second.name in found
    assert third.name in found


def test_a_node_that_starts_during_a_split_stays_on_its_side(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    with cluster.split(first, second):
        second.restart()
        found = peers(second, third)
        assert first.name in found
        assert third.name not in found
    cluster.wait_joined()


def test_a_split_needs_two_sides(cluster: Cluster) -> None:
    for nodes in ([], cluster.nodes):
        with pytest.raises(ConfigError, match="nodes="), cluster.split(*nodes):
            pass


def test_the_command_line_starts_shows_and_stops_all_nodes(folder: Path) -> None:
    where = ["--folder", str(folder)]
    assert "Ready" in leash("start", "--nodes", "2", *where)
    try:
        assert leash("uri", *where).strip() == at(folder).uri
        assert len(parse(at(folder).uri).hosts) == 2
        assert leash("status", *where).count("Running: ") == 2
        assert "Stopped" in leash("stop", "--node", "2", *where)
        assert "Not running: " in leash("status", *where, code=1)
        assert "Ready" in leash("start", *where)
        assert "Found running" in leash("start", *where)
        leash("start", "--nodes", "3", *where, code=1)
        leash("stop", "--node", "3", *where, code=1)
        leash("stop", "--node", "1", "--purge", *where, code=1)
    finally:
        leash("stop", *where)
    assert processes_in(folder) == []
    assert "data deleted" in leash("stop", "--purge", *where)
    assert not folder.exists()


def test_a_start_that_is_interrupted_leaves_no_process(folder: Path) -> None:
    def interrupt(seconds: float) -> None:
        if seconds > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cluster(folder).start(interrupt)
    assert processes_in(folder) == []


@pytest.mark.parametrize("nodes", [0, 10])
def test_a_number_of_nodes_that_makes_no_sense_is_refused(folder: Path, nodes: int) -> None:
    with pytest.raises(ConfigError, match="nodes="):
        Cluster(folder, nodes)


def test_a_cluster_does_not_take_the_folder_of_a_single_node(folder: Path) -> None:
    folder.mkdir()
    (folder / "node.json").write_text("{}")
    with pytest.raises(BrokerError, match="single node"):
        Cluster(folder).start()
