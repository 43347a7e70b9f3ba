"""Commands that run in the process of the test."""

from __future__ import annotations

from typer.testing import CliRunner

from leash import Consumer, Message, Retry
from leash.amqp import Channel
from leash.amqp.uri import parse
from leash.cli.main import app
from tests.consumer.kit import depth, fill, running, until


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
