"""The wire: the same bytes give the same events, however they are split; bad bytes give one error."""

from __future__ import annotations

import datetime
import random
import resource
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from leash.amqp import wire
from leash.amqp.properties import NONE, Properties, decode_properties, encode_properties, with_headers
from leash.errors import ConfigError, ProtocolError

HEADERS: dict[str, Any] = {
    "text": "größe",
    "int": 7,
    "big": 2**40,
    "float": 0.1,
    "yes": True,
    "none": None,
    "bytes": bytearray(b"\x00\xff"),
    "when": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "price": Decimal("3.14"),
    "list": [1, "two", [3.5, {"four": 4}]],
    "table": {"deep": {"deeper": [None, False]}},
}


def all_properties() -> Properties:
    properties = Properties(
        content_type="application/json",
        content_encoding="gzip",
        headers=HEADERS,
        delivery_mode=2,
        priority=9,
        correlation_id="c-1",
        reply_to="answers",
        expiration="60000",
        message_id="m-1",
        timestamp=datetime.datetime(2026, 5, 6, tzinfo=datetime.UTC),
        message_type="order",
        user_id="leash",
        app_id="tests",
    )
    properties.cluster_id = "old"  # pamqp refuses it in the constructor; brokers pass it on
    return properties


ALL = encode_properties(all_properties())


def content(
    channel: int, head: commands.Basic.Deliver | Any, properties: bytes, body: bytes, piece: int
) -> list[bytes]:
    """The frames of a method with content, each as bytes."""
    frames = [frame.marshal(head, channel)]
    payload = struct.pack(">HHQ", 60, 0, len(body)) + properties
    frames.append(struct.pack(">BHI", 2, channel, len(payload)) + payload + b"\xce")
    for at in range(0, len(body), piece):
        part = body[at : at + piece]
        frames.append(struct.pack(">BHI", 3, channel, len(part)) + part + b"\xce")
    return frames


def delivery(
    channel: int,
    tag: int,
    body: bytes = b"body",
    properties: bytes = ALL,
    *,
    consumer: str = "c",
    key: str = "key",
    redelivered: bool = False,
    piece: int = 4088,
) -> list[bytes]:
    head = commands.Basic.Deliver(consumer, tag, redelivered, "exchange", key)
    return content(channel, head, properties, body, piece)


def flat(events: list[wire.Event]) -> dict[int, list[tuple[Any, ...]]]:
    """What each channel saw, in order, however it was batched."""
    seen: dict[int, list[tuple[Any, ...]]] = {}
    for event in events:
        items = seen.setdefault(event.channel, [])
        if isinstance(event, wire.Deliveries):
            columns = zip(
                event.tags,
                event.redelivered,
                event.exchanges,
                event.routing_keys,
                event.properties,
                event.bodies,
                strict=True,
            )
            items += [(event.consumer_tag, *row) for row in columns]
        elif isinstance(event, wire.Confirm):
            items.append(tuple(event))
        else:
            items.append((event.method.name, dict(event.method), *event[2:]))
    return seen


def decoded(pieces: list[bytes]) -> dict[int, list[tuple[Any, ...]]]:
    decoder = wire.Decoder()
    return flat([event for piece in pieces for event in decoder.feed(piece)])


def sample() -> bytes:
    """Empty, long and multi-frame bodies, methods and confirms in between, on five channels at once."""
    one = delivery(1, 1) + delivery(1, 2, b"") + [frame.marshal(commands.Basic.CancelOk("c"), 1)]
    one += delivery(1, 3, b"x" * 10_000, NONE, consumer="d", redelivered=True)
    two = delivery(2, 1, b"y" * 300, piece=100) + content(
        2, commands.Basic.Return(312, "NO_ROUTE", "e", "nowhere"), ALL, b"returned", 4088
    )
    three = [
        frame.marshal(commands.Basic.Ack(5, True), 3),
        frame.marshal(commands.Basic.Nack(6, False, False), 3),
    ]
    four = content(4, commands.Basic.GetOk(9, True, "e", "k", 3), NONE, b"got", 4088) + delivery(4, 10)
    zero = [wire.HEARTBEAT, frame.marshal(commands.Connection.Blocked("low on memory"), 0), wire.HEARTBEAT]
    lanes = [one, two, three, four, zero]
    mixed: list[bytes] = []
    for at in range(max(map(len, lanes))):
        mixed += [lane[at] for lane in lanes if at < len(lane)]
    return b"".join(mixed)


def test_a_split_anywhere_changes_nothing() -> None:
    data = sample()
    whole = decoded([data])
    assert {channel: len(items) for channel, items in whole.items()} == {1: 4, 2: 2, 3: 2, 4: 2, 0: 1}
    for at in range(len(data) + 1):
        assert decoded([data[:at], data[at:]]) == whole


def test_byte_by_byte_gives_the_same() -> None:
    data = sample()
    assert decoded([data[at : at + 1] for at in range(len(data))]) == decoded([data])


messages = st.tuples(
    st.integers(1, 4),  # channel
    st.one_of(st.binary(max_size=40), st.integers(0, 20_000).map(lambda size: b"z" * size)),
    st.sampled_from([NONE, ALL, encode_properties(Properties(message_id="m"))]),
    st.sampled_from(["a", "b"]),  # consumer
    st.text(max_size=20),  # routing key
    st.booleans(),
    st.sampled_from([50, 4088, 131_064]),  # size of a body frame
)


@settings(max_examples=300, deadline=None)
@given(st.lists(messages, max_size=12), st.data())
def test_any_interleaving_of_channels_and_any_splits_give_the_messages_back(
    wanted: list[tuple[int, bytes, bytes, str, str, bool, int]], data: st.DataObject
) -> None:
    queues: dict[int, list[bytes]] = {}
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for tag, (channel, body, properties, consumer, key, redelivered, piece) in enumerate(wanted, 1):
        frames = delivery(
            channel, tag, body, properties, consumer=consumer, key=key, redelivered=redelivered, piece=piece
        )
        queues.setdefault(channel, []).extend(frames)
        row = (consumer, tag, redelivered, "exchange", key, properties, body)
        expected.setdefault(channel, []).append(row)
    stream = []
    while queues:
        channel = data.draw(st.sampled_from(sorted(queues)))
        stream.append(queues[channel].pop(0))
        if not queues[channel]:
            del queues[channel]
    raw = b"".join(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert decoded(pieces) == expected


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 262_128, 1_000_000, 5 * 1024 * 1024])
def test_what_the_encoder_writes_the_decoder_reads_at_every_size(size: int) -> None:
    body = random.Random(size).randbytes(size)
    out: list[bytes] = []
    wire.PublishEncoder(7).encode([wire.Outgoing(body, "e", "k", ALL)], out)
    published = b"".join(out)
    skip = 8 + int.from_bytes(published[3:7], "big")  # the publish method; the rest is what a delivery has
    head = frame.marshal(commands.Basic.Deliver("c", 1, False, "e", "k"), 7)
    data = head + published[skip:]
    for step in (len(data), 65_536, 1_000):
        got = decoded([data[at : at + step] for at in range(0, len(data), step)])
        assert got == {7: [("c", 1, False, "e", "k", ALL, body)]}


def test_a_publish_is_what_pamqp_would_write() -> None:
    out: list[bytes] = []
    wire.PublishEncoder(3).encode([wire.Outgoing(b"hi", "e", "k", None, mandatory=True)], out)
    expected = frame.marshal(commands.Basic.Publish(0, "e", "k", True, False), 3)
    assert b"".join(out).startswith(expected)
    assert wire.ack(3, 9, True) == frame.marshal(commands.Basic.Ack(9, True), 3)
    assert wire.nack(3, 9, True, False) == frame.marshal(commands.Basic.Nack(9, True, False), 3)
    assert wire.nack(3, 9) == frame.marshal(commands.Basic.Nack(9, False, True), 3)
    assert wire.reject(3, 9, False) == frame.marshal(commands.Basic.Reject(9, False), 3)


def test_all_fourteen_properties_come_back_with_nested_headers() -> None:
    got = decode_properties(ALL)
    for name, value in all_properties():
        assert getattr(got, name) == value, name
    assert isinstance(got.headers, dict)
    assert got.headers["float"] == 0.1  # a double, not the nearest 32-bit float


def test_a_property_that_is_not_utf8_survives_a_round_trip() -> None:
    raw = b"\x00\x80\x03\xff\xfe\xfd"
    assert encode_properties(decode_properties(raw)) == raw


def test_changed_headers_leave_every_other_byte_alone() -> None:
    changed = decode_properties(with_headers(ALL, {"int": 8, "text": None, "new": "x"}))
    expected = {k: v for k, v in HEADERS.items() if k != "text"} | {"int": 8, "new": "x"}
    assert changed.headers == expected
    for name, value in all_properties():
        if name != "headers":
            assert getattr(changed, name) == value, name
    assert with_headers(with_headers(ALL, {"new": 1}), {"new": None}) == ALL
    assert decode_properties(with_headers(NONE, {"a": 1})).headers == {"a": 1}


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        (Properties(message_id="x" * 256), "message_id"),
        (Properties(priority=300), "priority"),
        (Properties(headers={"bad": object()}), "headers"),  # type: ignore[dict-item]
    ],
)
def test_properties_that_amqp_cannot_carry_are_named(properties: Properties, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        encode_properties(properties)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"AMQP\x00\x01\x00\x00", "asks for AMQP 1.0.0"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not AMQP"),
        (b"\x01\x00\x00\xff\xff\xff\xff\x00", "131072 were agreed"),
        (b"\x08\x00\x00\x00\x00\x00\x00\xcd", "frame end"),
        (b"\x08\x00\x00\x00\x00\x00\x01\x00\xce", "heartbeat"),
        (b"".join(delivery(1, 1)[1:]), "without its method"),
        (delivery(1, 1)[0] + delivery(1, 2)[0], "in the middle of"),
        (b"".join(delivery(1, 1)[:2]) + wire.ack(1, 1), "in the middle of"),
        (b"".join(delivery(0, 1)), "channel 0|in the middle"),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\xff\x00\xff\xce", "malformed method"),
        (
            delivery(1, 1)[0]
            + b"\x02\x00\x01\x00\x00\x00\x0e"
            + struct.pack(">HHQH", 60, 0, 2**62, 0)
            + b"\xce",
            "allows",
        ),
    ],
)
def test_bytes_that_are_not_amqp_give_one_clear_error(data: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        wire.Decoder().feed(data)


def test_only_properties_may_exceed_the_frame_that_was_agreed() -> None:
    """Brokers add to them what does not fit any more."""
    method, header, body = delivery(1, 1, b"body")
    at = {kind: bytes([kind]) + b"\x00\x01" for kind in (1, 2, 3)}
    size = struct.pack(">I", 131_073)
    for before, kind in ((b"", 1), (method + header, 3)):
        with pytest.raises(ProtocolError, match="131072 were agreed"):
            wire.Decoder().feed(before + at[kind] + size + b"\x00")
    props = encode_properties(Properties(headers={"h": "x" * 131_072}))
    large = struct.pack(">IHHQ", 12 + len(props), 60, 0, 4) + props + b"\xce"
    (batch,) = wire.Decoder().feed(method + at[2] + large + body)
    assert isinstance(batch, wire.Deliveries)
    assert batch.properties == [props]
    assert batch.bodies == [b"body"]
    with pytest.raises(ProtocolError, match="131072 were agreed"):
        wire.Decoder().feed(method + at[2] + struct.pack(">I", 262_145) + b"\x00")


def test_a_run_of_deliveries_that_are_alike_is_read_as_carefully_as_any_other() -> None:
    rng = random.Random(20261116)
    mail = encode_properties(Properties(message_id="m-12345", timestamp=all_properties().timestamp))
    run = [b"".join(delivery(1, tag, bytes([65 + tag]) * (3 + tag % 4), mail)) for tag in range(1, 9)]
    assert decoded(run) == decoded([b"".join(run)])
    outcomes = {"same": 0, "error": 0}
    for _ in range(20_000):
        data = bytearray(b"".join(run[: rng.randrange(3, 9)]))
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 60, 0xCE, 0xFF, rng.randrange(256)))
        whole = bytes(data)
        results = []
        half = len(b"".join(run[:3]))  # what the first ones look like is expected of those in the next piece
        for pieces in (
            [whole],
            [whole[:half], whole[half:]],
            [whole[at : at + 1] for at in range(len(whole))],
        ):
            try:
                results.append(decoded(pieces))
            except ProtocolError:
                results.append({})
        assert results[0] == results[1] == results[2]
        outcomes["same" if results[0] else "error"] += 1
    assert min(outcomes.values()) > 2_000, outcomes


def test_what_earlier_deliveries_of_a_channel_looked_like_is_only_expected_of_later_ones() -> None:
    plain = [b"".join(delivery(1, tag)) for tag in range(1, 9)]
    others = [b"".join(delivery(2, tag, consumer="other", key="k")) for tag in range(1, 5)]
    odd = [
        b"".join(delivery(1, 9, redelivered=True)),
        b"".join(delivery(1, 10, consumer="d")),
        b"".join(delivery(1, 11, key="yek")),
        b"".join(delivery(1, 12, b"")),
        b"".join(delivery(1, 13, properties=NONE)),
    ]
    stream = plain[:3] + others[:2] + plain[3:5] + others[2:] + [odd[0], plain[5], *odd[1:], *plain[6:]]
    one_by_one = decoded([bytes([byte]) for byte in b"".join(stream)])
    for size in range(1, len(stream)):
        assert decoded([b"".join(stream[at : at + size]) for at in range(0, len(stream), size)]) == one_by_one


def test_nor_is_anything_taken_from_a_channel_that_was_closed() -> None:
    channels = {1}
    decoder = wire.Decoder(channels=channels)
    (batch,) = decoder.feed(b"".join(b"".join(delivery(1, tag)) for tag in range(1, 4)))
    assert isinstance(batch, wire.Deliveries)
    assert batch.tags == [1, 2, 3]
    channels.clear()
    with pytest.raises(ProtocolError, match="channel 1, which is not open"):
        decoder.feed(b"".join(delivery(1, 4)))


def test_a_hundred_thousand_mutations_give_events_or_the_protocol_error() -> None:
    rng = random.Random(20261115)
    good = (
        sample()[:4000]
        + b"".join(delivery(1, 4))
        + frame.marshal(
            commands.Connection.Start(0, 9, {"product": "RabbitMQ", "list": [1, {"a": 2}]}, "PLAIN", "en_US"),
            0,
        )
    )
    outcomes = {"events": 0, "error": 0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100_000):
        start = rng.randrange(len(good) - 300) if rng.random() < 0.5 else 0
        data = bytearray(good[start : start + rng.randrange(8, 900)])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 3, 0x7F, 0xCE, 0xFF, rng.randrange(256)))
        decoder = wire.Decoder()
        try:
            cut = rng.randrange(len(data))
            for event in decoder.feed(bytes(data[:cut])) + decoder.feed(bytes(data[cut:])):
                if isinstance(event, wire.Deliveries):
                    for raw in event.properties:
                        decode_properties(raw)
            outcomes["events"] += 1
        except ProtocolError:
            outcomes["error"] += 1
    assert min(outcomes.values()) > 5_000, outcomes  # the mutations reach both sides
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
