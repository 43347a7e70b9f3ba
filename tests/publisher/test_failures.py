"""Messages that cannot be published: each error says what is known, and the others are there."""

from __future__ import annotations

import time
from typing import Any

import pytest

from leash import Publisher, amqp
from leash.amqp import Channel, Connection, Properties, topology
from leash.broker import Broker
from leash.errors import (
    AuthenticationError,
    ConfigError,
    HostUnreachable,
    InDoubt,
    Nacked,
    NotFound,
    NotSent,
    PartlyPublished,
    PreconditionFailed,
    PublishBlocked,
    Unroutable,
)
from leash.publisher import writer
from tests.admin import memory_alarm
from tests.consumer.kit import depth, until
from tests.publisher.kit import bodies_in, together


def test_an_unroutable_message_is_named_and_the_others_are_there(
    publisher: Publisher, channel: Channel
) -> None:
    topology.declare_exchange(channel, "events", kind="topic")
    topology.bind_queue(channel, "q", "events", "good.*")
    sent = [
        publisher.send(b"%d" % n, exchange="events", routing_key="good.x" if n % 2 else "bad.x")
        for n in range(400)
    ]
    for number, each in enumerate(sent):
        error = each.exception(30)
        if number % 2:
            assert error is None
        else:
            assert isinstance(error, Unroutable)
            assert "routing key 'bad.x' on exchange 'events'" in str(error)
            assert not error.in_doubt
    assert bodies_in(channel, "q") == [b"%d" % n for n in range(400) if n % 2]


def test_what_a_full_queue_refuses_is_counted(publisher: Publisher, channel: Channel) -> None:
    topology.declare_queue(channel, "full", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    with pytest.raises(PartlyPublished) as caught:
        publisher.publish_many([b"%d" % n for n in range(50)], "full")
    error = caught.value
    assert not error.in_doubt
    assert all(isinstance(each, Nacked) for each in error.failures.values())
    taken = [b"%d" % n for n in range(50) if n not in error.failures]
    assert (len(taken), bodies_in(channel, "full")) == (error.confirmed, taken)
    publisher.publish(b"x", "q")


def test_a_missing_exchange_fails_its_own_messages_only(publisher: Publisher, channel: Channel) -> None:
    def work(number: int) -> None:
        for each in range(50):
            if number:
                publisher.publish(b"%d-%d" % (number, each), "q")
            else:
                with pytest.raises(NotFound, match="no exchange 'missing'"):
                    publisher.publish(b"x", exchange="missing", routing_key="k")

    together(4, work)
    assert len(set(bodies_in(channel, "q"))) == 150


def test_a_message_that_the_broker_closes_the_channel_for_fails_alone(
    publisher: Publisher, channel: Channel
) -> None:
    """An expiration that is none ends the channel, and says nothing about which message it was."""
    sent = [
        publisher.send(
            b"%d" % n, "q", properties=Properties(expiration="soon") if n in (7, 150, 151) else Properties()
        )
        for n in range(300)
    ]
    errors = {n: each.exception(60) for n, each in enumerate(sent)}
    failed = {n: error for n, error in errors.items() if error is not None}
    assert list(failed) == [7, 150, 151]
    assert all(isinstance(error, PreconditionFailed) for error in failed.values())
    found = bodies_in(channel, "q")
    assert set(found) == {b"%d" % n for n in range(300) if n not in failed}
    twice = {body for body in found if found.count(body) > 1}
    assert twice <= {b"%d" % n for n, each in enumerate(sent) if each.resent}


def test_properties_that_fill_a_frame_fail_alone(publisher: Publisher, channel: Channel) -> None:
    sent = [publisher.send(b"x", "q", headers={"h": "x" * (200_000 if n == 5 else 1)}) for n in range(10)]
    with pytest.raises(ConfigError, match="they go in one frame"):
        sent[5].result(30)
    assert [n for n, each in enumerate(sent) if each.exception(30)] == [5]
    assert depth(channel, "q") == 9


def test_large_bodies_wait_for_room(publisher: Publisher, channel: Channel) -> None:
    assert publisher.publish_many((b"x" * 10_000_000 for _ in range(12)), "q") == 12
    assert depth(channel, "q") == 12


def test_an_alarm_is_named_once_the_time_is_over(uri: str, channel: Channel, broker: Broker) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(uri, timeout=3) as short, Publisher(uri, timeout=None) as patient:
        for each in (short, patient):
            each.publish(b"before", "q")
        with memory_alarm(broker):
            seen = 0
            deadline = time.monotonic() + 60
            while not seen and time.monotonic() < deadline:
                # What is sent before the broker says that it blocks is in doubt.
                with pytest.raises((PublishBlocked, InDoubt, NotSent), match="blocks publishers") as caught:
                    short.publish(b"late", "q")
                seen = caught.type is PublishBlocked
            assert seen
            assert not caught.value.in_doubt
            waiting = patient.send(b"after", "q")
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        waiting.result(60)
        short.publish(b"again", "q")


def test_no_broker_is_an_error_at_once_or_after_the_timeout() -> None:
    nobody = "amqp://127.0.0.1:1"
    with pytest.raises(HostUnreachable), Publisher(nobody):
        pass
    publisher = Publisher(nobody, timeout=0.5)
    with pytest.raises(NotSent, match=r"was not sent within 0.5 s: 127.0.0.1:1"):
        publisher.publish(b"x", "q")
    assert publisher.send(b"x", "q").message_id
    with pytest.raises(NotSent):
        publisher.close()


def test_each_outage_begins_with_a_short_wait(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topology.declare_queue(channel, "q")
    opened: list[Connection] = []
    failing = 0
    real = amqp.connect

    def connect(*arguments: Any, **options: Any) -> Connection:
        nonlocal failing
        if failing:
            failing -= 1
            raise HostUnreachable("down")
        opened.append(real(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(writer, "connect", connect)
    with Publisher(uri) as publisher:
        for _ in range(2):
            publisher.publish(b"x", "q")
            failing = 3
            opened[-1].abort()
            until(lambda: opened[-1].closed)
            publisher.publish(b"x", "q")
    waits = [float(line.partition("wait=")[2]) for line in caplog.messages if "connect_failed" in line]
    assert len(waits) == 6
    assert waits[3] <= 0.1 < waits[5]  # as at first


def test_a_wrong_password_is_not_waited_for(uri: str) -> None:
    place = uri.replace("leash:", "nobody:", 1)
    publisher = Publisher(place, timeout=None)
    with pytest.raises(AuthenticationError) as caught:
        publisher.publish(b"x", "q")
    publisher.close()
    assert "nobody" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((b"x",), {}),
        ((b"x", "q"), {"exchange": "e"}),
        ((b"x", "q"), {"routing_key": "k"}),
        ((b"x", "q"), {"key": "k"}),
        ((b"x", "k" * 256), {}),
        ((b"x", "q"), {"message_id": "i" * 256}),
        ((b"x", "q"), {"headers": {"h": object()}}),
        ((None, "q"), {}),
        ((b"x",), {"partitions": "p"}),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    arguments: tuple[object, ...], options: dict[str, object]
) -> None:
    publisher = Publisher("amqp://nowhere.invalid")
    with pytest.raises(ConfigError):
        publisher.publish(*arguments, **options)  # type: ignore[arg-type]
