"""Frames and fields, without a socket."""

from __future__ import annotations

import struct

import pytest

from leash.errors import ChunkError, ConfigError, ProtocolError
from leash.streams import offset_of, wire
from leash.streams.chunks_to_arrow import read_chunk
from leash.streams.wire import Decoder, Fields, Key
from tests.streams.kit import chunk_of, deliver

FRAMES = [
    wire.HEARTBEAT,
    wire.request(Key.OPEN, 7, wire.text("/")),
    deliver(chunk_of([b"one", b"two" * 100])),
    wire.frame(Key.OPEN | wire.ANSWER, struct.pack(">IH", 7, 1) + wire.pairs({"a": "b"})),
    wire.frame(Key.PARTITIONS, struct.pack(">IH", 8, 1) + wire.texts(["x-0", "x-1"])),
]


def seen(frames: list[wire.Frame]) -> list[tuple[int, bool, bytes]]:
    return [(each.key, each.answer, bytes(each.body)) for each in frames]


def test_frames_are_the_same_wherever_the_bytes_are_split() -> None:
    whole = b"".join(FRAMES)
    expected = seen(Decoder().feed(whole))
    assert [key for key, _, _ in expected] == [Key.HEARTBEAT, Key.OPEN, Key.DELIVER, Key.OPEN, Key.PARTITIONS]
    for at in range(len(whole) + 1):
        decoder = Decoder()
        assert seen(decoder.feed(whole[:at]) + decoder.feed(whole[at:])) == expected
    decoder = Decoder()
    one_by_one = [frame for byte in whole for frame in decoder.feed(bytes((byte,)))]
    assert seen(one_by_one) == expected


def test_partitions_and_route_are_answers_even_without_the_mark() -> None:
    frames = Decoder().feed(FRAMES[4])
    assert frames[0].answer
    fields = Fields(frames[0].body)
    assert (fields.number(4), fields.number(2), fields.texts()) == (8, 1, ["x-0", "x-1"])


@pytest.mark.parametrize("size", [0, 3, 1 << 31])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="not the stream protocol"):
        Decoder().feed(size.to_bytes(4, "big") + bytes(8))


def test_a_frame_that_ends_within_a_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="ends within"):
        Fields(memoryview(b"\0\x05abc")).text()
    with pytest.raises(ProtocolError, match="claims to list"):
        Fields(memoryview(b"\x7f\0\0\0abc")).texts()


def test_a_null_text_is_empty() -> None:
    assert Fields(memoryview(b"\xff\xff")).text() == ""


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128])
def test_a_reference_has_1_to_255_bytes(name: str) -> None:
    with pytest.raises(ConfigError, match="from 1 to 255 bytes"):
        wire.reference(name)
    assert len(wire.reference("é" * 127 + "x")) == 257


def test_starts_become_offsets() -> None:
    assert offset_of("first", 0).encode() == b"\0\x01"
    assert offset_of("last", 0).encode() == b"\0\x02"
    assert offset_of("next", 0).encode() == b"\0\x03"
    assert offset_of(258, 0).encode() == b"\0\x04" + (258).to_bytes(8, "big")
    assert offset_of("2h", 10_000).encode() == b"\0\x05" + (2_800_000).to_bytes(8, "big")
    for wrong in ("soon", -1, 1.5, True):
        with pytest.raises(ConfigError):
            offset_of(wrong, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [1, 2])
def test_a_deliver_of_either_version_is_a_chunk(version: int) -> None:
    made = chunk_of([b"a", b"b"], first=500)
    (frame,) = Decoder().feed(deliver(made, version))
    assert read_chunk(frame, "s") == made


def test_a_chunk_that_is_cut_off_is_refused_by_name() -> None:
    raw = deliver(chunk_of([b"a", b"b"], first=500))
    for length in range(9, len(raw)):
        cut = wire.frame(Key.DELIVER, raw[8:length])
        (frame,) = Decoder().feed(cut)
        with pytest.raises(ChunkError, match="stream 'orders': chunk at offset"):
            read_chunk(frame, "orders")
