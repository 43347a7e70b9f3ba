"""`leash consume` and `leash dead` as a user types them."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from pamqp.commands import Basic
from typer.testing import CliRunner

from leash import Consumer, Message, Retry
from leash.amqp import Channel, decode_properties
from leash.amqp.topology import declare_queue
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.cli.dead import preview, shown
from leash.cli.main import app
from leash.errors import ConfigError, Nacked, NotFound
from tests.consumer.kit import depth, fill, publish, running, until

APP = """
    import os, time
    from leash import Consumer, Queue

    consumer = Consumer(os.environ["LEASH_URI"], [Queue("gold", 3), Queue("free", 1)])
    nothing = 42

    @consumer.handler
    def work(message):
        time.sleep(0.001)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(textwrap.dedent(APP))
    return tmp_path


def leash(*arguments: str, uri: str, feed: str | None = None) -> str:
    """Run a command in this process; what it printed."""
    result = CliRunner().invoke(app, arguments, input=feed, env={"LEASH_URI": uri, "COLUMNS": "120"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    assert parse(uri).password not in result.output
    return result.output


def park(channel: Channel, uri: str, count: int) -> None:
    """Let a handler fail."""
    fill(channel, "orders", count)
    consumer = Consumer(uri, ["orders"], retry=Retry(1))

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError(f"no customer {message.body.decode()}\x1b[31m")

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.orders") == count)


def test_parked_messages_are_counted_shown_and_stay_in_order(channel: Channel, uri: str) -> None:
    park(channel, uri, 5)
    assert leash("dead", "list", "orders", uri=uri) == "orders  5\n"
    for _ in range(2):
        text = leash("dead", "show", "orders", "--limit", "3", "--traceback", uri=uri)
        assert "1. ValueError: no customer 0\\x1b[31m\n" in text
        assert "failed 1 times, published to (default exchange) orders" in text
        assert "body, 1 bytes: 0\n" in text
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
    with pytest.raises(Nacked, match="1 messages sent back to 'orders', 3 stay parked"):
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
    assert leash("dead", "purge", "orders", "--yes", uri=uri) == "1 messages of orders dropped\n"
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


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shop", "module:name"),
        ("shop:", "module:name"),
        (".shop:consumer", "module:name"),
        ("../shop:consumer", "module:name"),
        ("shopp:consumer", "no module named 'shopp'"),
        ("shop:consumr", "'consumr' is nothing in shop"),
        ("shop:nothing", "'nothing' is a int in shop"),
    ],
)
def test_a_consumer_that_does_not_exist_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LEASH_URI", "amqp://u:secret@127.0.0.1:1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    try:
        result = CliRunner().invoke(app, ["consume", name])
    finally:
        sys.modules.pop("shop", None)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("app=")
    assert why in str(result.exception)


def test_an_error_is_a_line_and_no_traceback(folder: Path) -> None:
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:nothing"]
    environment = {**os.environ, "LEASH_URI": "amqp://u:secret@127.0.0.1:1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180)
    assert result.returncode == 1
    assert result.stderr.startswith("leash: app=")
    assert result.stderr.count("\n") == 1


def test_no_broker_is_a_line_too(folder: Path) -> None:
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer"]
    environment = {**os.environ, "LEASH_URI": "amqp://u:secret@127.0.0.1:1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180)
    assert result.returncode == 1
    assert result.stderr.startswith("leash: 127.0.0.1:1")
    assert "secret" not in result.stdout + result.stderr


def test_off_a_terminal_it_prints_lines_and_ends_in_good_order(
    channel: Channel, uri: str, folder: Path
) -> None:
    fill(channel, "gold", 300)
    fill(channel, "free", 300)
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer", "--every", "0.3"]
    environment = {**os.environ, "LEASH_URI": uri}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: depth(channel, "gold") == depth(channel, "free") == 0)
        told = r"queue='gold' .*rate=\S+/s share=50.0% target=75.0% window=\d+ wait=\S+ failed=0"
        assert process.stdout is not None
        late = threading.Timer(120, process.kill)
        late.start()
        out = next((line for line in process.stdout if re.match(told, line)), "never told")
        process.send_signal(signal.SIGTERM)
        rest, err = process.communicate()
        late.cancel()
        out += rest
    assert process.returncode == 0, out + err
    assert "share=50.0%" in out
    assert "event=stopped in_time=True" in err
    assert parse(uri).password not in out + err


def test_on_a_terminal_it_draws_a_table(channel: Channel, uri: str, folder: Path) -> None:
    fill(channel, "gold", 50)
    fill(channel, "free", 50)
    words = [b"queue", b"depth", b"target", b"window", b"wait", b"gold", b"free", b"75.0%", b"round trip"]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer", "--every", "0.2"]
    environment = {**os.environ, "LEASH_URI": uri, "COLUMNS": "100", "TERM": "xterm"}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text, told = b"", False
        late = threading.Timer(120, process.kill)
        late.start()
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
                if not told and all(word in text for word in words):
                    told = True
                    process.send_signal(signal.SIGINT)
        except OSError:
            pass  # the other end is closed
        late.cancel()
        process.wait(120)
    os.close(ours)
    assert process.returncode == 0, text


def test_a_bad_interval_is_refused() -> None:
    result = CliRunner().invoke(app, ["consume", "shop:consumer", "--every", "0"])
    assert result.exit_code == 2
    with pytest.raises(ConfigError, match="app='shop'"):
        leash("consume", "shop", uri="amqp://u:secret@localhost")
