"""Rows of odd messages: one field that cannot be shown hides no other."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from leash.amqp import Outgoing, Publisher, connect, topology
from leash.spark.columns import source_schema
from leash.spark.staging.chunks import RAW
from leash.spark.task.rows import project
from tests.amqp.odd import MALFORMED, long, nested, with_table
from tests.spark import victim
from tests.spark.harness import Query, declare, options, ready, unflagged, values

SCHEMA = to_arrow_schema(source_schema(include_headers=True), timezone="UTC")
NO_DATE = b"\xff" * 8
STAMPED = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
SECONDS = int(STAMPED.timestamp()).to_bytes(8, "big")


def row(properties: bytes, **changes: str) -> dict[str, Any]:
    raw = {"redelivered": False, "exchange": "e", "routing_key": "k", "properties": properties, "body": b"b"}
    batch = pa.RecordBatch.from_pylist([raw | changes], RAW)
    found = project(batch, "q", SCHEMA).to_pylist()[0]
    assert isinstance(found, dict)
    return found


def test_an_impossible_timestamp_is_null_and_all_else_is_there() -> None:
    found = row(b"\x80\xc0\x04text\x03m-1" + NO_DATE)
    assert (found["message_id"], found["timestamp"]) == ("m-1", None)
    assert found["properties"]["content_type"] == "text"


def test_what_is_not_utf8_is_escaped_and_all_else_is_there() -> None:
    raw = with_table(
        (b"\xff\xfe", b"S" + long(b"\xc3(")),
        (b"when", b"T" + NO_DATE),
        (b"bytes", b"x" + long(b"\x00\xff")),
        (b"deep", b"F" + long(b"\x02\xe9xA" + long(b"S" + long(b"\xff") + b"t\x01"))),
        (b"plain", b"S" + long("größe".encode())),
        others=b"\x02m\xff" + SECONDS + b"\x02\xe9t",
        flags=0x20E0,
    )
    found = row(raw)
    assert dict(found["headers"]) == {
        "\\xff\\xfe": "\\xc3(",
        "when": None,
        "bytes": "\x00\\xff",
        "deep": r'{"\\xe9x": ["\\xff", true]}',
        "plain": "größe",
    }
    assert (found["message_id"], found["timestamp"], found["properties"]["type"]) == (
        "m\\xff",
        STAMPED,
        "\\xe9t",
    )


def test_names_that_are_escaped_alike_are_one_key() -> None:
    found = row(with_table((b"\xff", b"t\x00"), (b"\\xff", b"t\x01")))
    assert found["headers"] == [("\\xff", "true")]


@pytest.mark.parametrize("kind", ["table", "array", "both"])
@pytest.mark.parametrize("depth", [1, 500, 18_000])
def test_headers_of_any_depth_are_json(kind: str, depth: int) -> None:
    found = row(with_table((b"deep", nested(depth, kind, b"I\x00\x00\x00\x05")), (b"a", b"t\x01")))
    assert found["message_id"] == "m-1"
    headers = dict(found["headers"])
    assert headers["a"] == "true"
    assert headers["deep"].count("[") + headers["deep"].count("{") == depth
    assert "5" in headers["deep"]


def test_json_is_what_the_json_module_writes() -> None:
    from leash.spark.task.rows import _json

    cases: list[Any] = [
        [],
        {},
        [[]],
        [{}, []],
        {"a": []},
        {"a": {"b": [1, "zwölf", None, 1.5, True]}, "c": [[1], 2]},
    ]
    for value in cases:
        assert _json(value) == json.dumps(value)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_header_hides_no_other(name: str) -> None:
    raw = with_table((b"a", b"t\x01"), (b"bad", MALFORMED[name]), (b"b", b"t\x00"))
    found = row(raw)
    assert (found["message_id"], dict(found["headers"])) == ("m-1", {"a": "true", "b": "false"})


def test_an_address_that_is_not_utf8_is_escaped(uri: str, staging: Path) -> None:
    declare(uri)
    with connect(uri) as link, link.channel() as channel, Publisher(link) as publisher:
        topology.declare_exchange(channel, "all", kind="fanout")
        topology.bind_queue(channel, "q", "all")
        publisher.publish([Outgoing(b"a", "all", "k\udcff")])
    found = Query(options(uri, staging)).batch()
    assert found is not None
    assert found[0]["routing_key"] == "k\\xff"


ODD = {
    "impossible timestamp": b"\x00\xc0%s" + NO_DATE,
    "header name": b"\x20\x80" + long(b"\x02\xff\xfet\x01") + b"%s",
    "headers 500 deep": b"\x20\x80" + long(b"\x01d" + nested(500, "both")) + b"%s",
}


@pytest.mark.parametrize("odd", ODD)
def test_copies_of_odd_messages_are_recognised(uri: str, staging: Path, odd: str) -> None:
    declare(uri)
    with connect(uri) as link, Publisher(link) as publisher:
        for number in range(10):
            raw = ODD[odd].replace(b"%s", b"\x03m-%d" % number)
            publisher.publish([Outgoing(b"%d" % number, "", "q", raw)])
    query = Query(options(uri, staging, deduplication="messageId"))
    assert query.plan()
    victim.die(query.given, query.partitions()[0], "after-seal")
    rows = query.read()
    assert ready(uri, expect=10) == 10
    assert len(rows) == len(unflagged(rows)) == 10
    assert sorted(found["message_id"] for found in rows) == [f"m-{number}" for number in range(10)]
    assert sorted(values(rows + query.drain())) == sorted(values(rows))
