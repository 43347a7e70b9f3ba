"""The ring on its own: the numbers of the design, what every operation costs, and what is refused."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.policies.ring import HashRing, HotKey, Load, Move, buckets, jump
from leash.policies.ring.fields import Field
from leash.policies.ring.phash import phash2


def equal(n: int, **options: Any) -> HashRing:
    return HashRing([(f"q{i:03}", 1) for i in range(n)], **options)


def random_keys(count: int, longest: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(0, longest)) for _ in range(count)]


TEN = equal(10)


# The numbers of the design


@pytest.mark.parametrize(
    ("n", "bucket"),
    [(2, 1), (3, 1), (4, 3), (5, 3), (6, 5), (8, 5), (10, 9), (16, 9), (100, 43), (1000, 315)],
)
def test_hello_goes_where_the_broker_sends_it(n: int, bucket: int) -> None:
    assert jump.bucket(phash2(b"hello"), n) == bucket
    assert jump.table(n)[phash2(b"hello") & jump.MASK] == bucket
    assert equal(n).route(b"hello") == f"q{bucket:03}"


def test_the_readme_example_routes_to_the_heavier_queue() -> None:
    assert HashRing([("q0", 1), ("q1", 2)]).route(b"key") == "q1"


def test_removing_the_first_of_ten_moves_nearly_everything() -> None:
    assert TEN.moved(TEN.unbind("q000")) == pytest.approx(0.989, abs=0.0005)


def test_removing_the_last_of_ten_moves_only_its_own_keys() -> None:
    moves = TEN.moves(TEN.unbind("q009"))
    assert {move.source for move in moves} == {"q009"}
    assert sum(move.share for move in moves) == TEN.shares()["q009"] == pytest.approx(0.1, abs=0.001)


@settings(max_examples=3, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3))
@example(10, 1)
def test_growing_moves_keys_to_the_new_buckets_only(n: int, more: int) -> None:
    before, after = jump.table(n), jump.table(n + more)
    moved = before != after
    assert (after[moved] >= n).all()
    assert (after[~moved] < n).all()
    # a binomial share of 2^21 seeds: six standard deviations
    expected = more / (n + more)
    assert abs(moved.mean() - expected) < 6 * (expected * (1 - expected) / jump.SEEDS) ** 0.5


# What operations do


def test_binding_appends_and_unbinding_closes_the_gap() -> None:
    ring = HashRing([("a", 2), ("b", 1)]).bind("c", 3)
    assert ring.bindings == (("a", 2), ("b", 1), ("c", 3))
    assert ring.unbind("b").bindings == (("a", 2), ("c", 3))
    assert ring.unbind("b").bind("b").queues == ("a", "c", "b")


def test_a_restart_sorts_by_the_weight_as_a_string_then_by_name() -> None:
    ring = HashRing([("z", 1), ("b", 9), ("a", 10), ("ä", 1), ("Z", 1)], version="3.10")
    assert ring.restart().bindings == (("Z", 1), ("z", 1), ("ä", 1), ("a", 10), ("b", 9))
    assert ring.restart().restart() == ring.restart()


def test_a_restart_of_a_ring_bound_in_order_moves_nothing() -> None:
    assert TEN.restart() == TEN
    assert TEN.moved(TEN.restart()) == 0


def test_a_ring_is_read_from_what_the_broker_prints() -> None:
    ring = HashRing([("it's", 2), ("a", 1), ("ä", 11)], version="3.10")
    owners = [queue for queue, weight in ring.bindings for _ in range(weight)]
    lines = [f"Ring index: {i}, queue: '{queue}'" for i, queue in enumerate(owners)]
    assert HashRing.from_state("Inspecting ...\n" + "\n".join(lines) + "\n\n", version="3.10") == ring
    for broken in (lines[1:], [lines[2], *lines[:2]][::-1][1:], [], [lines[0], lines[2]]):
        with pytest.raises(ConfigError):
            HashRing.from_state("\n".join(broken))
    with pytest.raises(ConfigError, match="one run"):
        HashRing.from_state("\n".join([*lines, f"Ring index: {len(lines)}, queue: 'a'"]))


def test_khepri_keeps_the_ring_over_a_restart() -> None:
    ring = HashRing([("b", 1), ("a", 1)], version="4.2")
    assert ring.restart() == ring
    assert ring.restart(store="mnesia").queues == ("a", "b")
    assert HashRing([("b", 1), ("a", 1)], version="4.1").restart(store="khepri").queues == ("b", "a")


def test_an_upgrade_re_routes_headers_and_nothing_else() -> None:
    by_key = equal(4, version="3.12")
    assert by_key.moved(by_key.upgrade("3.13")) == 0
    by_header = equal(4, by="header:customer", version="3.12")
    new = by_header.upgrade((3, 13))
    assert new.version == (3, 13)
    assert by_header.moved(new) == pytest.approx(0.75, abs=0.001)
    assert by_header.moved(new, [f"c{i}" for i in range(20_000)]) == pytest.approx(0.75, abs=0.02)
    assert new.moved(new.upgrade("4.1")) == 0


def test_an_upgrade_is_a_restart_too() -> None:
    assert HashRing([("b", 1), ("a", 1)], version="3.12").upgrade("3.13").queues == ("a", "b")


def test_moved_counts_a_sample_by_its_messages() -> None:
    other = TEN.unbind("q009")
    stays = next(key for key in random_keys(100, 20) if TEN.route(key) != "q009")
    goes = next(key for key in random_keys(1000, 20) if TEN.route(key) == "q009")
    assert TEN.moved(other, [stays, goes, goes, goes]) == 0.75
    assert TEN.moved(other, []) == 0


def test_moves_name_where_keys_come_from_and_go_to() -> None:
    one, two = HashRing([("a", 1)]), HashRing([("a", 1), ("b", 1)])
    assert one.moves(two) == [Move("a", "b", two.shares()["b"])]
    assert one.moves(one) == []


def test_shares_follow_the_weights() -> None:
    shares = HashRing({"a": 1, "b": 1, "c": 2, "d": 2}).shares()
    assert sum(shares.values()) == 1
    assert list(shares.values()) == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3], abs=0.001)


def test_skew_tells_load_and_hot_keys() -> None:
    ring = HashRing([("a", 1), ("b", 3)])
    keys = [b"x"] * 5 + [b"y"] * 2 + [b"z"]
    found = ring.skew(keys)
    received = {queue: sum(ring.route(key) == queue for key in keys) for queue in ring.queues}
    assert found.loads == (Load("a", 1, received["a"], 2.0), Load("b", 3, received["b"], 6.0))
    assert found.hot == (HotKey(b"x", 5, ring.route(b"x")), HotKey(b"y", 2, ring.route(b"y")))
    assert found.worst == max(received["a"] / 2, received["b"] / 6)
    assert ring.skew(np.array(keys)) == ring.skew(pa.array(keys)) == found
    assert len(ring.skew(keys, top=1).hot) == 1
    assert ring.skew([]).worst == 0


# Refusals


@pytest.mark.parametrize(
    ("bindings", "argument"),
    [
        ([("a", 0)], "weight"),
        ([("a", -1)], "weight"),
        ([("a", 1.0)], "weight"),
        ([("a", "1")], "weight"),
        ([("a", True)], "weight"),
        ([("a", 1), ("a", 2)], "queue"),
        ([("", 1)], "queue"),
        ([(b"a", 1)], "queue"),
        ([], "bindings"),
        ({}, "bindings"),
        (["ab", "cde"], "bindings"),
        ([("a", 2**31)], "bindings"),
        (7, "bindings"),
    ],
)
def test_a_bad_binding_is_named(bindings: Any, argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HashRing(bindings)
    assert caught.value.argument == argument


def test_operations_refuse_what_cannot_be() -> None:
    ring = HashRing([("a", 1), ("b", 1)], version="3.12")
    for act in (
        lambda: ring.bind("a"),
        lambda: ring.bind("c", 0),
        lambda: ring.unbind("c"),
        lambda: ring.unbind("a").unbind("b"),
        lambda: ring.upgrade("3.11"),
        lambda: ring.upgrade("5.0"),
        lambda: ring.restart(store="etcd"),
        lambda: buckets([b"a"], 0),
    ):
        with pytest.raises(ConfigError):
            act()
    assert ring.upgrade("3.12") == ring


@pytest.mark.parametrize(
    "by", ["property:priority", "property:", "property", "header:", "header", "", "body", 3, None]
)
def test_an_unknown_way_to_hash_is_refused(by: Any) -> None:
    with pytest.raises(ConfigError, match="by="):
        HashRing([("a", 1)], by=by, version="3.10")


@pytest.mark.parametrize("version", ["", "3", "three", "2.8", "3.7.28", "3.14", "5.0", (3,), 3.1, ("a", "b")])
def test_an_unknown_version_is_refused(version: Any) -> None:
    with pytest.raises(ConfigError, match="version="):
        HashRing([("a", 1)], version=version)


def test_versions_come_as_text_or_numbers() -> None:
    for version in ("3.13.7", (3, 13, 7), "3.13.7-rc.1", "3.13.7+2.g1234"):
        assert HashRing([("a", 1)], version=version).version == (3, 13, 7)


def test_a_header_ring_wants_the_version() -> None:
    with pytest.raises(ConfigError, match=r"version=None: .*3\.13"):
        HashRing([("a", 1)], by="header:customer")


def test_the_weight_is_capped_from_4_2_6_on() -> None:
    assert HashRing([("a", 10_001)], version="4.2.5").buckets == 10_001
    assert HashRing([("a", 10_000)], version="4.2.6").buckets == 10_000
    with pytest.raises(ConfigError, match="10000"):
        HashRing([("a", 10_001)], version="4.3")


@pytest.mark.parametrize(
    ("by", "key"),
    [
        ("routing_key", None),
        ("routing_key", 5),
        ("routing_key", "\ud800"),
        ("property:message_id", 5),
        ("property:timestamp", "5"),
        ("property:timestamp", -1),
        ("property:timestamp", 1.5),
        ("property:timestamp", True),
        ("header:h", object()),
        ("header:h", 2**63),
        ("header:h", float("nan")),
        ("header:h", Field("colour", 1)),
        ("header:h", Field("byte", 128)),
        ("header:h", Field("unsignedint", -1)),
        ("header:h", Field("float", 1e39)),
        ("header:h", Field("longstr", 5)),
        ("header:h", Field("bool", 1)),
        ("header:h", Field("decimal", 1.5)),
        ("header:h", Field("table", {1: "a"})),
    ],
)
def test_a_key_of_the_wrong_type_is_refused(by: str, key: object) -> None:
    ring = HashRing([("a", 1), ("b", 1)], by=by, version="3.10")
    with pytest.raises(ConfigError):
        ring.route(key)
    with pytest.raises(ConfigError):
        ring.route_many([key])


@pytest.mark.parametrize("keys", ["text", b"bytes", 5, None, np.zeros((2, 2), "S1")])
def test_what_is_no_column_is_refused(keys: Any) -> None:
    with pytest.raises(ConfigError, match="keys="):
        TEN.route_many(keys)


def test_a_column_without_a_routing_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="routing key"):
        TEN.route_many(pa.array(["a", None]))
    with pytest.raises(ConfigError):
        equal(3, by="property:timestamp").route_many(np.array([b"1"]))


def test_from_3_13_an_empty_list_is_refused_as_the_broker_fails_on_it() -> None:
    assert equal(3, by="header:h", version="3.12").route([])
    with pytest.raises(ConfigError, match="empty"):
        equal(3, by="header:h", version="3.13").route([])


def test_a_ring_is_a_value() -> None:
    ring = HashRing({"a": 1, "b": 2}, by="header:h", version="3.10")
    assert ring == HashRing([("a", 1), ("b", 2)], "header:h", (3, 10))
    assert len({ring, pickle.loads(pickle.dumps(ring))}) == 1  # noqa: S301 (Spark pickles it)
    with pytest.raises(AttributeError):
        ring.by = "routing_key"  # type: ignore[misc]


def test_tables_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        jump.table(10)[0] = 1
