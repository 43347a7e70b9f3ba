"""Routing as Spark column functions, against the same keys one by one."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from leash.errors import ConfigError
from leash.partitions import Partitions
from leash.policies.ring import HashRing, buckets
from leash.spark.functions import bucket, route
from tests.partitions.helpers import random_keys, weights
from tests.partitions.test_layout import made

KEYS = [*random_keys(300), "", "ä€🐇", "x" * 500]


def column(spark: SparkSession, keys: list[Any], kind: str, function: Any) -> list[Any]:
    frame = spark.createDataFrame([(key,) for key in keys], f"key {kind}")
    return [row[0] for row in frame.select(function("key")).collect()]


def test_columns_are_routed_as_single_keys_are(spark: SparkSession) -> None:
    ring = HashRing([("a", 1), ("b", 2), ("c", 1)])
    layout = made(Partitions("orders", weights(3), slots=30))
    by_header = HashRing([("a", 1), ("b", 2)], by="header:customer", version="3.10")
    assert column(spark, KEYS, "string", lambda c: bucket(c, 16)) == buckets(KEYS, 16).tolist()
    raw = [bytearray(key.encode()) for key in KEYS]
    assert column(spark, raw, "binary", lambda c: bucket(c, 16)) == buckets(KEYS, 16).tolist()
    assert column(spark, KEYS, "string", lambda c: route(c, ring)) == [ring.route(key) for key in KEYS]
    assert column(spark, KEYS, "string", lambda c: route(c, layout)) == [layout.route(key) for key in KEYS]
    missing = [None, *KEYS[:20]]
    expected = [by_header.route(key) for key in missing]
    assert column(spark, missing, "string", lambda c: route(c, by_header)) == expected


def test_timestamps_are_routed_by_their_seconds(spark: SparkSession) -> None:
    ring = HashRing([("a", 1), ("b", 1), ("c", 1)], by="property:timestamp")
    seconds = [0, 1_700_000_000, 1_700_000_001, 4_000_000_000, None]
    expected = [ring.route(key) for key in seconds]
    assert column(spark, seconds, "long", lambda c: route(c, ring)) == expected
    frame = spark.createDataFrame([(key,) for key in seconds], "key long")
    times = frame.select(route(F.timestamp_seconds("key"), ring))
    assert [row[0] for row in times.collect()] == expected


def test_what_cannot_be_routed_is_said_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="n=0: must be a whole number from 1"):
        bucket("key", 0)
    with pytest.raises(ConfigError, match="a HashRing, or a layout"):
        route("key", "orders")  # type: ignore[arg-type]
