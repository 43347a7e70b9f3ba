"""What the sink publishes, and what it refuses, without Spark around it."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, IntegerType, MapType, StringType, StructField, StructType

from leash.amqp import connect
from leash.errors import ConfigError, TopologyError
from leash.partitions import Partitions
from leash.spark import sink
from leash.spark.settings import SinkSettings, sink_settings
from leash.spark.sink_rows import check_schema
from tests.partitions.helpers import drain, random_keys, weights

from .harness import declare, ready

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
KEYS = random_keys(200)
HEADERS = pa.map_(pa.string(), pa.string())


def settings(uri: str, **given: str) -> SinkSettings:
    return sink_settings({"url": uri, "confirmTimeout": "10s", **given})


def batch(count: int, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"%d" % number for number in range(count)], **columns})


def headers(rows: list[list[tuple[str, str | None]] | None]) -> pa.Array:
    return pa.array(rows, HEADERS)


BY = {
    "routing_key": {"routing_key": KEYS},
    "header:customer": {"headers": headers([[("other", "x"), ("customer", key)] for key in KEYS])},
    "property:message_id": {"message_id": KEYS},
    "property:correlation_id": {"properties": [{"correlation_id": key} for key in KEYS]},
    "property:timestamp": {"timestamp": [AT + datetime.timedelta(seconds=int(key)) for key in KEYS]},
}


@pytest.mark.parametrize("by", BY)
def test_rows_go_to_partitions_by_what_these_are_made_by(uri: str, by: str) -> None:
    """A constant routing key, and the exchange that a message was read from, change nothing."""
    layout = Partitions("orders", weights(3), by, slots=24).declare(uri)
    columns: dict[str, Any] = {"routing_key": ["same"] * 200, "exchange": [""] * 200} | BY[by]
    sink.publish(settings(uri, partitions="orders"), iter([batch(200, **columns)]), "job-0")
    keys: list[object] = list(KEYS)
    if by == "property:timestamp":
        keys = [int(AT.timestamp()) + int(key) for key in KEYS]
    expected = list(layout.route_many(keys))
    with connect(uri) as link:
        found = drain(link, layout.queues, 200)
    assert {n: queue for queue, numbers in found.items() for n in numbers} == dict(enumerate(expected))
    assert len(set(expected)) == 3


@pytest.mark.parametrize(
    ("by", "columns"),
    [
        ("routing_key", {}),
        ("routing_key", {"routing_key": ["a", None]}),
        ("header:customer", {"routing_key": ["a", "b"]}),
        ("header:customer", {"headers": headers([[("customer", "a")], [("other", "b")]])}),
        ("header:customer", {"headers": headers([[("customer", "a")], [("customer", None)]])}),
        ("header:customer", {"headers": headers([[("customer", "a")], None])}),
        ("property:message_id", {"routing_key": ["a", "b"], "message_id": ["m", ""]}),
        ("property:correlation_id", {"properties": [{"correlation_id": "c"}, None]}),
        ("property:timestamp", {"timestamp": [AT, None]}),
    ],
)
def test_rows_without_the_key_of_their_partitions_are_refused(
    uri: str, by: str, columns: dict[str, Any]
) -> None:
    Partitions("orders", {"orders.0": 1}, by, slots=1).declare(uri)
    name = by.rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"partitions='orders': are by {by}: every row needs .*{name}"):
        sink.publish(settings(uri, partitions="orders"), iter([batch(2, **columns)]), "job-0")
    assert ready(uri, "orders.0") == 0


def test_an_option_or_automatic_ids_are_keys_too(uri: str) -> None:
    Partitions("keyed", {"keyed.0": 1}, slots=1).declare(uri)
    Partitions("ids", {"ids.0": 1}, "property:message_id", slots=1).declare(uri)
    sink.publish(settings(uri, partitions="keyed", routingKey="k"), iter([batch(5)]), "job-0")
    sink.publish(settings(uri, partitions="ids", messageId="auto"), iter([batch(5)]), "job-0")
    assert ready(uri, "keyed.0", 5) == ready(uri, "ids.0", 5) == 5


def test_partitions_that_are_not_there_are_named(uri: str) -> None:
    with pytest.raises(TopologyError, match="partitions 'orders' do not exist"):
        sink.publish(settings(uri, partitions="orders"), iter([batch(1, routing_key=["k"])]), "job-0")


def stamps(micros: int) -> pa.Array:
    return pa.array([int(AT.timestamp()) * 10**6, micros], pa.int64()).cast(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"properties": [{"delivery_mode": 1}, {"delivery_mode": 7}]},
            "properties.delivery_mode=7: must be 1",
        ),
        (
            {"properties": [{"delivery_mode": 1}, {"delivery_mode": 0}]},
            "properties.delivery_mode=0: must be 1",
        ),
        ({"properties": [None, {"priority": 256}]}, "properties.priority=256: must be from 0 to 255"),
        ({"properties": [None, {"priority": -1}]}, "properties.priority=-1: must be from 0 to 255"),
        (
            {"properties": [None, {"expiration": "5 s"}]},
            "properties.expiration='5 s': must be a whole number",
        ),
        ({"properties": [None, {"expiration": "-1"}]}, "properties.expiration='-1': must be a whole number"),
        ({"properties": [None, {"expiration": str(2**32)}]}, "properties.expiration='4294967296': must be"),
        (
            {"properties": [None, {"app_id": "é" * 128}]},
            "properties.app_id=.*at most 255 bytes; this has 256",
        ),
        ({"properties": [None, {"type": "x" * 256}]}, "properties.type=.*at most 255 bytes"),
        ({"message_id": ["m", "x" * 256]}, "column message_id=.*at most 255 bytes"),
        ({"routing_key": ["q", "x" * 256]}, "column routing_key=.*at most 255 bytes"),
        ({"exchange": ["", "x" * 256]}, "column exchange=.*at most 255 bytes"),
        ({"headers": headers([None, [("h" * 256, "v")]])}, "column headers=.*at most 255 bytes"),
        ({"timestamp": stamps(884_541_600_000_000_000)}, "timestamp='30000-01-04.*must be from 1970 to 9999"),
        ({"timestamp": stamps(-1_000_000)}, "timestamp='1969-12-31T23:59:59.*must be from 1970 to 9999"),
        ({"timestamp": stamps(-(2**63))}, "column timestamp=.*must be from 1970 to 9999"),
    ],
)
def test_a_value_that_cannot_be_published_is_named_before_anything_is(
    uri: str, columns: dict[str, Any], says: str
) -> None:
    declare(uri)
    with pytest.raises(ConfigError, match=says):
        sink.publish(settings(uri, routingKey="q"), iter([batch(2, **columns)]), "job-0")
    assert ready(uri) == 0


def test_the_last_values_that_fit_are_published(uri: str) -> None:
    declare(uri)
    fits = batch(
        2,
        properties=[
            {"delivery_mode": 1, "priority": 255, "expiration": str(2**32 - 1), "app_id": "x" * 255},
            {"delivery_mode": 2, "priority": 0, "expiration": None, "app_id": None},
        ],
        timestamp=[
            datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
        ],
        headers=headers([[("h" * 255, "v")], None]),
    )
    sink.publish(settings(uri, routingKey="q"), iter([fits]), "job-0")
    assert ready(uri, expect=2) == 2


def struct(name: str, kind: DataType) -> StructType:
    return StructType([StructField(name, kind)])


@pytest.mark.parametrize(
    ("column", "kind", "says"),
    [
        ("properties", struct("delivery_mode", StringType()), "delivery_mode='string': must be int"),
        ("properties", struct("app_id", IntegerType()), "properties.app_id='int': must be string"),
        ("properties", struct("colour", StringType()), "colour"),
        ("headers", MapType(IntegerType(), StringType()), "'map<int,string>': .* keys are strings"),
    ],
)
def test_columns_of_other_types_are_refused_before_anything_starts(
    column: str, kind: DataType, says: str
) -> None:
    schema = struct("value", StringType()).add(column, kind)
    with pytest.raises(ConfigError, match=says):
        check_schema(schema, settings("amqp://localhost", routingKey="q"))
