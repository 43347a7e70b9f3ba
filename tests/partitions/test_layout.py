"""Layouts without a broker: routing, what a change costs, and remembering."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from leash.errors import ConfigError, TopologyError
from leash.partitions import Layout, Partitions
from leash.partitions.layout import Taking
from leash.partitions.plan import compare
from leash.policies.ring import HashRing
from tests.partitions.helpers import random_keys, weights

VERSION = (3, 10, 8)


def made(partitions: Partitions, before: Layout | None = None) -> Layout:
    """The layout after applying it."""
    plan = compare(before, replace(partitions._asked, version=VERSION))
    return replace(plan.after, ready=True)


def test_a_direct_layout_routes_as_its_ring() -> None:
    layout = made(Partitions("orders", {"b": 2, "a": 1}, layout="direct"))
    keys = random_keys(500)
    ring = HashRing([("a", 1), ("b", 2)])
    assert list(layout.route_many(keys)) == list(ring.route_many(keys)) == [layout.route(k) for k in keys]


def test_slots_route_to_the_queue_that_owns_the_keys_slot() -> None:
    layout = made(Partitions("orders", weights(3), slots=60))
    keys = random_keys(500)
    slots = HashRing([(f"orders.slot-{i:03}", 1) for i in range(60)]).route_many(keys)
    expected = [layout.owners[int(name[-3:])] for name in slots]
    assert list(layout.route_many(keys)) == expected == [layout.route(key) for key in keys]


@pytest.mark.parametrize("shape", ["slots", "direct"])
def test_shares_are_close_to_the_weights_and_add_up(shape: str) -> None:
    layout = made(Partitions("orders", {"a": 1, "b": 2, "c": 3}, layout=shape))  # type: ignore[arg-type]
    shares = layout.shares()
    assert sum(shares.values()) == pytest.approx(1)
    for share, weight in zip(shares.values(), (1, 2, 3), strict=True):
        assert share == pytest.approx(weight / 6, rel=0.01)


def test_growing_slots_from_four_to_five_moves_a_fifth_and_nothing_between_old_queues() -> None:
    before = made(Partitions("orders", weights(4)))
    after = made(Partitions("orders", weights(5)), before)
    assert before.moved(after) == pytest.approx(0.2, abs=1 / 120)
    assert {move.target for move in before.moves_to(after)} == {"orders.4"}
    keys = random_keys(20_000)
    assert before.moved(after, keys) == pytest.approx(0.2, abs=0.02)


def test_removing_the_first_of_ten_direct_queues_moves_nearly_all_keys() -> None:
    before = made(Partitions("orders", weights(10), layout="direct"))
    fewer = dict.fromkeys(list(weights(10))[1:], 1)
    after = made(Partitions("orders", fewer, layout="direct"), before)
    assert before.moved(after) == pytest.approx(0.989, abs=0.001)


def test_new_bindings_of_a_direct_layout_come_last_and_reweighted_ones_after_them() -> None:
    before = made(Partitions("orders", {"a": 1, "b": 1, "c": 1}, layout="direct"))
    after = made(Partitions("orders", {"a": 2, "b": 1, "c": 1, "z": 1}, layout="direct"), before)
    assert after.weights == (("b", 1), ("c", 1), ("z", 1), ("a", 2))


def test_a_new_direct_layout_is_bound_in_the_order_that_a_restart_would_sort() -> None:
    layout = made(Partitions("orders", {"b": 10, "c": 9, "a": 2}, layout="direct"))
    assert layout.weights == (("b", 10), ("a", 2), ("c", 9))
    assert layout.restarted() == layout


def test_slots_are_always_in_the_order_of_a_restart_unless_the_broker_shuffled_them() -> None:
    layout = made(Partitions("orders", weights(3), slots=12))
    assert layout.restarted() == layout
    shuffled = replace(layout, order=(11, *range(1, 11), 0))
    assert shuffled.restarted() == layout
    assert layout.moved(shuffled) > 0


def test_an_upgrade_to_3_13_moves_header_hashed_keys() -> None:
    layout = made(Partitions("orders", weights(4), by="header:customer"))
    after = layout.upgraded((3, 13))
    assert layout.moved(after) == pytest.approx(0.75, abs=0.01)
    assert layout.moved(after, ["c1", "c2", "c3", "c4", "c5", "c6"]) > 0
    by_key = made(Partitions("orders", weights(4)))
    assert by_key.moved(by_key.upgraded((4, 1))) == 0


def test_a_layout_comes_back_from_json_as_it_was() -> None:
    layout = replace(
        made(Partitions("orders", weights(5), by="header:customer", kind="quorum", slots=20)),
        retired=("orders.9",),
        moves=7,
        left=(("orders.9", 6),),
        taking=Taking(7, "orders.1", (3, 4)),
        leaving=(("x", 3),),
    )
    assert Layout.from_json(json.loads(json.dumps(layout.to_json())), VERSION) == layout
    with pytest.raises(ConfigError, match="newer Leash"):
        Layout.from_json({**layout.to_json(), "format": 2})


def test_keys_may_come_as_a_numpy_array() -> None:
    layout = made(Partitions("orders", weights(3)))
    keys = random_keys(100)
    assert list(layout.route_many(np.array(keys, object))) == list(layout.route_many(keys))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weights": {"a": 0}}, "weight=0: must be a whole number of at least 1"),
        ({"weights": {}}, "queues and their weights"),
        ({"weights": {"a": 1}, "by": "property:priority"}, "by='property:priority': .*message_id"),
        (
            {"weights": {"a": 1}, "by": ["header:h", "property:message_id"]},
            "a header or by a property, not both",
        ),
        ({"weights": {"a": 1}, "layout": "ring"}, "'slots' or 'direct'"),
        ({"weights": {"a": 1}, "slots": 0}, "from 1 to 1000"),
        ({"weights": {"a": 1}, "kind": "stream"}, "'classic' or 'quorum'"),
        ({"weights": {"a": 1000, "b": 1}}, "no slot of 120 is left for 'b'"),
    ],
)
def test_what_cannot_be_asked_for_is_said_in_one_sentence(
    arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Partitions("orders", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [{"layout": "direct"}, {"by": "header:h"}, {"kind": "quorum"}, {"slots": 60}, {"ordered": False}],
)
def test_what_is_fixed_for_good_cannot_be_changed_later(other: dict[str, object]) -> None:
    before = made(Partitions("orders", weights(2)))
    with pytest.raises(ConfigError, match="as 'orders' was made"):
        made(Partitions("orders", weights(2), **other), before)  # type: ignore[arg-type]


def test_an_exchange_that_leash_did_not_make_is_left_alone() -> None:
    asked = replace(Partitions("orders", weights(2))._asked, version=VERSION)
    with pytest.raises(TopologyError, match="Leash did not make it"):
        compare(None, asked, foreign=True)


def test_a_plan_warns_of_restarts_where_they_shuffle() -> None:
    asked = Partitions("orders", weights(2))._asked
    assert "default_worker_pool_size = 1" in str(compare(None, replace(asked, version=VERSION)))
    assert compare(None, replace(asked, version=(4, 2))).notes == ()
