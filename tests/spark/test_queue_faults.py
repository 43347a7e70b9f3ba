"""Queues that are missing, deleted, ordered, shared with others or limited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leash.amqp import connect
from leash.amqp.queue_traits import Traits
from leash.errors import ConfigError, QueueMissing
from leash.spark.driver.checks import refuse_disorder

from . import victim
from .harness import (
    KINDS,
    Query,
    declare,
    delete,
    options,
    publish,
    until_there,
    values,
    wait_plan,
)


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
    delete(uri, "q")
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
    until_there(flag.with_name("go.there"))
    delete(uri, "q")
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


def test_ordered_is_refused_on_a_queue_that_keeps_back_what_comes_back() -> None:
    told = {"x-single-active-consumer": True, "x-delayed-retry-type": "all", "x-delayed-retry-min": 100}
    with pytest.raises(ConfigError, match="x-delayed-retry-type"):
        refuse_disorder("q", Traits("quorum", arguments=told))


def test_ordered_is_refused_while_somebody_else_consumes(
    uri: str, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(uri)
    monkeypatch.setattr("leash.spark.driver.checks._OTHERS_LEAVE", 0.2)
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


def test_a_low_delivery_limit_without_a_dead_letter_exchange_is_warned_about(
    uri: str, staging: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(uri, kind="quorum", delivery_limit=3)
    declare(uri, "none", kind="quorum", delivery_limit=0)
    declare(uri, "safe", kind="quorum", delivery_limit=3, dead_letter_exchange="dead")
    declare(uri, "usual", kind="quorum")
    Query(options(uri, staging, queues="q,none,safe,usual")).plan()
    told = "\n".join(caplog.messages)  # `caplog.text` may be JSON, thanks to PySpark
    assert (
        'queue=q reason="has a delivery limit of 3 and no dead-letter exchange: messages are rescued' in told
    )
    assert 'queue=none reason="has a delivery limit of 0' in told
    assert "drops them the first time that a task fails" in told
    assert "queue=safe" not in told
    assert "queue=usual" not in told


def test_a_user_who_cannot_rescue_messages_is_warned(
    uri: str, staging: Path, caplog: pytest.LogCaptureFixture, as_user: Callable[..., str]
) -> None:
    declare(uri, kind="quorum", delivery_limit=20)
    sent = publish(uri, 10)
    query = Query(options(as_user(write="^$"), staging))
    assert query.plan()
    assert "has a delivery limit of 20 and no dead-letter exchange: this user may not" in caplog.text
    assert "Grant write for 'amq.default'" in caplog.text
    victim.die_often(query.given, query.partitions()[0], "before-seal", 12)
    assert sorted(values(query.read())) == sent  # what cannot be rescued is read all the same
    assert "event=cannot_rescue" in caplog.text


@pytest.mark.parametrize(
    ("grants", "says"),
    [
        ({"configure": "^$"}, "'q' cannot be inspected.*grant this user the configure permission"),
        ({"configure": "^(?!leash.lock)"}, r"needs 'leash\.lock\.q' beside it: grant this user configure"),
        ({"configure": "^(?!leash.limbo)"}, r"needs 'leash\.limbo\.q' beside it: grant this user configure"),
        ({"write": "^leash"}, "grant this user write for 'amq.default'"),
    ],
)
def test_ordered_names_the_grant_that_is_missing(
    uri: str, staging: Path, as_user: Callable[..., str], grants: dict[str, str], says: str
) -> None:
    declare(uri, kind="quorum", single_active_consumer=True)
    with pytest.raises(ConfigError, match=says):
        Query(options(as_user(**grants), staging, ordered="true")).plan()


def test_a_user_with_the_grants_that_ordered_names_can_read(
    uri: str, staging: Path, as_user: Callable[..., str]
) -> None:
    declare(uri, kind="quorum", single_active_consumer=True)
    sent = publish(uri, 20)
    user = as_user(
        configure="^(q|leash[.].*)$", write="^(amq[.]default|leash[.].*)$", read="^(q|leash[.].*)$"
    )
    query = Query(options(user, staging, ordered="true"))
    assert query.plan()
    victim.die_often(query.given, query.partitions()[0], "before-seal", 12)
    assert values(query.read() + query.drain()) == sent
