"""Keys to partitions, by the rule of the Java client."""

from __future__ import annotations

import random

import mmh3
import pyarrow as pa
import pytest

from leash.errors import ConfigError
from leash.streams import partition_of
from leash.streams.super_streams import SEED, murmur3


def test_the_java_clients_published_hashes() -> None:
    words = ["hello", "brave", "new", "world"]
    assert murmur3(words).tolist() == [1321743225, 3825276426, 2970740106, 2453398188]
    assert murmur3(words, seed=42).tolist() == [3806057185, 619588758, 1483300585, 1145629360]


def test_the_java_clients_published_routes() -> None:
    places = partition_of([f"hello{number}" for number in range(1, 11)], 3)
    assert places.tolist() == [1, 0, 1, 2, 0, 2, 0, 1, 0, 2]


def test_a_hundred_thousand_keys_by_another_implementation() -> None:
    chosen = random.Random(3)
    letters = "abcXYZ019-_ äßéλ漢字🐇\0"
    keys = ["".join(chosen.choices(letters, k=chosen.randrange(24))) for _ in range(100_000)]
    expected = [mmh3.hash(key.encode(), SEED, signed=False) for key in keys]
    assert murmur3(pa.array(keys)).tolist() == expected
    assert partition_of(pa.chunked_array([keys[:500], keys[500:]]), 7).tolist() == [
        each % 7 for each in expected
    ]
    assert murmur3(pa.array(keys)[100:200]).tolist() == expected[100:200]


def test_nulls_and_no_partitions_are_refused() -> None:
    with pytest.raises(ConfigError, match="no nulls"):
        partition_of(pa.array(["a", None]), 2)
    with pytest.raises(ConfigError, match="one at least"):
        partition_of(["a"], 0)
    assert partition_of([], 3).tolist() == []
