"""The source against a real broker, driven as Spark drives it, with tasks killed at every point of the
protocol."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leash.amqp import Channel, Outgoing, Properties, Publisher, QueueState, connect, topology
from leash.errors import ConfigError, LeashError
from leash.spark.fence import Fenced
from leash.spark.guard import QueueMissing
from leash.spark.seals import StagingError
from leash.spark.takeover import StagingMismatch

from . import victim
from .harness import Query, declare, options, publish, ready, values, wait_plan

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture(autouse=True)
def _no_victim_outlives_its_test() -> Iterator[None]:
    yield
    victim.end_all()


def unflagged(rows: list[dict[str, object]]) -> list[object]:
    return [row["value"] for row in rows if not row["redelivered"]]


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
    _until(flag.with_name("go.there"))
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
    _until(flag.with_name("go.there"))
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
    _abandon(staging, query)
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
        patch.setattr("leash.spark.chunks.ChunkWriter.finish", _full)
        with pytest.raises(StagingError, match=r"No space left.*given back"):
            query.read()
    assert ready(uri, expect=200) == 200
    assert len(query.read()) == 200


def _full(_: object) -> str:
    raise OSError(28, "No space left on device")


def test_a_queue_that_is_missing_is_one_clear_error(uri: str, staging: Path) -> None:
    query = Query(options(uri, staging))
    with pytest.raises(QueueMissing, match="'q' does not exist"):
        query.plan()


def test_a_queue_that_is_deleted_is_an_error_or_a_warning(
    uri: str, staging: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(uri, "q", "other")
    publish(uri, 10)
    publish(uri, 10, "other")
    query = Query(options(uri, staging, queues="q,other", maxRecordsPerTrigger=10))
    assert query.plan()
    _delete(uri, "q")
    assert len(query.read()) == 5
    with pytest.raises(QueueMissing):
        wait_plan(query)
    query.restart(failOnDataLoss="false")
    assert len(query.drain()) == 5
    assert "does not exist; going on without it" in caplog.text


@KINDS
def test_a_queue_deleted_while_it_is_read_keeps_what_was_taken(uri: str, staging: Path, kind: str) -> None:
    declare(uri, kind=kind)
    publish(uri, 10)
    query = Query(options(uri, staging, pollTimeout="300ms"))
    assert query.plan()
    flag = staging.parent / "go"
    task = victim.start(query.given, query.partitions()[0], "before-seal wait", flag)
    _until(flag.with_name("go.there"))
    _delete(uri, "q")
    flag.touch()
    task.wait(60)
    assert len(query.read()) == 10


def test_ordered_keeps_each_queues_order_across_killed_attempts(uri: str, staging: Path) -> None:
    declare(uri, "q")
    declare(uri, "s", kind="quorum", single_active_consumer=True)
    sent = {name: publish(uri, 400, name) for name in ("q", "s")}
    query = Query(options(uri, staging, queues="q,s", ordered="true", maxRecordsPerTrigger=100))
    rows: list[dict[str, object]] = []
    for number in range(12):
        if not wait_plan(query):
            break
        assert len(query.partitions()) <= 2
        if number % 3 == 0:
            victim.die(query.given, query.partitions()[0], "before-seal")
        rows += query.read()
    for name, bodies in sent.items():
        assert [row["value"] for row in rows if row["queue"] == name] == bodies


def test_ordered_is_refused_on_a_quorum_queue_without_a_single_active_consumer(
    uri: str, staging: Path
) -> None:
    declare(uri, kind="quorum")
    with pytest.raises(ConfigError, match="x-single-active-consumer"):
        Query(options(uri, staging, ordered="true")).plan()


def test_ordered_is_refused_while_somebody_else_consumes(
    uri: str, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(uri)
    monkeypatch.setattr("leash.spark.guard._OTHERS_LEAVE", 0.2)
    with connect(uri) as link, link.channel() as channel:
        channel.consume("q")
        with pytest.raises(ConfigError, match="1 other consumers"):
            Query(options(uri, staging, ordered="true")).plan()


def test_a_competitor_is_warned_about_once(uri: str, staging: Path, caplog: pytest.LogCaptureFixture) -> None:
    declare(uri)
    query = Query(options(uri, staging))
    with connect(uri) as link, link.channel() as channel:
        channel.consume("q")
        for _ in range(2):
            assert not wait_plan(query, 0.1)
    assert caplog.text.count("other consumers") == 1


def test_a_delivery_limit_without_a_dead_letter_exchange_is_warned_about(
    uri: str, staging: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(uri, kind="quorum", delivery_limit=3)
    declare(uri, "safe", kind="quorum", delivery_limit=3, dead_letter_exchange="dead")
    Query(options(uri, staging, queues="q,safe")).plan()
    assert "'q' has a delivery limit of 3" in caplog.text
    assert "'safe'" not in caplog.text


def test_available_now_ends_with_another_consumer_draining_and_after_a_purge(uri: str, staging: Path) -> None:
    declare(uri, "q", "purged")
    publish(uri, 100)
    publish(uri, 100, "purged")
    query = Query(options(uri, staging, queues="q,purged", maxRecordsPerTrigger=40))
    query.reader.prepareForTriggerAvailableNow()
    publish(uri, 30, first=100)  # after the start: not this time
    with connect(uri) as link, link.channel() as channel:
        topology.purge_queue(channel, "purged")
        rows: list[dict[str, object]] = []
        while query.plan():
            rows += query.read()
            assert len(query.log) < 20
    assert len(rows) == 100
    assert ready(uri) == 30


def test_available_now_waits_for_tokens_instead_of_ending(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 60)
    query = Query(options(uri, staging, maxRatePerSecond=40, burst=20, minRecordsPerTrigger=50))
    query.reader.prepareForTriggerAvailableNow()
    started = time.monotonic()
    rows: list[dict[str, object]] = []
    while query.plan():
        rows += query.read()
    assert sorted(values(rows)) == sent
    assert time.monotonic() - started >= 0.95


def test_available_now_finishes_a_batch_that_a_dead_driver_began(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 100)
    query = Query(options(uri, staging, maxRecordsPerTrigger=40, maxRecordsPerPartition=20))
    assert query.plan()
    query.read(query.partitions()[:1])
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    rows = query.read()
    late = publish(uri, 10, first=100)
    while query.plan():
        rows += query.read()
        assert len(query.log) < 20
    assert sorted(values(rows)) == sent
    assert ready(uri) == len(late)


def test_ten_backlogged_queues_stay_within_one_round_after_every_batch(uri: str, staging: Path) -> None:
    quanta = {f"q{i:02}": 4 * i for i in range(1, 11)}
    declare(uri, *quanta)
    for name in quanta:
        publish(uri, 300, name)
    queues = ",".join(f"{name}:{quantum}" for name, quantum in quanta.items())
    query = Query(options(uri, staging, queues=queues, maxRecordsPerTrigger=333))
    got = dict.fromkeys(quanta, 0)
    for _ in range(4):
        assert wait_plan(query)
        for row in query.read():
            got[row["queue"]] += 1
        rounds = [got[name] / quantum for name, quantum in quanta.items()]
        assert max(rounds) - min(rounds) <= 1


def test_planning_on_without_commits_is_refused_as_async_progress_tracking(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 30)
    query = Query(options(uri, staging, maxRecordsPerTrigger=10))
    offset = query.first
    for _ in range(2):
        offset = query.reader.latestOffset(offset, query.reader.getDefaultReadLimit())
    with pytest.raises(LeashError, match="asyncProgressTrackingEnabled"):
        query.reader.latestOffset(offset, query.reader.getDefaultReadLimit())


def test_properties_and_headers_become_columns(uri: str, staging: Path) -> None:
    import datetime

    declare(uri)
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    with connect(uri) as link, Publisher(link) as publisher:
        full = Properties(
            message_id="m1",
            timestamp=at,
            content_type="text/plain",
            priority=3,
            delivery_mode=2,
            message_type="t",
            headers={"text": "x", "number": 7, "deep": {"a": [1, 2]}},
        )
        publisher.publish(
            [Outgoing(b"a", "amq.direct", "k"), Outgoing(b"b", "", "q", full), Outgoing(b"", "", "q")]
        )
    row, empty = Query(options(uri, staging, includeHeaders="true")).batch() or []
    assert (row["value"], row["message_id"], row["timestamp"]) == (b"b", "m1", at)
    assert row["properties"]["content_type"] == "text/plain"
    assert row["properties"]["type"] == "t"
    assert row["properties"]["priority"] == 3
    assert dict(row["headers"]) == {"text": "x", "number": "7", "deep": '{"a": [1, 2]}'}
    assert (empty["value"], empty["message_id"], empty["headers"]) == (b"", None, None)


def test_a_batch_of_200000_is_exact(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 200_000, ids=False)
    query = Query(options(uri, staging, maxRecordsPerTrigger=200_000, maxRecordsPerPartition=65_535))
    assert query.plan()
    assert [grant for _, grant in query.last.splits] == [50_000] * 4
    seen: set[bytes] = set()
    for partition in query.partitions():
        for batch in query.reader.read(partition):
            seen.update(batch.column("value").to_pylist())
    assert len(seen) == 200_000


def test_a_split_of_65535_is_exact_and_in_order(uri: str, staging: Path) -> None:
    declare(uri)
    sent = publish(uri, 65_600, ids=False)
    query = Query(options(uri, staging, ordered="true"))
    assert query.plan()
    assert query.last.splits == ((0, 65_535),)
    (partition,) = query.partitions()
    batches = list(query.reader.read(partition))
    assert [body for batch in batches for body in batch.column("value").to_pylist()] == sent[:65_535]
    assert ready(uri) == 65


def test_big_messages_are_taken_in_rounds_that_bound_the_memory(uri: str, staging: Path) -> None:
    import resource

    declare(uri)
    publish(uri, 400, size=1 << 20)
    query = Query(options(uri, staging, maxRecordsPerPartition=400))
    assert query.plan()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (partition,) = query.partitions()
    count = sum(len(batch) for batch in query.reader.read(partition))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert count == 400
    assert grown < 300 * 1024  # KiB; the messages are 400 MiB


def test_an_idle_query_asks_the_broker_only_now_and_then(
    uri: str, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(uri)
    query = Query(options(uri, staging))
    assert not query.plan()
    asked: list[str] = []
    real = topology.state

    def state(channel: Channel, name: str) -> QueueState:
        asked.append(name)
        return real(channel, name)

    monkeypatch.setattr(topology, "state", state)
    deadline = time.monotonic() + 0.6
    calls = 0
    while time.monotonic() < deadline:
        assert not query.plan()
        calls += 1
        time.sleep(0.005)
    assert len(asked) <= 9
    assert calls > 2 * len(asked)


def test_drained_queues_do_not_hold_a_batch_up_beyond_the_poll_timeout(uri: str, staging: Path) -> None:
    declare(uri)
    publish(uri, 10)
    query = Query(options(uri, staging, pollTimeout="200ms"))
    assert query.plan()
    with connect(uri) as link, link.channel() as channel:
        topology.purge_queue(channel, "q")
    started = time.monotonic()
    assert query.read() == []
    assert 0.2 <= time.monotonic() - started < 0.6


def _until(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _delete(uri: str, queue: str) -> None:
    with connect(uri) as link, link.channel() as channel:
        topology.delete_queue(channel, queue)


def _abandon(staging: Path, query: Query) -> None:
    """As if the driver had died: its process id belongs to nobody."""
    query.reader.stop()
    owner = staging / query.last.run / "owner.json"
    owner.write_text(owner.read_text().replace('"born": "', '"born": "1'))
