"""`leash dead` as a user types it."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic
from typer.testing import CliRunner

from leash import Consumer, Message, Retry
from leash.amqp import Channel, decode_properties
from leash.amqp.topology import declare_queue
from leash.broker import Broker
from leash.cli.dead import preview, shown
from leash.cli.main import app
from leash.errors import Nacked, NotFound
from tests.cli.kit import leash, park
from tests.consumer.kit import depth, fill, publish, running, until


def test_parked_messages_are_counted_shown_and_stay_in_order(channel: Channel, uri: str) -> None:
    park(channel, uri, 5)
    assert leash("dead", "list", "orders", uri=uri) == "orders  5\n"
    for _ in range(2):
        text = leash("dead", "show", "orders", "--limit", "3", "--traceback", uri=uri)
        assert "1. ValueError: no customer 0\\x1b[31m\n" in text
        assert "failed 1 time, published to (default exchange) orders" in text
        assert "body, 1 byte: 0\n" in text
        assert "| Traceback (most recent call last):" in text
        assert "3. ValueError: no customer 2" in text
        assert text.endswith("3 of 5 parked messages of orders\n")
    until(lambda: depth(channel, "leash.dead.orders") == 5)


def test_what_is_shown_from_a_quorum_queue_stays_parked(channel: Channel, uri: str) -> None:
    fill(channel, "leash.dead.orders", 4, kind="quorum")
    for _ in range(3):
        assert "4 of 4 parked" in leash("dead", "show", "orders", uri=uri)
        until(lambda: depth(channel, "leash.dead.orders") == 4)


def test_without_names_the_management_plugin_is_asked(
    channel: Channel, uri: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker.management
    monkeypatch.setenv("LEASH_MANAGEMENT_URL", f"http://127.0.0.1:{broker.port('management')}")
    assert leash("dead", "list", uri=uri) == "No queue has parked messages.\n"
    fill(channel, "leash.dead.orders", 3)
    fill(channel, "leash.dead.a", 0)
    fill(channel, "other", 1)
    assert leash("dead", "list", uri=uri) == "a       0\norders  3\n"


def test_what_is_sent_back_has_all_its_tries_again_and_its_first_address(channel: Channel, uri: str) -> None:
    park(channel, uri, 5)
    assert leash("dead", "retry", "orders", "--limit", "2", uri=uri) == "2 messages sent back to orders\n"
    assert depth(channel, "leash.dead.orders") == 3
    assert leash("dead", "retry", "leash.dead.orders", uri=uri) == "3 messages sent back to orders\n"
    assert depth(channel, "leash.dead.orders") == 0
    first = channel.get("orders")
    assert first is not None
    headers = decode_properties(first.properties).headers or {}
    assert set(headers) == {"x-leash-tries", "x-leash-exchange", "x-leash-routing-key"}
    channel.nack(first.method.delivery_tag)  # type: ignore[attr-defined]
    seen: list[tuple[bytes, int, str]] = []
    consumer = Consumer(uri, ["orders"])

    @consumer.handler
    def work(message: Message) -> None:
        seen.append((message.body, message.tries, message.routing_key))

    with running(consumer):
        until(lambda: len(seen) == 5)
    assert seen == [(str(n).encode(), 0, "orders") for n in range(5)]


def test_sending_back_ends_although_the_consumer_parks_everything_again(channel: Channel, uri: str) -> None:
    park(channel, uri, 150)
    consumer = Consumer(uri, ["orders"], retry=Retry(1))

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError("still")

    with running(consumer):
        assert leash("dead", "retry", "orders", uri=uri) == "150 messages sent back to orders\n"
        until(lambda: depth(channel, "leash.dead.orders") == 150)


def test_a_full_queue_takes_what_it_can_and_each_message_once(channel: Channel, uri: str) -> None:
    declare_queue(channel, "orders", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    fill(channel, "leash.dead.orders", 25)
    got: list[bytes] = []
    for parked in (15, 5):
        said = f"10 messages sent back to 'orders', {parked} stay parked: the broker refused {parked} mess"
        with pytest.raises(Nacked, match=said):
            leash("dead", "retry", "orders", uri=uri)
        got.extend(bodies(channel, "orders"))
        until(lambda: depth(channel, "leash.dead.orders") == 25 - len(got))
    assert leash("dead", "retry", "orders", uri=uri) == "5 messages sent back to orders\n"
    got.extend(bodies(channel, "orders"))
    assert got == [str(n).encode() for n in range(25)]


def test_alike_messages_leave_the_dead_queue_too_when_they_are_taken(channel: Channel, uri: str) -> None:
    declare_queue(channel, "orders", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    declare_queue(channel, "leash.dead.orders")
    publish(channel, "leash.dead.orders", [b"same"] * 4)
    with pytest.raises(Nacked, match="1 message sent back to 'orders', 3 stay parked"):
        leash("dead", "retry", "orders", uri=uri)
    until(lambda: depth(channel, "leash.dead.orders") == 3)


def bodies(channel: Channel, queue: str) -> list[bytes]:
    """Take all that there are."""
    found = []
    while (event := channel.get(queue)) is not None:
        assert isinstance(event.method, Basic.GetOk)
        channel.ack(event.method.delivery_tag or 0)
        found.append(event.body)
    return found


def test_purging_asks_first(channel: Channel, uri: str) -> None:
    fill(channel, "leash.dead.orders", 4)
    result = CliRunner().invoke(app, ["dead", "purge", "orders"], input="n\n", env={"LEASH_URI": uri})
    assert result.exit_code == 1
    assert "Drop the 4 parked messages of orders for good?" in result.output
    assert depth(channel, "leash.dead.orders") == 4
    assert "4 messages of orders dropped" in leash("dead", "purge", "orders", uri=uri, feed="y\n")
    publish(channel, "leash.dead.orders", [b"x"])
    assert leash("dead", "purge", "orders", "--yes", uri=uri) == "1 message of orders dropped\n"
    assert leash("dead", "purge", "orders", uri=uri) == "There are no parked messages of orders.\n"
    assert depth(channel, "leash.dead.orders") == 0


def test_what_is_missing_is_said_in_a_line(channel: Channel, uri: str) -> None:
    for command in ("list", "show", "retry", "purge"):
        with pytest.raises(NotFound, match="nothing was ever parked for 'nope'"):
            leash("dead", command, "nope", uri=uri)
    fill(channel, "leash.dead.gone", 1)
    with pytest.raises(NotFound, match="queue 'gone' does not exist"):
        leash("dead", "retry", "gone", uri=uri)
    until(lambda: depth(channel, "leash.dead.gone") == 1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", ""),
        (b"hello", "hello"),
        (b"a\x1b[31m\nb", "a\\x1b[31m\\nb"),
        ("ä".encode() * 10, "ä" * 5 + " ..."),
        (b"x" + "ä".encode() * 10, "x" + "ä" * 4 + " ..."),
        (b"\xff\x00", "'\\xff\\x00'"),
    ],
)
def test_a_preview_is_text_where_the_body_is(body: bytes, expected: str) -> None:
    assert preview(body, 10) == expected


def test_nothing_from_outside_reaches_the_terminal_as_a_control_character() -> None:
    assert shown("a\x07\u202e") == "a\\x07\\u202e"
    assert shown({"k": b"\x1b"}) == "{'k': b'\\x1b'}"
