"""Chunks into columns, without a broker."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from leash.errors import ChunkError, ConfigError
from leash.streams import Chunk, amqp10, crc32c, sections, to_arrow
from leash.streams.compression import CODECS, pack, unpack
from leash.streams.encoding import Sub
from tests.streams.kit import DATA, VALUE, chunk, chunk_of, data, simple


def values(chunks: list[Chunk], **options: Any) -> list[bytes]:
    found: list[bytes] = to_arrow(chunks, "s", **options).column("value").to_pylist()
    return found


def ragged(count: int, seed: int = 1) -> list[bytes]:
    chosen = random.Random(seed)
    return [chosen.randbytes(chosen.choice([0, 1, 3, 100, 255, 256, 1000])) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 127, 128, 5000])
def test_values_of_one_length_and_of_many(count: int) -> None:
    for bodies in ([b"x" * 100] * count, [b""] * count, ragged(count)):
        assert values([chunk_of(bodies)]) == bodies


def test_many_small_chunks_at_once() -> None:
    bodies = ragged(3000)
    small = [chunk_of(bodies[at : at + 30], first=at) for at in range(0, 3000, 30)]
    batch = to_arrow(small, "s")
    assert batch.column("value").to_pylist() == bodies
    assert batch.column("offset").to_pylist() == list(range(3000))
    uneven = [chunk_of(bodies[at : at + 7 + at % 5], first=at) for at in range(0, 2000, 12)]
    expected = [body for at in range(0, 2000, 12) for body in bodies[at : at + 7 + at % 5]]
    assert values(uneven) == expected


def test_rows_outside_the_range_are_left_out() -> None:
    bodies = ragged(100)
    chunks = [chunk_of(bodies[:50], first=10), chunk_of(bodies[50:], first=65)]  # a gap of five between them
    batch = to_arrow(chunks, "s", start=20, end=70)
    assert batch.column("offset").to_pylist() == [*range(20, 60), *range(65, 70)]
    assert batch.column("value").to_pylist() == [*bodies[10:50], *bodies[50:55]]
    assert to_arrow(chunks, "s", start=60, end=65).num_rows == 0
    assert to_arrow([], "s").num_rows == 0


def test_timestamps_are_those_of_the_chunk() -> None:
    batch = to_arrow([chunk([simple(data(b"x"))], time=1_700_000_000_123)], "s")
    assert batch.column("timestamp").to_pylist() == [datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)]


@pytest.mark.parametrize("codec", CODECS)
def test_sub_entries_of_every_codec(codec: str) -> None:
    bodies = ragged(1000)
    packed = chunk_of(bodies, first=100, sub=Sub(64, codec))
    plain = chunk_of(bodies, first=1100)
    assert values([packed, plain]) == bodies + bodies
    assert values([packed], start=163, end=170) == bodies[63:70]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 255, 256, 257, 4000, crc32c.BLOCK])
def test_crc32c_by_tables_is_crc32c_by_the_book(size: int) -> None:
    body = random.Random(size).randbytes(size)
    crc = 0xFFFFFFFF
    for byte in body:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc32c.crc32c(body) == crc ^ 0xFFFFFFFF
    assert crc32c.crc32c(b"123456789") == 0xE3069283  # the vector that everybody publishes


def test_a_snappy_block_that_does_not_fit_its_crc_is_refused() -> None:
    packed = bytearray(pack("snappy", b"some text " * 10))
    packed[14] ^= 1  # of the CRC
    with pytest.raises(ValueError, match="does not fit its CRC"):
        unpack(CODECS.index("snappy"), memoryview(packed), 100)


def test_reading_and_publishing_do_not_import_pandas() -> None:
    """It costs every process a third of a second, and `pyarrow.array` does it."""
    script = (
        "import sys; from tests.streams.kit import chunk_of; from leash.streams import to_arrow;"
        "to_arrow([chunk_of([b'x', b'yy'])], 's'); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_sub_entries_and_messages_mixed() -> None:
    packed = bytes(chunk_of([b"one", b"two"], sub=Sub(2, "zstd")).data)
    single = bytes(chunk_of([b"three"], sub=Sub(1, "lz4")).data)
    last = simple(data(b"last"))
    assert values([chunk([simple(data(b"first")), packed, last], records=4)]) == [
        b"first",
        b"one",
        b"two",
        b"last",
    ]
    assert values([chunk([single, last], records=2)]) == [b"three", b"last"]  # as many entries as records
    assert values([chunk([last, single], records=2)]) == [b"last", b"three"]


def test_bodies_of_every_kind() -> None:
    before = sections({"message_id": "m", "subject": "x" * 300}, {"k": 1}, {"x-a": "b"})
    header = b"\0\x53\x70\xc0\x02\x01\x41"
    cases = {
        data(b"plain"): b"plain",
        before + data(b"with sections"): b"with sections",
        header + b"\0\x53\x73\x45" + data(b"empty list"): b"empty list",
        data(b"two ") + data(b"sections"): b"two sections",
        data(b"footed") + b"\0\x53\x78\xc1\x01\x00": b"footed",
        VALUE + b"\xa1\x04text": b"text",
        VALUE + b"\xb1\0\0\0\x04text": b"text",
        VALUE + b"\xa0\x03bin": b"bin",
        VALUE + b"\x54\x05": VALUE + b"\x54\x05",  # a number stays as it is encoded
        b"\0\x80" + (0x75).to_bytes(8, "big") + b"\xa0\x04long": b"long",
        before: b"",
        DATA + b"\xa0\x00": b"",
        b"not AMQP at all": b"not AMQP at all",
        b"": b"",
        b"\0": b"\0",
    }
    assert values([chunk([simple(each) for each in cases])]) == list(cases.values())
    for message, body in cases.items():
        assert values([chunk([simple(message)])]) == [body]
        assert amqp10.decode(message).body == body


def test_the_message_as_it_is_can_be_decoded() -> None:
    before = sections({"message_id": "m", "content_type": "text/plain"}, {"n": 5, "t": "ü"}, {"x-r": True})
    batch = to_arrow([chunk_of([b"body"] * 3, sections=before)], "s", columns=["message"])
    assert batch.schema.names == ["message"]
    message = amqp10.decode(batch.column("message")[2].as_py())
    assert message.body == b"body"
    assert message.properties == {"message_id": "m", "content_type": "text/plain"}
    assert message.application_properties == {"n": 5, "t": "ü"}
    assert message.annotations == {"x-r": True}


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"columns='valeu'.*value, offset"):
        to_arrow([], "s", columns=["valeu"])


def test_damage_is_named_by_stream_and_chunk() -> None:
    good = chunk_of([b"a", b"b"], first=40)
    with pytest.raises(ChunkError, match="stream 'orders': chunk at offset 42: its data do not fit its CRC"):
        to_arrow([good, chunk_of([b"x"], first=42)._replace(crc=5)], "orders")


@pytest.mark.parametrize("count", [2, 200])
def test_chunks_whose_data_end_elsewhere_are_refused(count: int) -> None:
    entries = [simple(data(b"x" * (n % 7))) for n in range(count)]
    for spoiled in (
        chunk([*entries[:-1], entries[-1][:-1]]),
        chunk([*entries, b"\0"], records=count),
        chunk(entries, records=count + 1)._replace(entries=count + 1),
        chunk(entries, records=count - 1)._replace(entries=count - 1),
    ):
        for chunks in ([spoiled], [*[chunk(entries)] * 60, spoiled._replace(first=7)]):
            with pytest.raises(
                ChunkError, match=f"chunk at offset {spoiled.first if len(chunks) == 1 else 7}"
            ):
                to_arrow(chunks, "s")


@pytest.mark.parametrize("codec", CODECS)
def test_sub_entries_that_are_damaged_are_refused(codec: str) -> None:
    raw = bytes(chunk_of([b"some bytes of text " * 50] * 20, sub=Sub(20, codec)).data)
    head = raw[:11]
    for spoiled in (
        raw[:-3],
        head[:7] + (len(raw) - 14).to_bytes(4, "big") + raw[11:-3],  # cut off, and its length says so
        b"\xf0" + raw[1:],  # a codec that nobody knows
        head[:3] + (5).to_bytes(4, "big") + raw[7:],  # unpacks to more than it says
        head[:3] + (1 << 31).to_bytes(4, "big") + raw[7:],
    ):
        with pytest.raises(ChunkError, match="chunk at offset 9"):
            to_arrow([chunk([spoiled], first=9, records=20)], "s")


def test_an_amqp_message_that_is_cut_off_is_refused_wherever() -> None:
    whole = sections({"message_id": "m"}, {"k": [1] and "v"}) + data(b"body of some length")
    for length in range(3, len(whole)):
        cut = whole[:length]
        try:
            expected = amqp10.decode(cut).body
        except ValueError:
            with pytest.raises(ChunkError, match="chunk at offset 8"):
                to_arrow([chunk([simple(data(b"x")), simple(cut)], first=7)], "s")
        else:
            assert values([chunk([simple(cut)])]) == [expected]
            assert expected == b""


def test_random_bytes_never_raise_anything_else() -> None:
    chosen = random.Random(7)
    for _ in range(300):
        raw = b"\0\x53" + bytes([chosen.randrange(0x6F, 0x7A)]) + chosen.randbytes(chosen.randrange(40))
        try:
            batch = to_arrow([chunk([simple(raw)])], "s", columns=["value"])
            assert batch.column("value")[0].as_py() == amqp10.decode(raw).body
        except ChunkError:
            with pytest.raises(ValueError, match=r"\w"):
                amqp10.decode(raw)


def test_columns_have_the_schema_that_is_announced() -> None:
    batch = to_arrow([chunk_of([b"x"])], "s", columns=["offset", "value", "timestamp"])
    assert batch.schema.names == ["offset", "value", "timestamp"]
    assert batch.schema.field("value").type == pa.binary()
    batch.validate(full=True)
