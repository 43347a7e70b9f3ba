"""Object stores, through a stand-in with the same conditional create as the real ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from leash.errors import ConfigError
from leash.spark.offsets import Plan
from leash.spark.staging import cleanup, files, seals
from leash.spark.staging.chunks import ChunkWriter, read_chunks
from leash.spark.staging.fence import Fence, read_fence
from leash.spark.staging.seals import Seal

from .model import Lot

_lock = threading.Lock()


class Store(MemoryFileSystem):  # type: ignore[misc]
    protocol = "s3"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        with _lock:
            if mode == "create" and self.exists(path):
                raise FileExistsError(path)
            super().pipe_file(path, value)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._pipe_file(path, value, mode)


class OldStore(MemoryFileSystem):  # type: ignore[misc]
    protocol = "gs"

    def _pipe_file(self, path: str, value: bytes) -> None:
        """Ignores that a file exists, as early versions did."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> files.Files:
    kinds = {"s3": Store, "gs": OldStore}
    real = fsspec.get_filesystem_class
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda name: kinds.get(name) or real(name))
    Store.store.clear()
    return files.open_files("s3a://bucket/staging")


def test_an_object_store_keeps_seals_chunks_and_fences(store: files.Files) -> None:
    cleanup.begin(store, "r")
    assert read_fence(store, "r") == Fence(0)
    writer = ChunkWriter(store, "r/00000001-a/00000-x.chunk")
    messages = [(b"%04d" % i + b"x" * 500, False) for i in range(500)]
    writer.add(Lot(messages))
    seal = Seal("x", "q", file=writer.finish(), chunks=tuple(writer.chunks), rows=500)
    path = "r/00000001-a/00000.seal"
    assert seals.place_seal(store, path, seal) == seal
    assert seals.place_seal(store, path, Seal("late")) == seal
    batches = read_chunks(store, path, seal, fail_on_data_loss=True)
    assert [body for batch in batches for body in batch.column("body").to_pylist()] == [
        body for body, _ in messages
    ]
    assert cleanup.batches(store, "r") == [(1, "r/00000001-a")]
    assert store.read("r/nothing") is None
    assert store.names("nothing") == []
    cleanup.commit(store, Plan("r", 2, "b"))
    assert store.names("r") == ["fence.json"]
    store.delete("r/nothing")
    store.delete_folder("nothing")


def test_a_small_split_uploads_nothing_but_its_seal(store: files.Files) -> None:
    writer = ChunkWriter(store, "r/1-a/0.chunk")
    writer.add(Lot([(b"small", False)]))
    assert writer.finish() == ""
    assert store.names("r") == []


def test_a_filesystem_that_cannot_create_exclusively_is_refused(store: files.Files) -> None:
    assert store
    with pytest.raises(ConfigError, match="cannot create exclusively"):
        files.open_files("gs://bucket/staging")


def test_a_file_url_with_a_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no host"):
        files.absolute(f"file://elsewhere{tmp_path}")
