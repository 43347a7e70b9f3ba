"""Tasks that are killed, doubled or late, at every point of the protocol, against a real broker."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from leash.errors import Fenced

from . import victim
from .harness import (
    KINDS,
    Query,
    declare,
    options,
    publish,
    ready,
    unflagged,
    until_there,
    values,
    wait_plan,
)


@KINDS
def test_every_message_comes_once_and_the_queue_is_empty_afterwards(
    uri: str, staging: Path, kind: str
) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 3000)
    query = Query(options(uri, staging, maxRecordsPerTrigger=1000, maxRecordsPerPartition=300))
    rows = query.drain()
    assert sorted(values(rows)) == sent
    assert not any(row["redelivered"] for row in rows)
    assert {row["queue"] for row in rows} == {"q"}
    assert ready(uri) == 0


@KINDS
def test_a_replay_is_identical_byte_for_byte(uri: str, staging: Path, kind: str) -> None:
    declare(uri, kind=kind)
    publish(uri, 500, size=300)
    query = Query(options(uri, staging, maxRecordsPerPartition=200))
    assert query.plan()
    first = query.read()
    publish(uri, 100, first=500)
    assert query.read() == first
    query.restart()
    assert query.read() == first
    assert len(query.drain()) == 100


@KINDS
def test_a_task_killed_before_the_seal_leaves_everything_to_its_retry(
    uri: str, staging: Path, kind: str
) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 50)
    query = Query(options(uri, staging))
    assert query.plan()
    victim.die(query.given, query.partitions()[0], "before-seal")
    assert ready(uri, expect=50) == 50
    rows = query.read()
    assert sorted(values(rows)) == sent
    assert all(row["redelivered"] for row in rows)


@KINDS
def test_a_task_killed_between_seal_and_ack_is_replayed_and_its_copies_are_flagged(
    uri: str, staging: Path, kind: str
) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 50)
    query = Query(options(uri, staging))
    assert query.plan()
    victim.die(query.given, query.partitions()[0], "after-seal")
    rows = query.read()
    assert sorted(values(rows)) == sent
    assert unflagged(rows)
    assert ready(uri, expect=50) == 50
    copies = query.drain()
    assert sorted(values(copies)) == sent
    assert all(row["redelivered"] for row in copies)


@KINDS
def test_with_deduplication_the_copies_are_dropped(uri: str, staging: Path, kind: str) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 50)
    query = Query(options(uri, staging, deduplication="messageId"))
    assert query.plan()
    victim.die(query.given, query.partitions()[0], "after-seal")
    rows = query.read()
    assert ready(uri, expect=50) == 50
    more = publish(uri, 5, first=50)
    assert sorted(values(rows + query.drain())) == sent + more
    assert ready(uri, expect=0) == 0


def test_copies_are_dropped_by_another_split_of_the_same_batch(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 20)
    query = Query(options(uri, staging, deduplication="messageId", maxRecordsPerPartition=10))
    assert query.plan()
    first, second = query.partitions()
    victim.die(query.given, first, "after-seal")
    assert ready(uri, expect=20) == 20
    rows = query.read([second]) + query.read([first])
    assert sorted(values(rows + query.drain())) == sent


@KINDS
def test_a_task_killed_after_the_ack_is_replayed_from_staging(uri: str, staging: Path, kind: str) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 50)
    query = Query(options(uri, staging))
    assert query.plan()
    victim.die(query.given, query.partitions()[0], "after-ack")
    assert ready(uri, expect=0) == 0
    query.restart()
    rows = query.read()
    assert sorted(values(rows)) == sent
    assert unflagged(rows) == values(rows)


@KINDS
def test_of_two_attempts_at_once_one_seals_and_the_other_gives_back(
    uri: str, staging: Path, kind: str
) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 20)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10))
    assert query.plan()
    flag = staging.parent / "go"
    slow = victim.start(query.given, query.partitions()[0], "before-seal wait", flag)
    until_there(flag.with_name("go.there"))
    rows = query.read()
    flag.touch()
    slow.wait(60)
    assert slow.returncode == 0
    assert pickle.loads(flag.with_name("go.rows").read_bytes()) == rows  # noqa: S301
    rest = query.drain()
    assert sorted(values(rows + rest)) == sent


def test_a_zombie_that_seals_after_its_batch_is_over_takes_nothing(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 40)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10))
    assert query.plan()
    flag = staging.parent / "go"
    zombie = victim.start(query.given, query.partitions()[0], "before-seal wait", flag)
    until_there(flag.with_name("go.there"))
    rows = query.read()
    for _ in range(2):  # the zombie's batch is committed and its folder deleted
        assert wait_plan(query)
        rows += query.read()
    assert [name for name in os.listdir(staging / query.last.run) if name.startswith("00000001")] == []
    flag.touch()
    zombie.wait(60)
    assert not flag.with_name("go.rows").exists()
    rows += query.drain()
    assert sorted(values(rows)) == sent


@KINDS
@pytest.mark.parametrize("batches", [1, 3])
def test_a_zombie_whose_seal_others_have_read_repeats_nothing_with_deduplication(
    uri: str, staging: Path, kind: str, batches: int
) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 200)
    query = Query(options(uri, staging, maxRecordsPerTrigger=50, deduplication="messageId"))
    assert query.plan()
    flag = staging.parent / "go"
    zombie = victim.start(query.given, query.partitions()[0], "after-seal wait", flag)
    until_there(flag.with_name("go.there"))
    rows = query.read()  # what the zombie has sealed, and not acked
    for _ in range(batches):
        assert wait_plan(query, 10)
        rows += query.read()
    flag.touch()
    zombie.wait(60)
    for _ in range(2):
        rows += query.drain()
    assert sorted(values(rows)) == sent
    assert ready(uri, expect=0) == 0


def test_an_action_on_an_old_batchs_dataframe_consumes_nothing(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 20)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10, maxRecordsPerPartition=5))
    assert query.plan()
    old = query.partitions()
    rows = query.read(old[:1])  # a limit: the second split is never asked for
    assert wait_plan(query)
    assert query.read(old[1:]) == []  # closed when the next batch was planned
    rows += query.read()
    assert wait_plan(query)
    rows += query.read()
    query.plan()
    with pytest.raises(Fenced):
        query.read(old)
    assert sorted(values(rows + query.drain())) == sent


def test_a_batch_without_any_action_loses_nothing(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 20)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10))
    assert query.plan()
    assert query.plan()
    assert sorted(values(query.read() + query.drain())) == sent
