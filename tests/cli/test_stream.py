"""`leash stream`, as a user types it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from leash.amqp.uri import parse as parse_amqp
from leash.broker import Broker
from leash.cli.main import app
from leash.errors import ConfigError, ConnectError, StreamExists, StreamMissing
from leash.streams import Publisher, connect, partitions, query_offset, store_offset


@pytest.fixture
def at(uri: str, broker: Broker) -> str:
    """The stream port of the test's virtual host."""
    return broker.stream_place(parse_amqp(uri).vhost).reveal()


@pytest.fixture(autouse=True)
def management(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASH_MANAGEMENT_URL", f"http://127.0.0.1:{broker.port('management')}")


def stream(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["stream", *arguments])


def said(result: Result) -> str:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def told(*arguments: str) -> Any:
    return json.loads(said(stream("show", *arguments, "--seconds", "0", "--json")))


def test_a_stream_is_made_filled_shown_and_followed(at: str) -> None:
    assert said(stream("create", "s", "--max-age", "7D", "--uri", at)) == "stream s made\n"
    assert said(stream("create", "s", "--max-age", "7D", "--uri", at)) == "stream s is there already\n"
    with pytest.raises(StreamExists):
        said(stream("create", "s", "--max-age", "8D", "--uri", at))
    assert told("s", "--uri", at)["partitions"][0]["last"] is None
    with Publisher(at, "s") as publisher:
        publisher.publish([b"body %d" % number for number in range(100)])
    with connect(at) as connection:
        store_offset(connection, "billing", "s", 89)
        assert query_offset(connection, "billing", "s") == 89
    shown = told("s", "--uri", at, "--consumer", "billing", "--consumer", "nobody")
    (row,) = shown["partitions"]
    assert (shown["super_stream"], row["stream"], row["first"], row["last"]) == (False, "s", 0, 99)
    assert row["consumers"] == [
        {"name": "billing", "offset": 89, "lag": 10},
        {"name": "nobody", "offset": None, "lag": 100},
    ]
    text = said(stream("show", "s", "--uri", at, "--consumer", "billing", "--seconds", "0.01"))
    assert "consumer billing: stored 89, 10 behind" in text
    assert text.splitlines()[1].split()[:4] == ["s", "0", "99", "0"]
    lines = said(stream("tail", "s", "--from", "97", "--once", "--uri", at)).splitlines()
    assert [line.split("  ")[0::2] for line in lines] == [[str(n), f"body {n}"] for n in (97, 98, 99)]
    first = said(stream("tail", "s", "--from", "first", "--limit", "1", "--json", "--uri", at))
    assert json.loads(first)["value"] == "body 0"


def test_a_super_stream_is_shown_by_its_partitions(uri: str, at: str, broker: Broker) -> None:
    port = str(broker.port("stream"))
    made = said(stream("create", "orders", "--partitions", "2", "--uri", uri, "--port", port))
    assert made == "super stream of 2 orders made\n"
    with connect(at) as connection:
        assert partitions(connection, "orders") == ["orders-0", "orders-1"]
    for name in ("orders-0", "orders-1"):
        with Publisher(at, name) as publisher:
            publisher.publish([name.encode()] * 3)
    shown = told("orders", "--uri", at)
    assert shown["super_stream"]
    assert [(row["stream"], row["first"], row["last"]) for row in shown["partitions"]] == [
        ("orders-0", 0, 2),
        ("orders-1", 0, 2),
    ]
    assert said(stream("show", "orders", "--uri", at)).startswith("super stream orders, 2 partitions\n")
    lines = said(stream("tail", "orders", "--from", "first", "--once", "--uri", at)).splitlines()
    assert sorted(line.split()[0] for line in lines) == ["orders-0"] * 3 + ["orders-1"] * 3


def test_what_is_no_stream_is_named(uri: str, at: str, channel: Any) -> None:
    from leash.amqp.topology import declare_queue

    declare_queue(channel, "work", kind="quorum")
    with pytest.raises(ConfigError, match=r"'work'.*quorum queue"):
        said(stream("show", "work", "--uri", at))
    with pytest.raises(StreamMissing, match="'nothing': there is no stream and no super stream"):
        said(stream("tail", "nothing", "--uri", at))
    amqp_port = str(parse_amqp(uri).hosts[0][1])
    with pytest.raises(ConnectError, match="is an AMQP port"):
        said(stream("show", "s", "--uri", uri, "--port", amqp_port))
    with pytest.raises(ConfigError, match="--from"):
        said(stream("tail", "s", "--from", "yesterday", "--uri", at))
