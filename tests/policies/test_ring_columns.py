"""Columns of keys: every kind of column, and every kind of key, routes as its keys do one by one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.policies.ring import HashRing, buckets, jump
from leash.policies.ring.fields import Field
from leash.policies.ring.phash import phash2


def equal(n: int, **options: Any) -> HashRing:
    return HashRing([(f"q{i:03}", 1) for i in range(n)], **options)


def random_keys(count: int, longest: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(0, longest)) for _ in range(count)]


TEN = equal(10)


def test_columns_of_every_length_hash_as_single_keys_do() -> None:
    rng = random.Random(7)
    keys = [rng.randbytes(length) for length in range(301) for _ in range(4)]
    keys += [rng.randbytes(length) for length in (4095, 4096, 4097, 9000)]
    rng.shuffle(keys)
    assert list(TEN.route_many(keys)) == [TEN.route(key) for key in keys]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40) | st.text(max_size=40)))
def test_any_list_of_keys_routes_as_its_keys_do(keys: list[str | bytes]) -> None:
    assert list(TEN.route_many(keys)) == [TEN.route(key) for key in keys]


TEXT = ["", "a", "hello", "Grüße", "日本語" * 5, "x" * 255, "tenant-42"]
RAW = [text.encode() for text in TEXT]
TABLES = {
    "list of str": TEXT,
    "list of bytes": RAW,
    "tuple": tuple(RAW),
    "generator": (key for key in RAW),
    "mixed": [*TEXT[:3], *RAW[3:]],
    "numpy S": np.array(RAW),
    "numpy U": np.array(TEXT),
    "numpy object": np.array(TEXT, dtype=object),
    "numpy strided": np.array([key for pair in zip(RAW, RAW[::-1], strict=True) for key in pair])[::2],
    "arrow string": pa.array(TEXT),
    "arrow large string": pa.array(TEXT, pa.large_string()),
    "arrow string view": pa.array(TEXT, pa.string_view()),
    "arrow binary": pa.array(RAW),
    "arrow large binary": pa.array(RAW, pa.large_binary()),
    "arrow sliced": pa.array(["?", *TEXT, "!"])[1:-1],
    "arrow chunked": pa.chunked_array([TEXT[:2], [], TEXT[2:]]),
    "arrow dictionary": pa.array(TEXT).dictionary_encode(),
}


@pytest.mark.parametrize("form", TABLES)
def test_every_kind_of_column_routes_alike(form: str) -> None:
    expected = [TEN.route(key) for key in TEXT]
    routed = TEN.route_many(TABLES[form])
    assert routed.dtype == np.object_
    assert routed.tolist() == expected


def test_indices_and_buckets_are_int32() -> None:
    ring = HashRing([("a", 2), ("b", 1), ("c", 4)])
    places = ring.indices(RAW)
    assert places.dtype == np.int32
    assert [ring.queues[i] for i in places] == [ring.route(key) for key in RAW]
    numbers = buckets(RAW, 1000)
    assert numbers.dtype == np.int32
    assert numbers.tolist() == [jump.bucket(phash2(key), 1000) for key in RAW]


@pytest.mark.parametrize(
    "keys", [[], (), np.array([], "S4"), np.array([], object), pa.array([], pa.string())]
)
def test_an_empty_column_routes_to_an_empty_one(keys: Any) -> None:
    for by in ("routing_key", "header:x", "property:timestamp", "property:message_id"):
        assert len(equal(3, by=by, version="3.10").route_many(keys)) == 0


def test_fixed_size_arrow_binaries_keep_their_zero_bytes() -> None:
    keys = [b"ab\0\0", b"\0\0\0\0", b"abcd"]
    assert TEN.route_many(pa.array(keys, pa.binary(4))).tolist() == [TEN.route(key) for key in keys]


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(0, 2**32))
def test_random_weights_route_alike_one_by_one_and_in_bulk(weights: list[int], seed: int) -> None:
    ring = HashRing([(f"q{i}", weight) for i, weight in enumerate(weights)])
    keys = random_keys(300, 30, seed)
    assert ring.route_many(keys).tolist() == [ring.route(key) for key in keys]


@pytest.mark.parametrize("count", [jump._FEW, jump._FEW + 1])
def test_short_and_long_columns_route_alike(count: int) -> None:
    ring = HashRing([("a", 3), ("b", 1), ("c", 7)])
    keys = random_keys(count, 30)
    places, numbers = ring.indices(keys).tolist(), buckets(keys, 11).tolist()
    for i in range(0, count, 17):
        assert ring.queues[places[i]] == ring.route(keys[i])
        assert numbers[i] == jump.bucket(phash2(keys[i]), 11)


# Headers, properties, missing keys

OLD = equal(100, by="header:h", version="3.12")
NEW = equal(100, by="header:h", version="3.13")


def place(ring: HashRing, seed: int) -> str:
    return f"q{jump.bucket(seed, ring.buckets):03}"


@pytest.mark.parametrize(
    ("value", "hashed"),  # the tuple's hash, from Erlang
    [
        (Field("longstr", "hello"), 5518530),
        ("hello", 5518530),
        (Field("binary", b"hello"), 50957146),
        (b"hello", 50957146),
        (42, 20266392),
        (-(2**40), 32506873),
        (True, 32030443),
        (2.5, 126418831),
        (Field("decimal", (2, 314)), 113508173),
        (Field("void"), 27077197),
        (Field("timestamp", 1700000000), 59280699),
        ({"k": "v"}, 95356243),
        ([Field("byte", -7), Field("unsignedint", 7)], 117696122),
        (None, 45914356),
    ],
)
def test_up_to_3_12_a_header_is_hashed_with_its_type(value: object, hashed: int) -> None:
    assert OLD.route(value) == place(OLD, hashed)
    assert OLD.route_many([value, "other"]).tolist() == [OLD.route(value), OLD.route("other")]


@pytest.mark.parametrize(
    ("value", "seed"),
    [
        ("hello", 47480723),
        (b"hello", 47480723),
        (42, 42),
        (Field("byte", 42), 42),
        (-1, -1),
        (2**40, 2**40),
        (Field("timestamp", 1700000000), 1700000000000),
        (1.0, 77147068),
        (Field("float", 1.0), 77147068),
        (True, 506293),
        (Field("void"), 45914356),
        (None, 45914356),
        (["hello", 1], 5518530),
        ([42], 20266392),
    ],
)
def test_from_3_13_a_header_is_its_bare_value(value: object, seed: int) -> None:
    assert NEW.route(value) == place(NEW, seed)
    assert NEW.route_many([value, "other"]).tolist() == [NEW.route(value), NEW.route("other")]


@pytest.mark.parametrize("ring", [OLD, NEW])
def test_header_columns_take_their_type_from_the_column(ring: HashRing) -> None:
    texts = [ring.route(key) for key in TEXT]
    raws = [ring.route(key) for key in RAW]
    assert (texts == raws) is (ring is NEW)
    for keys in (TEXT, np.array(TEXT), pa.array(TEXT)):
        assert ring.route_many(keys).tolist() == texts
    for keys in (RAW, np.array(RAW), pa.array(RAW)):
        assert ring.route_many(keys).tolist() == raws
    assert ring.route_many([*TEXT, *RAW]).tolist() == texts + raws


def test_a_32_bit_float_is_hashed_as_the_double_that_it_becomes() -> None:
    assert OLD.route(Field("float", 0.1)) == OLD.route(Field("float", float(np.float32(0.1))))
    assert OLD.route(0.1) == OLD.route(Field("double", 0.1))


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
def test_a_property_is_hashed_as_text(name: str) -> None:
    for version in ("3.8", "3.12", "3.13", "4.1"):
        ring = equal(100, by=f"property:{name}", version=version)
        assert ring.route("hello") == ring.route(b"hello") == equal(100).route("hello")
        assert ring.route(None) == place(ring, 45914356)
        assert ring.route_many(pa.array(["hello", None])).tolist() == [ring.route("hello"), ring.route(None)]


def test_a_timestamp_is_hashed_as_decimal_seconds() -> None:
    ring = equal(100, by="property:timestamp")
    seconds = [0, 1, 1700000000, 2**64 - 1]
    expected = [equal(100).route(str(second)) for second in seconds]
    assert [ring.route(second) for second in seconds] == expected
    assert ring.route_many(np.array(seconds, np.uint64)).tolist() == expected
    assert ring.route_many([*seconds, None]).tolist() == [*expected, place(ring, 45914356)]
    assert ring.route_many(pa.array([1, None])).tolist() == [expected[1], ring.route(None)]
    assert ring.route_many([None, None]).tolist() == [ring.route(None)] * 2
