"""Files, seals, chunks and the fence, on a real disk."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash.errors import ConfigError, Fenced, OffsetError, StagingError
from leash.spark.driver import settling
from leash.spark.offsets import Plan, Seen, Split, first_plan, splits_between, splits_of
from leash.spark.staging import chunks, cleanup, fence, files, owner, seals
from leash.spark.staging.chunks import ChunkWriter, read_chunks
from leash.spark.staging.files import LocalFiles
from leash.spark.staging.seals import Chunk, Seal

from .model import Lot


@pytest.fixture
def disk(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path))


def staged(disk: LocalFiles, messages: list[tuple[bytes, bool]]) -> Seal:
    writer = ChunkWriter(disk, "r/1-a/00000-x.chunk")
    for at in range(0, len(messages), 100):  # as they come from the socket
        writer.add(Lot(messages[at : at + 100]))
    file = writer.finish()
    return Seal("x", "q", file=file, chunks=tuple(writer.chunks), inline=writer.inline, rows=writer.rows)


def bodies(disk: LocalFiles, seal: Seal, fail: bool = True) -> list[bytes]:
    found = read_chunks(disk, "r/1-a/00000.seal", seal, fail)
    return [body for batch in found for body in batch.column("body").to_pylist()]


def test_of_many_creators_of_one_file_exactly_one_wins(disk: LocalFiles, tmp_path: Path) -> None:
    for round_ in range(50):
        winners: list[int] = []

        def create(me: int, path: str = f"run/{round_}", won: list[int] = winners) -> None:
            try:
                disk.create(path, b"%d" % me)
                won.append(me)
            except FileExistsError:
                pass

        threads = [threading.Thread(target=create, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = winners
        assert disk.read(f"run/{round_}") == b"%d" % winner
    assert sorted(os.listdir(tmp_path / "run")) == sorted(map(str, range(50)))


def test_a_seal_that_stands_is_returned_instead_of_ours(disk: LocalFiles) -> None:
    first, second = Seal("first", rows=1), Seal("second", rows=2)
    assert seals.place_seal(disk, "r/1/0.seal", first) == first
    assert seals.place_seal(disk, "r/1/0.seal", second) == first
    assert seals.void_seal(disk, "r/1/0.seal") == first


def test_a_seal_is_ours_when_its_create_failed_after_the_file_was_there(disk: LocalFiles) -> None:
    class Unsure(LocalFiles):
        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            raise OSError(errno.EIO, "the answer was lost")

    seal = Seal("mine", rows=3)
    assert seals.place_seal(Unsure(disk._root), "r/1/0.seal", seal) == seal


def test_a_failed_create_without_a_seal_raises(disk: LocalFiles) -> None:
    class Full(LocalFiles):
        def create(self, path: str, data: bytes) -> None:
            raise OSError(errno.ENOSPC, f"full: {path} needs {len(data)}")

    with pytest.raises(OSError, match="full"):
        seals.place_seal(Full(disk._root), "r/1/0.seal", Seal("mine"))


@given(
    st.builds(
        Seal,
        attempt=st.text(),
        queue=st.text(),
        chunks=st.lists(st.builds(Chunk, st.integers(), st.integers(), st.integers()), max_size=3).map(tuple),
        inline=st.binary(),
        ids=st.binary(),
        rows=st.integers(0),
    )
)
def test_a_seal_survives_its_encoding(seal: Seal) -> None:
    assert Seal.decode("path", seal.encode()) == seal


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 99}', b'{"version": 1}'])
def test_what_is_not_a_seal_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(StagingError, match=r"run/0\.seal"):
        Seal.decode("run/0.seal", data)


def test_a_small_split_travels_in_its_seal_and_leaves_no_file(disk: LocalFiles) -> None:
    seal = staged(disk, [(b"one", False), (b"two", True)])
    assert seal.file == ""
    assert disk.names("r/1-a") == []
    assert bodies(disk, seal) == [b"one", b"two"]


@pytest.mark.parametrize("size", [1, 100, 30_000])
def test_big_splits_come_back_byte_for_byte(disk: LocalFiles, size: int) -> None:
    messages = [(b"%05d" % i + b"x" * size, i % 3 == 0) for i in range(21_000 if size < 1000 else 700)]
    seal = staged(disk, messages)
    assert seal.file
    assert len(seal.chunks) > 1
    assert bodies(disk, seal) == [body for body, _ in messages]


def test_a_routing_key_that_is_not_utf8_does_not_stop_the_source(disk: LocalFiles) -> None:
    lot = Lot([(b"one", False)])
    lot.routing_keys = [b"caf\xe9".decode("utf-8", "surrogateescape")]
    assert chunks.raw_batch(lot).column("routing_key").to_pylist() == ["caf\\xe9"]


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut"])
def test_damaged_chunks_are_told_from_good_ones(disk: LocalFiles, tmp_path: Path, damage: str) -> None:
    messages = [(b"x" * 1000, False)] * 25_000
    seal = staged(disk, messages)
    path = tmp_path / "r" / "1-a" / seal.file
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        data[seal.chunks[0].length + seal.chunks[1].length + 5000] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-1])
    with pytest.raises(StagingError, match="failOnDataLoss"):
        bodies(disk, seal)
    left = bodies(disk, seal, fail=False)
    whole = [chunk.rows for chunk in seal.chunks]
    assert len(whole) == 3
    assert len(left) == {"missing": 0, "flipped": sum(whole) - whole[2], "cut": sum(whole[:2])}[damage]


def test_a_chunk_file_that_cannot_be_opened_fails_before_anything_is_taken(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file where a folder should be")
    with pytest.raises(OSError, match=r"directory|exists"):
        ChunkWriter(LocalFiles(str(tmp_path)), "r/1-a/0.chunk")


def test_the_fence_lets_only_open_batches_through(disk: LocalFiles) -> None:
    split = Split("r", 3, "r/3-a", 0, "q", 1)
    with pytest.raises(Fenced, match="no fence"):
        fence.check_fence(disk, split)
    cleanup.begin(disk, "r")
    fence.check_fence(disk, split)
    fence.raise_floor(disk, "r", 2)
    fence.check_fence(disk, split)
    fence.raise_floor(disk, "r", 3)
    with pytest.raises(Fenced, match="over"):
        fence.check_fence(disk, split)
    fence.raise_floor(disk, "r", 1)
    assert fence.read_fence(disk, "r") == fence.Fence(3)


def test_a_closed_run_keeps_its_floor_and_lets_nobody_through(disk: LocalFiles) -> None:
    cleanup.begin(disk, "r")
    fence.raise_floor(disk, "r", 2)
    fence.close_run(disk, "r")
    assert fence.read_fence(disk, "r") == fence.Fence(2, closed=True)
    with pytest.raises(Fenced):
        fence.check_fence(disk, Split("r", 9, "r/9-a", 0, "q", 1))


def test_commit_raises_the_floor_before_it_deletes_and_keeps_the_last_batch(disk: LocalFiles) -> None:
    cleanup.begin(disk, "r")
    plans = [Plan("r", seq, "n", ("q",), ((0, 1),)) for seq in (1, 2, 3)]
    for plan in plans:
        seals.place_seal(disk, f"{plan.folder}/00000.seal", Seal("x", rows=1))
    order: list[str] = []

    class Watched(LocalFiles):
        def replace(self, path: str, data: bytes) -> None:
            order.append("floor")
            super().replace(path, data)

        def delete_folder(self, path: str) -> None:
            order.append("delete")
            super().delete_folder(path)

    cleanup.commit(Watched(disk._root), plans[1])
    assert order == ["floor", "delete"]
    assert [seq for seq, _ in cleanup.batches(disk, "r")] == [2, 3]
    cleanup.commit(Watched(disk._root), plans[1])


def test_a_remembered_batch_keeps_its_seals_and_loses_its_rows(disk: LocalFiles) -> None:
    cleanup.begin(disk, "r")
    disk.create("r/00000001-a/00000.seal", Seal("x", rows=1).encode())
    disk.create("r/00000001-a/00000-x.chunk", b"rows")
    cleanup.commit(disk, Plan("r", 2, "b", seen=(Seen("r/00000001-a", 0, 1),)))
    assert disk.names("r/00000001-a") == ["00000.seal"]


def test_what_was_read_from_another_run_goes_and_the_rest_of_it_stays(disk: LocalFiles) -> None:
    fence.write_fence(disk, "old", fence.Fence(0, closed=True))
    paths = [f"old/00000001-a/0000{n}.seal" for n in range(3)]
    for number, path in enumerate(paths):
        disk.create(path, Seal("x", f"q{number}", rows=1, file=f"{number}.chunk", ids=b"0" * 16).encode())
        disk.create(f"old/00000001-a/{number}.chunk", b"rows")
    cleanup.use_up(disk, paths[:2], remembered=paths[1:2])
    assert disk.names("old/00000001-a") == ["00001.seal", "00002.seal", "2.chunk"]
    assert [seal.rows for _, seal in cleanup.sealed_beyond(disk, "old", 0)] == [1]
    assert seals.hashes_of(seals.seals_in(disk, paths[1])) == {b"0" * 16}
    cleanup.use_up(disk, paths[2:])
    assert disk.names("old/00000001-a") == ["00001.seal"]
    cleanup.use_up(disk, paths[1:2])
    assert disk.names("") == []


def test_settling_closes_what_nobody_read(disk: LocalFiles) -> None:
    plan = Plan("r", 1, "a", ("q",), ((0, 5), (0, 5)))
    seals.place_seal(disk, splits_of(plan)[0].seal_path, Seal("x", rows=4))
    settled = settling.settle(disk, plan)
    assert [(seal.rows, seal.void) for seal in settled.seals] == [(4, False), (0, True)]
    assert seals.place_seal(disk, splits_of(plan)[1].seal_path, Seal("late", rows=5)).void


def test_a_run_counts_as_owned_while_its_process_lives(
    disk: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.claim(disk, "r")
    assert owner.alive(disk, "r")
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert owner.alive(disk, "r")
    change_owner(disk, born="1")
    assert owner.alive(disk, "r") is False
    assert owner.alive(disk, "nobody") is False


@pytest.mark.parametrize("place", [None, "", "another machine"])
def test_an_owner_out_of_sight_lives_while_it_gives_signs_of_life(
    disk: LocalFiles, place: str | None
) -> None:
    """None: an owner file of an earlier version."""
    owner.claim(disk, "r")
    owner.claim(disk, "silent")
    change_owner(disk, place=place)
    assert owner.alive(disk, "r") is None
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now == 30:  # as seldom as earlier versions did; its own clock stands still
            change_owner(disk, beat=1)

    assert owner.silent(disk, ["r", "silent"], lambda: now, sleep) == {"silent"}
    assert now == owner.SILENT
    now = 0.0
    change_owner(disk, beat=2)
    assert owner.silent(disk, ["r"], lambda: now, sleep) == set()
    assert now == 30


def change_owner(disk: LocalFiles, **fields: object) -> None:
    told = json.loads(disk.read("r/owner.json") or b"") | fields
    told = {name: value for name, value in told.items() if value is not None}
    disk.replace("r/owner.json", json.dumps(told).encode())


def test_offsets_survive_json_and_must_follow_each_other() -> None:
    start = first_plan()
    end = Plan(start.run, 1, "n", ("a", "b"), ((0, 3), (1, 4)), seen=(Seen("f", 1, 2, True),), state={"x": 1})
    assert Plan.from_json(end.to_json()) == end
    assert [(s.queue, s.grant, s.index) for s in splits_between(start, end)] == [("a", 3, 0), ("b", 4, 1)]
    assert splits_between(end, end) == []
    assert len(splits_between(first_plan(), end)) == 2
    for other in (Plan(start.run, 2, "n"), Plan("other", 2, "n")):
        with pytest.raises(OffsetError, match="does not follow"):
            splits_between(start, other)
    with pytest.raises(OffsetError, match="version"):
        Plan.from_json({"version": 99})


@pytest.mark.parametrize("location", ["s3://bucket/x", "gs://bucket/x", "abfs://container/x"])
def test_an_object_store_whose_package_is_missing_is_refused_by_name(location: str) -> None:
    with pytest.raises(ConfigError, match="not installed"):
        files.open_files(files.absolute(location))
