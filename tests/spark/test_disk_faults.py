"""Staging folders that are wrong, full, read-only or incomplete."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from leash.amqp import Outgoing, Publisher, connect
from leash.errors import Fenced, StagingError, StagingMismatch

from .harness import (
    KINDS,
    Query,
    declare,
    options,
    publish,
    ready,
)


@pytest.mark.parametrize("how", ["changed", "wiped"])
def test_a_staging_folder_that_is_not_the_drivers_is_refused_and_nothing_is_consumed(
    uri: str, staging: Path, how: str
) -> None:
    declare(uri)
    publish(uri, 10)
    query = Query(options(uri, staging))
    assert query.plan()
    if how == "wiped":
        shutil.rmtree(staging)
        query.restart()
    else:
        query.restart(stagingLocation=staging.with_name("elsewhere"))
    with pytest.raises(Fenced, match="no fence"):
        query.read()
    assert ready(uri) == 10
    with pytest.raises(StagingMismatch, match="has no staging folder"):
        query.plan()


@pytest.mark.parametrize("fail", [True, False])
def test_a_missing_chunk_is_data_loss_and_never_consumed_again(uri: str, staging: Path, fail: bool) -> None:
    declare(uri)
    publish(uri, 300, size=1000)
    query = Query(options(uri, staging, failOnDataLoss=str(fail), maxRecordsPerTrigger=200))
    assert len(query.batch() or []) == 200
    for chunk in staging.glob("*/*/*.chunk"):
        chunk.unlink()
    if fail:
        with pytest.raises(StagingError, match="200 staged messages"):
            query.read()
    else:
        assert query.read() == []
    assert ready(uri) == 100


def test_a_staging_folder_that_cannot_be_written_fails_before_anything_is_taken(
    uri: str, staging: Path
) -> None:
    declare(uri)
    publish(uri, 10)
    query = Query(options(uri, staging))
    assert query.plan()
    folder = staging / query.last.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the batch's folder should be")  # permissions do not stop root
    with pytest.raises(StagingError, match=r"cannot be written.*Nothing was consumed"):
        query.read()
    assert ready(uri, expect=10) == 10
    folder.unlink()
    rows = query.read()
    assert len(rows) == 10
    assert not any(row["redelivered"] for row in rows)


@KINDS
def test_a_disk_that_fills_up_while_staging_acks_nothing(
    uri: str, staging: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(uri, kind=kind)
    publish(uri, 200, size=2000)
    query = Query(options(uri, staging))
    assert query.plan()
    with monkeypatch.context() as patch:
        patch.setattr("leash.spark.staging.chunks.ChunkWriter.finish", _full)
        with pytest.raises(StagingError, match=r"No space left.*given back"):
            query.read()
    assert ready(uri, expect=200) == 200
    assert len(query.read()) == 200


def _full(_: object) -> str:
    raise OSError(28, "No space left on device")


@KINDS
def test_a_real_disk_that_is_full_acks_nothing(uri: str, disk: Path, kind: str) -> None:
    declare(uri, kind=kind)
    publish(uri, 200, size=2000)
    query = Query(options(uri, disk))
    assert query.plan()
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"." * 4096)
    with pytest.raises(StagingError, match="No space left"):
        query.read()
    assert ready(uri, expect=200) == 200
    filler.unlink()
    assert len(query.read()) == 200


@KINDS
def test_a_real_disk_that_fills_up_in_the_middle_of_a_split_acks_nothing(
    uri: str, disk: Path, kind: str
) -> None:
    declare(uri, kind=kind)
    with connect(uri) as link, Publisher(link) as publisher:
        publisher.publish(Outgoing(os.urandom(20_000), "", "q") for _ in range(300))  # 6 MB do not fit
    query = Query(options(uri, disk))
    assert query.plan()
    with pytest.raises(StagingError, match=r"No space left.*given back"):
        query.read()
    assert ready(uri, expect=300) == 300
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    assert len(query.read()) == 300


def test_a_real_disk_that_became_read_only_fails_before_anything_is_taken(uri: str, disk: Path) -> None:
    declare(uri)
    publish(uri, 10)
    query = Query(options(uri, disk))
    assert query.plan()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(StagingError, match="Read-only file system"):
        query.read()
    assert ready(uri, expect=10) == 10
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    rows = query.read()
    assert len(rows) == 10
    assert not any(row["redelivered"] for row in rows)
