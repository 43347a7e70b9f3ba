"""A driver whose node is cut off from its cluster goes to another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leash.amqp import connect
from leash.amqp.uri import parse
from leash.broker import Cluster
from leash.spark.driver import cut_off_node
from tests.consumer.kit import until

from .harness import Query, declare, options, publish, values


@pytest.fixture
def cluster_uri(cluster: Cluster) -> str:
    uri = cluster.uri_of("/")
    with connect(uri) as link:
        if link.version < (4, 2):
            pytest.skip("before Khepri, a node that is cut off makes queues by itself")
    return uri


def test_a_driver_leaves_a_node_that_is_cut_off(cluster: Cluster, cluster_uri: str, staging: Path) -> None:
    declare(cluster_uri, kind="quorum")
    query = Query(options(cluster_uri, staging))
    first = publish(cluster_uri, 5)
    assert values(query.drain()) == first
    place = parse(cluster_uri)
    elsewhere = replace(place, hosts=place.hosts[1:]).reveal()
    with cluster.split(cluster.nodes[0]):
        second = publish(elsewhere, 5, first=5)
        until(query.plan, what="its node tells an old depth, and it stays there")
        assert values(query.read()) == second
    query.reader.stop()


def test_only_a_majority_grants(cluster: Cluster, cluster_uri: str) -> None:
    first, second = [connect(node.uri) for node in cluster.nodes[:2]]
    assert cut_off_node.grants(first)
    with cluster.split(cluster.nodes[0]):
        assert not cut_off_node.grants(first)
        assert cut_off_node.grants(second)
    first.abort()
    second.close()


def test_a_user_who_may_not_ask_stays(as_user: Callable[..., str]) -> None:
    with connect(as_user(configure="^q$")) as link:
        assert cut_off_node.grants(link)
