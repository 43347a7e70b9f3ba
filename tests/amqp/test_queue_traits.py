"""What kind of queue it is, on every version of the broker."""

from __future__ import annotations

from typing import Any

import pytest

from leash.amqp import Channel, Connection, connect, topology
from leash.amqp import queue_traits as traits_module
from leash.amqp.queue_traits import Traits, traits
from leash.broker import Broker
from leash.consumer import Queue
from leash.consumer.inspection import refused
from leash.errors import NotFound
from tests.admin import add_user


@pytest.mark.parametrize(
    ("kind", "least", "answers"),
    [
        ("failed", 100, (True, True)),
        ("all", 100, (True, True)),
        ("returned", 100, (False, True)),
        ("all", 0, (False, False)),
        ("all", None, (False, False)),
        ("disabled", 100, (False, False)),
    ],
)
def test_what_a_queue_keeps_back(kind: str, least: int | None, answers: tuple[bool, bool]) -> None:
    found = Traits("quorum", arguments={"x-delayed-retry-type": kind, "x-delayed-retry-min": least})
    assert (found.delays, found.overtakes) == answers
    ordered = refused(Queue("q", ordered=True), found)
    assert (ordered is not None) == found.overtakes
    assert refused(Queue("q"), found) is None


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_the_type_of_a_queue(connection: Connection, channel: Channel, kind: str) -> None:
    topology.declare_queue(channel, "it", kind=kind)
    found = traits(connection, "it")
    assert found is not None
    assert found.kind == kind
    assert found.durable
    assert not found.arguments


def test_arguments_and_flags(connection: Connection, channel: Channel) -> None:
    asked = {"x-single-active-consumer": True, "x-delivery-limit": 5, "x-expires": 100_000, "x-max-length": 7}
    topology.declare_queue(channel, "quorum", kind="quorum", arguments=asked)
    topology.declare_queue(channel, "passing", auto_delete=True, arguments={"x-max-priority": 3})
    quorum, passing = traits(connection, "quorum"), traits(connection, "passing")
    assert quorum is not None
    assert quorum.arguments == asked
    assert quorum.single_active
    assert passing is not None
    assert passing.auto_delete
    assert passing.arguments == {"x-max-priority": 3}


def test_a_queue_that_is_missing_is_not_made_by_asking(connection: Connection, channel: Channel) -> None:
    with pytest.raises(NotFound):
        traits(connection, "nowhere")
    with pytest.raises(NotFound):
        topology.state(channel, "nowhere")


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_queue_that_is_declared_while_it_is_asked_about(
    connection: Connection, channel: Channel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = traits_module._look

    def declared_meanwhile(queue: str) -> Any:
        topology.declare_queue(channel, queue, kind=kind)
        return look(queue)

    monkeypatch.setattr(traits_module, "_look", declared_meanwhile)
    found = traits(connection, "it")
    assert found is not None
    assert found.kind == kind


def test_somebody_who_may_not_ask(broker: Broker, uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "it", kind="quorum")
    with connect(add_user(broker, uri, "^$")) as other:
        assert traits(other, "it") is None
        with pytest.raises(NotFound):
            traits(other, "nowhere")
