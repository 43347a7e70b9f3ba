"""Publishing rows to streams, and crashes in between, by the tasks' own function, without Spark."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash.amqp import Channel, topology
from leash.broker import Broker
from leash.errors import ConfigError, RowsChanged
from leash.spark.streams.ids import CHECKS, ROWS, Id, Numbering, split
from leash.spark.streams.pinned_partitions import pinned
from leash.spark.streams.settings import stream_sink_settings
from leash.spark.streams.sink import find_streams, publish
from leash.streams import Connection, create_super_stream, partition_of

from .kit import bodies, contents, make, read_batch

QUERY = "3f0e9a52-6d1b-4d8c-8a4e-000000000000"
ROOT = Path(__file__).parents[3]


def batches(rows: list[bytes], size: int = 300, **more: list[Any]) -> Iterator[pa.RecordBatch]:
    table = pa.table({"value": pa.array(rows, pa.binary()), **more})
    yield from table.to_batches(max_chunksize=size)


def crashing(rows: list[bytes], after: int) -> Iterator[pa.RecordBatch]:
    yield from batches(rows[:after], 100)
    raise RuntimeError("the task crashes here")


def put(place: str, rows: Iterator[pa.RecordBatch], batch: int, partition: int = 0, **given: str) -> int:
    told = stream_sink_settings({"url": place, **(given or {"stream": "s"})})
    names = pinned(told, QUERY, batch)
    return publish(told, names, QUERY, partition, batch, rows).rows


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=50), st.data())
def test_ids_do_not_depend_on_how_rows_are_cut(rows: list[bytes], data: st.DataObject) -> None:
    whole = Numbering(7).next(pa.array(rows, pa.binary())).tolist()
    cut = data.draw(st.integers(0, len(rows)))
    numbering = Numbering(7)
    parts = [numbering.next(pa.array(part, pa.binary())).tolist() for part in (rows[:cut], rows[cut:])]
    assert parts[0] + parts[1] == whole
    assert whole == sorted(set(whole))
    assert split(whole[-1]) == Id(7, len(rows), whole[-1] % CHECKS)


def test_the_checksum_sees_other_rows_and_another_order() -> None:
    rows = [b"%d" % n for n in range(1000)]
    ids = Numbering(0).next(pa.array(rows))
    chance, seen = random.Random(1), 0
    for _ in range(300):
        other = list(rows)
        a, b = chance.sample(range(1000), 2)
        other[a], other[b] = other[b], other[a]
        seen += int(Numbering(0).next(pa.array(other))[-1] != ids[-1])
    assert seen >= 297  # one in 4,096 escapes
    assert Numbering(0).next(pa.array(rows), pa.array([None] * 1000, pa.string()))[-1] != ids[-1]


def test_ids_fit_their_field() -> None:
    assert split(((1 << 28) - 1) * ROWS * CHECKS + (ROWS - 1) * CHECKS + 5) == Id((1 << 28) - 1, ROWS - 1, 5)
    assert split(0) is None


@pytest.mark.parametrize("after", [100, 700, 1000])
def test_a_crash_within_a_batch_and_the_whole_batch_again(place: str, after: int) -> None:
    make(place, "s")
    rows = bodies(0, 1000)
    with pytest.raises(RuntimeError):
        put(place, crashing(rows, after), 0)
    assert put(place, batches(rows, 130), 0) == 1000
    assert put(place, batches(rows, 999), 0) == 1000  # a lost commit file: the batch once more, whole
    assert put(place, batches(bodies(1000, 50)), 1) == 50
    assert contents(place, "s") == bodies(0, 1050)


def test_a_retry_with_other_rows_is_refused_by_batch_and_row(place: str) -> None:
    make(place, "s")
    put(place, batches([b"A", b"B", b"C"]), 4)
    with pytest.raises(RowsChanged, match="batch 4 of this query up to row 3"):
        put(place, batches([b"D", b"E", b"F", b"G"]), 4)
    with pytest.raises(RowsChanged, match="ends after 2 rows"):
        put(place, batches([b"A", b"B"]), 4)
    assert contents(place, "s") == [b"A", b"B", b"C"]
    assert put(place, batches([b"A", b"B", b"C", b"D"]), 4) == 4
    assert contents(place, "s") == [b"A", b"B", b"C", b"D"]


def test_a_zombie_of_an_old_batch_writes_nothing(place: str) -> None:
    make(place, "s")
    put(place, batches(bodies(0, 10)), 0)
    put(place, batches(bodies(10, 10)), 1)
    with pytest.raises(RowsChanged, match="rows of batch 1 from this query already"):
        put(place, batches(bodies(0, 10)), 0)
    assert contents(place, "s") == bodies(0, 20)


def test_two_attempts_at_once(place: str) -> None:
    make(place, "s")
    rows = bodies(0, 2000)

    def slow() -> Iterator[pa.RecordBatch]:
        for number, piece in enumerate(batches(rows, 100)):
            if number == 10:
                assert put(place, batches(rows, 170), 0) == 2000
            yield piece

    assert put(place, slow(), 0) == 2000
    assert contents(place, "s") == rows


def test_a_task_that_is_killed_with_half_of_its_rows_out(place: str) -> None:
    make(place, "s")
    program = """
import os, signal, sys
from tests.spark.streams import test_sink as t
def rows():
    for n, piece in enumerate(t.batches(t.bodies(0, 50_000), 1000)):
        if n == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece
t.put(sys.argv[1], rows(), 0)
"""
    done = subprocess.run([sys.executable, "-c", program, place], cwd=ROOT, env={**os.environ}, timeout=120)
    assert done.returncode == -9
    assert put(place, batches(bodies(0, 50_000)), 0) == 50_000
    assert contents(place, "s") == bodies(0, 50_000)


def test_the_broker_is_killed_in_a_task(place: str, broker: Broker) -> None:
    make(place, "s")
    put(place, batches(bodies(0, 10)), 0)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, piece in enumerate(batches(bodies(10, 30_000), 1000)):
            if number == 15:
                broker.kill()
                broker.start()
            yield piece

    assert put(place, rows(), 1, stream="s", confirmTimeout="120s") == 30_000
    assert contents(place, "s") == bodies(0, 30_010)


def test_a_super_stream_gets_every_row_by_its_key(place: str, uri: str, link: Connection) -> None:
    create_super_stream(link, "orders", 3, amqp=uri)
    rows = bodies(0, 3000)
    keys = [f"kunde-ü{n % 97}" for n in range(3000)]
    with pytest.raises(RuntimeError):
        put(place, _with_keys(rows, keys, 1700), 0, superStream="orders")
    put(place, batches(rows, routing_key=keys), 0, superStream="orders")
    places = partition_of(keys, 3)
    for number in range(3):
        mine = [row for row, at in zip(rows, places, strict=True) if at == number]
        assert contents(place, f"orders-{number}") == mine


def test_a_partition_that_is_added_does_not_move_rows_of_a_batch_that_began(
    place: str, uri: str, link: Connection, channel: Channel
) -> None:
    create_super_stream(link, "orders", 2, amqp=uri)
    rows, keys = bodies(0, 1000), [f"k{n}" for n in range(1000)]
    with pytest.raises(RuntimeError):
        put(place, _with_keys(rows, keys, 700), 5, superStream="orders")
    make(place, "orders-2")
    topology.bind_queue(channel, "orders-2", "orders", "2", {"x-stream-partition-order": 2})
    put(place, batches(rows, routing_key=keys), 5, superStream="orders")
    assert sorted(contents(place, "orders-0") + contents(place, "orders-1")) == rows
    assert contents(place, "orders-2") == []
    put(place, batches(bodies(1000, 1000), routing_key=keys), 6, superStream="orders")
    assert contents(place, "orders-2") != []


def _with_keys(rows: list[bytes], keys: list[str], after: int) -> Iterator[pa.RecordBatch]:
    yield from batches(rows[:after], 100, routing_key=keys[:after])
    raise RuntimeError("the task crashes here")


def test_what_a_row_says_beside_its_value(place: str) -> None:
    make(place, "s")
    table = pa.table(
        {
            "value": ["a", "b"],
            "message_id": ["1", None],
            "properties": pa.array([{"subject": "x"}, None]),
            "headers": pa.array([[("h", "1")], []], pa.map_(pa.string(), pa.string())),
        }
    )
    put(place, iter(table.to_batches()), 0)
    rows = read_batch(place, stream="s", includeProperties="true", includeHeaders="true")
    assert [row["message_id"] for row in rows] == ["1", None]
    assert rows[0]["properties"]["subject"] == "x"
    assert rows[0]["headers"] == [("h", "1")]


def test_refusals(place: str, link: Connection, channel: Channel) -> None:
    make(place, "s")
    with pytest.raises(ConfigError, match=r"column value=.*stream.frame_max"):
        put(place, batches([bytes(2_000_000)]), 0)
    with pytest.raises(ConfigError, match="at most 255 tasks"):
        put(place, batches([b"x"]), 0, partition=255)
    with pytest.raises(ConfigError, match=r"column value=None: a message has a body"):
        put(place, iter([pa.record_batch({"value": pa.array([None], pa.binary())})]), 0)
    topology.declare_queue(channel, "q", kind="classic")
    with pytest.raises(ConfigError, match=r"stream='q': there is no stream of that name"):
        find_streams(stream_sink_settings({"url": place, "stream": "q"}))
    with pytest.raises(ConfigError, match=r"superStream='s': there is no super stream of that name"):
        find_streams(stream_sink_settings({"url": place, "superStream": "s"}))
    assert contents(place, "s") == []
