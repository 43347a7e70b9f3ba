"""Looking at a queue takes nothing from it, however often, and however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from leash.amqp import Channel, Deliveries, connect, topology
from leash.amqp.last_acks import settled
from leash.errors import CannotRescue, ConfigError, QueueHeld
from leash.spark import browse
from leash.spark.browse import BrowseReader
from leash.spark.columns import source_schema
from leash.spark.settings import browse_settings
from leash.spark.task.rescuing import Rescuer
from leash.spark.task.taking import QueueTaker
from tests.conftest import StalledLog

from .harness import KINDS, Query, Row, declare, options, publish, ready

COUNT = 200


def look(uri: str, limit: int = 1000, most: int | None = None) -> list[Row]:
    """With `most`, the reader is closed once it has shown that many."""
    settings = browse_settings({"url": uri, "queue": "q", "mode": "browse", "limit": str(limit)})
    reader = BrowseReader(settings, source_schema(False))
    batches = reader.read(reader.partitions()[0])
    rows: list[Row] = []
    for batch in batches:
        rows += batch.to_pylist()
        if most is not None and len(rows) >= most:
            break
    assert isinstance(batches, Iterator)
    batches.close()  # type: ignore[attr-defined]
    return rows


@KINDS
@pytest.mark.parametrize("most", [None, 1], ids=["to the end", "closed early"])
def test_fifty_looks_leave_everything_there(
    uri: str, kind: str, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "_QUIET", 0.02)
    declare(uri, kind=kind)
    sent = publish(uri, COUNT)
    for _ in range(50):
        shown = look(uri, most=most)
        assert len(shown) >= COUNT if most is None else shown
        assert ready(uri, expect=COUNT) == COUNT
    assert sorted({row["value"] for row in look(uri)}) == sent


@KINDS
def test_looks_of_any_size_leave_every_message_in_its_place(
    uri: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as no message was seen so often that it had to be copied."""
    monkeypatch.setattr(browse, "_QUIET", 0.02)
    declare(uri, kind=kind)
    sent = publish(uri, COUNT)
    for limit in (150, 40, 90, 1, 1000):
        assert [row["value"] for row in look(uri, limit)] == sent[:limit]
        assert ready(uri, expect=COUNT) == COUNT


def test_what_is_only_held_during_a_look_is_rescued_too(
    uri: str, monkeypatch: pytest.MonkeyPatch, stalled_log: StalledLog
) -> None:
    """Messages behind those that are shown may have come back more often than these.

    Each is acked on its own, and is there twice if the look ends before these acks have taken effect.
    """
    send, without, call = Rescuer.send, QueueTaker._without, Channel.call

    def sent_before(self: Rescuer, *given: Any) -> list[int]:
        stalled_log.end()
        return send(self, *given)

    def acks_in_vain(self: QueueTaker, lot: Deliveries, rescued: list[int]) -> Deliveries:
        if self._last and rescued:
            stalled_log.begin()
        return without(self, lot, rescued)

    def not_stalled(self: Channel, request: Any, *given: Any) -> Any:
        if isinstance(request, commands.Basic.Consume | commands.Basic.Cancel):
            stalled_log.end()
        return call(self, request, *given)

    monkeypatch.setattr(Rescuer, "send", sent_before)
    monkeypatch.setattr(QueueTaker, "_without", acks_in_vain)
    monkeypatch.setattr(Channel, "call", not_stalled)
    monkeypatch.setattr("leash.spark.task.taking.settled", stalled_log.ends_with(settled))
    monkeypatch.setattr(browse, "_QUIET", 0.02)
    declare(uri, kind="quorum", delivery_limit=6)
    publish(uri, COUNT)

    def take(channel: Channel) -> None:
        channel.qos(COUNT // 2)
        channel.consume("q")
        came = 0
        while came < COUNT // 2:
            lot = channel.deliveries(60)
            assert lot is not None
            came += len(lot)

    with connect(uri) as link:
        with link.channel() as first:
            take(first)
            for _ in range(4):
                with link.channel() as second:
                    take(second)
                assert ready(uri, expect=COUNT // 2) == COUNT // 2
            last = link.channel()
            take(last)
        assert ready(uri, expect=COUNT // 2) == COUNT // 2
        last.close()
    assert ready(uri, expect=COUNT) == COUNT
    for _ in range(4):
        assert look(uri, most=1)
        stalled_log.end()
        assert ready(uri, expect=COUNT) == COUNT
    assert stalled_log.stalls


@pytest.mark.parametrize("limit", [3, 0, -1])
def test_a_user_who_may_not_write_can_look_until_the_broker_would_drop(
    uri: str, as_user: Callable[..., str], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before RabbitMQ 4.0, -1 means what 0 does."""
    monkeypatch.setattr(browse, "_QUIET", 0.02)
    declare(uri, kind="quorum", delivery_limit=limit)
    publish(uri, 20)
    place, error = as_user(write="^$"), None
    for _ in range(14):
        try:
            assert len(look(place)) == 20
        except (CannotRescue, ConfigError) as raised:
            error = raised
            break
    assert ready(uri, expect=20) == 20
    with connect(uri) as link:
        none = limit < 0 and link.version >= (4,)
    assert not (none and error)


@pytest.mark.parametrize("option", ["queue", "queues"])
def test_a_stream_is_refused_by_name_in_one_sentence(uri: str, tmp_path: Path, option: str) -> None:
    declare(uri, "s", kind="stream")
    declare(uri, "q")
    with pytest.raises(ConfigError, match=r"queue='s': is a stream: "):
        look_at_stream(uri)
    given = options(uri, tmp_path, queues="s" if option == "queue" else "s,q")
    with pytest.raises(ConfigError, match=rf"^{option}='s': is a stream: [^.]*$"):
        Query(given).plan()


def look_at_stream(uri: str) -> None:
    settings = browse_settings({"url": uri, "queue": "s", "mode": "browse"})
    reader = BrowseReader(settings, source_schema(False))
    list(reader.read(reader.partitions()[0]))


@KINDS
def test_a_single_active_consumer_of_somebody_else_is_an_error_within_seconds(uri: str, kind: str) -> None:
    declare(uri, kind=kind, single_active_consumer=True)
    publish(uri, COUNT)
    with connect(uri) as link, link.channel() as channel:
        channel.qos(10)
        channel.consume("q")
        assert channel.deliveries(60) is not None
        with pytest.raises(QueueHeld, match="'q' has a single active consumer, which is another client"):
            look(uri)
    assert len(look(uri)) == COUNT


def test_a_look_that_sees_nothing_of_what_is_there_says_so(
    uri: str, as_user: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This user may not find out that the queue has a single active consumer."""
    monkeypatch.setattr("leash.spark.task.taking.DEADLINE", 2.0)
    declare(uri, kind="quorum", single_active_consumer=True)
    publish(uri, COUNT)
    with connect(uri) as link, link.channel() as channel:
        channel.qos(10)
        channel.consume("q")
        assert channel.deliveries(60) is not None
        with pytest.raises(QueueHeld, match="another consumer holds them"):
            look(as_user(configure="^$"))


def test_nobody_is_left_consuming_after_a_look(uri: str) -> None:
    declare(uri)
    publish(uri, COUNT)
    look(uri, most=1)
    with connect(uri) as link, link.channel() as channel:
        assert topology.state(channel, "q").consumers == 0
