"""Properties of any depth and shape: changed byte for byte, read as far as they can be, and not hoarded."""

from __future__ import annotations

import datetime
import gc
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import decode as pamqp_decode

from leash.amqp import (
    Properties,
    decode_properties,
    encode_properties,
    read_header,
    read_property,
    salvage_properties,
    with_headers,
)
from leash.errors import ConfigError, ProtocolError
from tests.amqp.odd import MALFORMED, long, nested, with_table

FRAME = 131_072
DEATHS = {
    "x-death": None,
    **dict.fromkeys(
        [f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")]
    ),
    "x-delivery-count": None,
    "x-acquired-count": None,
}


def fitting(kind: str) -> int:
    """As deep as a frame has room for."""
    return (FRAME - 100) // {"table": 7, "array": 5, "both": 7}[kind]


DEEP = [(kind, depth) for kind in ("table", "array", "both") for depth in (1, 330, 500, 5_000, fitting(kind))]


@pytest.mark.parametrize(("kind", "depth"), DEEP)
def test_headers_of_any_depth_are_changed_without_being_touched(kind: str, depth: int) -> None:
    deep = (b"deep", nested(depth, kind))
    dead = (b"x-death", nested(depth // 2, kind)) if depth < 6_000 else (b"x-death", b"V")
    raw = with_table((b"first", b"t\x01"), deep, dead, (b"last", b"t\x00"))
    assert with_headers(raw, DEATHS) == with_table((b"first", b"t\x01"), deep, (b"last", b"t\x00"))
    tries = (b"x-leash-tries", b"I\x00\x00\x00\x07")
    told = with_headers(raw, {**DEATHS, "x-leash-tries": 7})
    assert told == with_table((b"first", b"t\x01"), deep, (b"last", b"t\x00"), tries)
    assert with_headers(raw, {"first": None, "deep": None, **DEATHS}) == with_table((b"last", b"t\x00"))
    assert read_header(told, "x-leash-tries") == 7
    assert read_property(told, "message_id") == "m-1"


@pytest.mark.parametrize(("kind", "depth"), DEEP)
def test_headers_of_any_depth_are_decoded(kind: str, depth: int) -> None:
    inside = b"I\x00\x00\x00\x05"
    raw = with_table((b"deep", nested(depth, kind, inside)), (b"flat", b"S" + long(b"text")))
    for found in (decode_properties(raw), salvage_properties(raw)):
        assert found.message_id == "m-1"
        headers: dict[str, Any] = found.headers or {}
        assert headers["flat"] == "text"
        value = headers["deep"]
        for _ in range(depth):
            value = value["a"] if isinstance(value, dict) else value[0]
        assert value == 5


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_value_is_copied_as_it_is_and_hides_nothing_else(name: str) -> None:
    bad = (b"bad", MALFORMED[name])
    raw = with_table((b"a", b"t\x01"), bad, (b"x-leash-tries", b"I\x00\x00\x00\x02"))
    assert with_headers(raw, {"x-leash-tries": 3}) == with_table(
        (b"a", b"t\x01"), bad, (b"x-leash-tries", b"I\x00\x00\x00\x03")
    )
    assert with_headers(raw, {"bad": None}) == with_table(
        (b"a", b"t\x01"), (b"x-leash-tries", b"I\x00\x00\x00\x02")
    )
    with pytest.raises(ProtocolError):
        decode_properties(raw)
    assert read_header(raw, "x-leash-tries") == 2
    assert read_header(raw, "bad") is None
    found = salvage_properties(raw)
    assert (found.headers, found.message_id) == ({"a": True, "x-leash-tries": 2}, "m-1")


def test_headers_after_one_of_an_unknown_type_cannot_be_found() -> None:
    raw = with_table((b"a", b"t\x01"), (b"bad", b"Z"), (b"b", b"t\x01"))
    with pytest.raises(ProtocolError, match="'Z'"):
        with_headers(raw, {"a": None})
    assert (read_header(raw, "a"), read_header(raw, "b")) == (True, None)
    found = salvage_properties(raw)
    assert (found.headers, found.message_id) == ({"a": True}, "m-1")


def test_properties_can_be_left_out_in_the_same_go() -> None:
    full = Properties(
        content_type="text/plain",
        headers={"a": 1},
        expiration="60000",
        message_id="m-1",
        user_id="me",
        timestamp=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    )
    raw = with_headers(encode_properties(full), {"b": 2}, without=("expiration", "user_id"))
    found = decode_properties(raw)
    assert (found.expiration, found.user_id, found.message_id) == (None, None, "m-1")
    assert (found.content_type, found.timestamp, found.headers) == (
        *("text/plain", full.timestamp),
        {"a": 1, "b": 2},
    )
    bare = encode_properties(Properties(content_type="text/plain", message_id="m-1"))
    assert with_headers(bare, DEATHS) == bare
    assert decode_properties(with_headers(bare, {"new": "x"})).headers == {"new": "x"}


def test_what_is_not_utf8_and_what_is_no_date_hide_nothing_else() -> None:
    raw = with_table(
        (b"\xff\xfe", b"I\x00\x00\x00\x01"),
        (b"when", b"T" + b"\xff" * 8),
        (b"text", b"S" + long(b"\xc3\x28")),
        (b"in", b"F" + long(b"\x02\xe9xt\x01")),
        others=b"\x03m-1" + b"\xff" * 8 + b"\x02\xff\xfe",
        flags=0x20E0,
    )
    found = decode_properties(raw)
    assert found.headers == {"\udcff\udcfe": 1, "when": None, "text": b"\xc3\x28", "in": {"\udce9x": True}}
    assert (found.message_id, found.timestamp, found.message_type) == ("m-1", None, "\udcff\udcfe")
    assert read_header(raw, "\udcff\udcfe") == 1
    assert with_headers(raw, {}) == raw


@pytest.mark.parametrize(
    ("number", "year"),
    [(0, 1970), (2**32 - 1, 2106), (1_767_225_600_000, 2026), (253_402_300_799_999, 9999), (2**48, 10889)],
)
def test_a_timestamp_is_in_seconds_or_milliseconds_or_impossible(number: int, year: int) -> None:
    stamp = decode_properties(b"\x00\x40" + number.to_bytes(8, "big")).timestamp
    assert stamp is None if year > 9999 else stamp is not None and stamp.year == year


def test_plain_tables_come_out_as_pamqp_reads_them() -> None:
    rng = random.Random(14)
    kinds: dict[str, Callable[[], bytes]] = {
        **{letter: lambda: rng.randbytes(1) for letter in "tbB"},
        **{letter: lambda: rng.randbytes(2) for letter in "su"},
        **{letter: lambda: rng.randbytes(4) for letter in "Ii"},
        **{letter: lambda: rng.randbytes(8) for letter in "lL"},
        "d": lambda: struct.pack(">d", rng.gauss(0, 1)),
        "f": lambda: struct.pack(">f", rng.gauss(0, 1)),
        "D": lambda: bytes([rng.randrange(9)]) + rng.randbytes(4),
        "T": lambda: rng.randrange(2**32).to_bytes(8, "big"),
        "S": lambda: long(rng.randbytes(rng.randrange(3))),
        "x": lambda: long(rng.randbytes(rng.randrange(9))),
        "V": lambda: b"",
        "\0": lambda: b"",
        "F": lambda: long(table(rng.randrange(3))),
        "A": lambda: long(b"".join(value() for _ in range(rng.randrange(3)))),
    }

    def value() -> bytes:
        letter = rng.choice(list(kinds))
        return letter.encode() + kinds[letter]()

    def table(count: int) -> bytes:
        return b"".join(b"\x02" + rng.choice("abcde").encode() + b"%d" % n + value() for n in range(count))

    for _ in range(3_000):
        raw = b"\x20\x00" + long(table(6))
        assert decode_properties(raw).headers == pamqp_decode.field_table(raw[2:])[1]


def test_whatever_the_bytes_there_is_an_answer_or_the_protocol_error() -> None:
    rng = random.Random(5)
    good = with_table(
        (b"deep", nested(20, "both")), (b"text", b"S" + long(b"hello")), (b"price", b"D\x02\x00\x00\x01\x00")
    )
    outcomes = {"answer": 0, "error": 0}
    for _ in range(30_000):
        data = bytearray(good[: rng.randrange(len(good) + 1)] if rng.random() < 0.3 else good)
        for _ in range(rng.randrange(1, 5)):
            if data:
                data[rng.randrange(len(data))] = rng.choice(
                    (0, 1, 0x41, 0x46, 0x53, 0xFF, rng.randrange(256))
                )
        raw = bytes(data)
        salvage_properties(raw)
        read_header(raw, "text")
        read_property(raw, "message_id")
        try:
            changed = with_headers(raw, {"new": 1, "deep": None})
            assert read_header(changed, "new") == 1
            assert read_header(with_headers(changed, {"new": None}), "new") is None
            outcomes["answer"] += decode_properties(raw) is not None
        except ProtocolError:
            outcomes["error"] += 1
    assert min(outcomes.values()) > 1_000, outcomes


def test_headers_that_python_cannot_walk_through_are_refused_by_name() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match=r"headers=.*less deeply nested"):
        encode_properties(Properties(headers=deep))


def test_large_headers_that_were_decoded_are_not_kept() -> None:
    def raw(number: int) -> bytes:
        entries = [(b"%06d" % (number * 3_000 + n), b"S" + long(b"x" * 20)) for n in range(3_000)]
        return with_table(*entries)

    messages = [raw(number) for number in range(60)]  # decoded, all of them would take some 30 MB
    decode_properties(messages[0])
    gc.collect()
    tracemalloc.start()
    try:
        for message in messages:
            assert len(decode_properties(message).headers or {}) == 3_000
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 10_000_000, f"{kept / 1e6:.0f} MB"


def test_equal_properties_are_decoded_once_whatever_their_size() -> None:
    for size in (1, 4_000):
        raw = encode_properties(Properties(headers={"text": "x" * size}))
        assert decode_properties(raw) is decode_properties(bytes(bytearray(raw)))
