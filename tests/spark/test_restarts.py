"""Restarted drivers, rolled-back and deleted checkpoints, and runs that nobody owns any more."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest

from leash.errors import StagingMismatch
from leash.spark.staging import owner

from .harness import (
    Query,
    Row,
    abandon,
    declare,
    options,
    publish,
    ready,
    values,
    wait_plan,
)


def test_other_options_after_a_restart_do_not_change_a_planned_batch(uri: str, staging: Path) -> None:
    declare(uri, "q", "other")
    publish(uri, 100)
    query = Query(options(uri, staging, maxRecordsPerPartition=30))
    assert query.plan()
    before = query.partitions()
    rows = query.read(before[:2])
    del query.given["queue"]
    query.restart(queues="q:5,other:1", maxRecordsPerPartition=7, maxRecordsPerTrigger=1, ordered="true")
    assert [p.split for p in query.partitions()] == [p.split for p in before]
    assert query.read()[: len(rows)] == rows


def test_the_first_batch_restarted_keeps_its_run(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 10)
    query = Query(options(uri, staging))
    assert query.plan()
    query.restart()
    assert query.first["run"] != query.log[0]["run"]
    assert sorted(values(query.read())) == sent
    assert not wait_plan(query)
    assert os.listdir(staging) == [query.log[0]["run"]]


def test_a_checkpoint_rolled_back_by_one_adopts_what_was_sealed(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 20)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10))
    first = query.batch()
    second = query.batch() if wait_plan(query) is False else query.read()
    query.log.pop()
    query.restart()
    assert wait_plan(query)
    assert query.last.adopted
    assert query.read() == second
    assert values(first or []) != values(second or [])
    publish(uri, 5, first=20)
    for _ in range(3):
        if wait_plan(query):
            query.read()
    assert ready(uri, expect=0) == 0


def test_a_checkpoint_rolled_back_beyond_what_is_staged_is_refused(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 50)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10))
    for _ in range(4):
        assert wait_plan(query)
        query.read()
    del query.log[1:]
    query.restart()
    with pytest.raises(StagingMismatch, match="rolled back"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert wait_plan(query)
    assert len(query.read()) == 10


@pytest.mark.parametrize("choice", ["fail", "adopt", "discard"])
def test_staged_messages_of_a_deleted_checkpoint_are_decided_on(uri: str, staging: Path, choice: str) -> None:
    declare(uri)
    sent = publish(uri, 10)
    query = Query(options(uri, staging))
    rows = query.batch()
    assert rows
    abandon(staging, query)
    fresh = Query(options(uri, staging, orphanedStaging=choice))
    if choice == "fail":
        with pytest.raises(StagingMismatch, match="10 staged messages"):
            fresh.plan()
        return
    publish(uri, 3, first=10)
    assert wait_plan(fresh)
    assert fresh.read() == (rows if choice == "adopt" else fresh.read())
    rest = fresh.drain()
    assert len(sent) + 3 == len(rows) + len(rest) if choice == "adopt" else not rest
    publish(uri, 3, first=13)
    for _ in range(2):
        wait_plan(fresh)
        fresh.read()
    assert os.listdir(staging) == [fresh.last.run]


@pytest.mark.parametrize("deduplication", ["none", "messageId"])
@pytest.mark.parametrize("choice", ["adopt", "discard"])
def test_other_queues_staged_messages_outlive_the_decision_on_one(
    uri: str, staging: Path, choice: str, deduplication: str
) -> None:
    """First one source takes over its queue, to the end; then another one its own."""
    declare(uri, "q", "other")
    sent = {"q": publish(uri, 10, "q"), "other": publish(uri, 20, "other", size=8000)}
    dead = Query(options(uri, staging, queues="q,other", deduplication=deduplication))
    assert dead.batch()
    abandon(staging, dead)
    first = Query(options(uri, staging, orphanedStaging=choice, deduplication=deduplication))
    rows = settle_in(uri, first, "q")
    assert values(rows)[:10] == (sent["q"] if choice == "adopt" else rows_of(3)[:10])
    assert dead.last.run in os.listdir(staging)
    first.reader.stop()
    second = Query(options(uri, staging, queue="other", orphanedStaging="adopt", deduplication=deduplication))
    assert values(settle_in(uri, second, "other"))[:20] == sent["other"]
    if deduplication == "none":
        assert sorted(os.listdir(staging)) == sorted([first.last.run, second.last.run])


def settle_in(uri: str, query: Query, queue: str) -> list[Row]:
    """Batches until what was adopted is committed, and forgotten unless it is remembered."""
    rows: list[Row] = []
    for _ in range(4):
        publish(uri, 3, queue)
        assert wait_plan(query)
        rows += query.read()
    return rows


def rows_of(count: int) -> list[bytes]:
    """What four times publishing that many gives."""
    return [b"%06d" % number for number in range(count)] * 4


@pytest.mark.parametrize("choice", ["fail", "adopt", "discard"])
@pytest.mark.parametrize("lives", [True, False])
def test_a_driver_out_of_sight_is_waited_for(
    uri: str, staging: Path, choice: str, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, say, that came up again under another name just after its checkpoint was deleted."""
    declare(uri)
    sent = publish(uri, 10)
    query = Query(options(uri, staging))
    assert query.batch()
    query.reader.stop()
    file = staging / query.last.run / "owner.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"host": "pod-1", "place": "elsewhere"}))
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if lives and looks == 3:
            file.write_text(json.dumps(told | {"host": "pod-1", "place": "elsewhere", "at": 1}))

    clock = lambda: owner.SILENT * looks / 5  # noqa: E731
    patient = functools.partial(owner.silent, clock=clock, sleep=sleep)
    monkeypatch.setattr(owner, "silent", patient)
    fresh = Query(options(uri, staging, orphanedStaging=choice))
    if lives:
        publish(uri, 3, first=10)
        assert len(fresh.batch() or []) == 3
        assert looks == 3
    elif choice == "fail":
        with pytest.raises(StagingMismatch, match="10 staged messages"):
            fresh.plan()
    else:
        assert values(fresh.batch() or []) == (sent if choice == "adopt" else [])
        assert looks == 5


def test_a_run_whose_driver_lives_is_not_an_orphan(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 10)
    query = Query(options(uri, staging))
    assert query.batch()
    other = Query(options(uri, staging))
    assert not wait_plan(other)
    publish(uri, 3)
    assert wait_plan(other)
    assert len(other.read()) == 3
