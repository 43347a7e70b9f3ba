"""The examples in README and docs run as written, but for the address of the broker.

Those that need Spark are in spark/test_docs.py; getting-started.md, lab.md and testing.md have tests in
test_getting_started.py, lab/ and testing/. `test_every_example_has_a_test` counts the examples: a new one
needs a test, or a comment `<!-- not run: why -->` above it.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from prometheus_client import CollectorRegistry

from leash import Consumer, Message
from leash.amqp import Channel
from leash.amqp import connect as amqp_connect
from leash.amqp.topology import declare_queue
from leash.broker import Broker
from leash.cli.main import app
from leash.lab import plan as plans
from leash.spark import pipeline
from leash.streams import Publisher as StreamPublisher
from leash.streams import connect, create_stream, create_super_stream, parse
from tests.consumer.kit import depth, fill, publish, running, until
from tests.examples_in_docs import PAGES, execute, snippets

TESTED = {
    "README.md": 4,
    "budgets.md": 2,
    "consumer.md": 4,
    "getting-started.md": 4,
    "lab.md": 2,
    "operations.md": 2,
    "partitions.md": 2,
    "publishing.md": 1,
    "spark.md": 10,
    "streams.md": 4,
    "tenants.md": 2,
    "testing.md": 1,
}
COMMAND = re.compile(r"^(?:    |)(leash [^\n]+)$", re.MULTILINE)


def test_every_example_has_a_test() -> None:
    counts = {path.name: len(snippets(path.name)) for path in PAGES}
    assert {page: count for page, count in counts.items() if count} == TESTED


def test_every_command_has_these_arguments_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("keys.txt", "pipeline.toml", "plan.toml"):
        Path(name).touch()
    commands = {
        line.split("#")[0] if "  #" in line else re.split(r" {3,}", line)[0]
        for page in PAGES
        for line in COMMAND.findall(page.read_text())
    }
    assert len(commands) > 20
    for line in sorted(commands):
        command: Any = typer.main.get_command(app)
        words = shlex.split(line)[1:]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(line, words).close()  # raises on what it does not know


# --- the live consumer ---


@pytest.mark.parametrize("page", ["README.md", "consumer.md"])
def test_the_consumer(page: str, channel: Channel, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(channel, "gold", 20)
    fill(channel, "free", 20)
    consumer: Consumer = execute(page, snippets(page)[0], uri)["consumer"]
    try:
        until(lambda: sum(queue.handled for queue in consumer.stats().queues.values()) == 40)
    finally:
        consumer.stop()
    assert capsys.readouterr().out.count("gold b'") == 20


@dataclass
class Order:
    number: int


def test_a_handler_of_one_queue_with_a_decoded_body(channel: Channel, uri: str) -> None:
    declare_queue(channel, "orders")
    publish(channel, "orders", [b'{"number": 13}', b"no order"])
    consumer = Consumer(uri, ["orders"])
    execute("consumer.md", snippets("consumer.md")[1], uri, consumer=consumer, Order=Order, Message=Message)
    with running(consumer):
        until(lambda: consumer.stats().queues["orders"].handled >= 1)  # a parked one may count, too
        until(lambda: depth(channel, "leash.dead.orders") == 1)


def test_middleware(channel: Channel, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(channel, "orders", 1)
    consumer = execute("consumer.md", snippets("consumer.md")[2], uri, Consumer=Consumer, time=time)[
        "consumer"
    ]
    consumer.handler(lambda _: None)
    with running(consumer):
        until(lambda: consumer.stats().queues["orders"].handled == 1)
    assert capsys.readouterr().out.startswith("orders ")


def test_a_breaker_and_a_retry_budget(channel: Channel, uri: str) -> None:
    fill(channel, "mail", 30)
    fill(channel, "invoices", 30)
    consumer: Consumer = execute("consumer.md", snippets("consumer.md")[3], uri)["consumer"]
    down = threading.Event()
    down.set()

    @consumer.handler
    def work(message: Message) -> None:
        if message.queue == "mail" and down.is_set():
            raise ConnectionError("down")

    with running(consumer):
        until(lambda: consumer.stats().queues["mail"].counts.get("excused", 0) >= 3)
        until(lambda: consumer.stats().queues["invoices"].handled == 30)
        assert consumer.stats().queues["mail"].breaker == "open"
        down.clear()
        until(lambda: depth(channel, "mail") == consumer.stats().queues["mail"].unsettled == 0)
        until(lambda: consumer.stats().queues["mail"].breaker == "closed")
    assert depth(channel, "leash.dead.mail") == 0


@pytest.mark.parametrize(
    ("page", "number", "queue"), [("README.md", 1, "gold"), ("publishing.md", 0, "orders")]
)
def test_the_publisher(page: str, number: int, queue: str, channel: Channel, uri: str) -> None:
    declare_queue(channel, queue)
    execute(page, snippets(page)[number], uri)
    got = channel.get(queue)
    assert got is not None
    assert got.body == b'{"order":13}'


def test_partitions_from_the_readme(channel: Channel, uri: str) -> None:
    consumer: Consumer = execute("README.md", snippets("README.md")[3], uri)["consumer"]
    consumer.handler(lambda _: None)
    consumer.start()
    assert consumer.stop()


def test_partitions(channel: Channel, uri: str) -> None:
    consumer: Consumer = execute("partitions.md", snippets("partitions.md")[0], uri)["consumer"]
    assert consumer.stop()


def test_budgets(channel: Channel, uri: str) -> None:
    for queue in ("sms.gold", "sms.free", "report"):
        fill(channel, queue, 10)
    names = execute("budgets.md", snippets("budgets.md")[0], uri)
    consumer: Consumer = names["consumer"]
    consumer.handler(lambda _: None)
    with running(consumer):
        until(lambda: sum(queue.handled for queue in consumer.stats().queues.values()) == 30)
        taken = {name: budget.taken for name, budget in consumer.stats().budgets.items()}
    assert taken == {"sms": 20, "pdf": 10}
    rendered: list[bool] = []
    execute(
        "budgets.md",
        snippets("budgets.md")[1],
        uri,
        llm=names["llm"],
        pdf=names["pdf"],
        render=lambda: rendered.append(True),
    )
    assert rendered


def test_tenants(channel: Channel, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    consumer: Consumer = execute("tenants.md", snippets("tenants.md")[0], uri)["consumer"]
    try:
        execute("tenants.md", snippets("tenants.md")[1], uri)
        until(lambda: sum(queue.handled for queue in consumer.stats().queues.values()) == 1)
    finally:
        consumer.stop()
    assert capsys.readouterr().out == """acme b'{"order":13}'\n"""


def test_streams(uri: str, broker: Broker, coordinated: None, capsys: pytest.CaptureFixture[str]) -> None:
    port = broker.port("stream")
    with connect(parse(uri, port)) as connection, amqp_connect(uri) as amqp:
        fill(amqp.channel(), "urgent", 5)
        for stream in ("orders", "audit"):
            create_stream(connection, stream)
            with StreamPublisher(parse(uri, port), stream) as publisher:
                publisher.publish([b"one", b"two"])
        example = snippets("streams.md")[2].replace("5552", str(port))
        consumer: Consumer = execute("streams.md", example, uri)["consumer"]
        until(lambda: sum(queue.handled for queue in consumer.stats().queues.values()) == 9)
        assert consumer.stop()
    assert "orders 1 b'two'" in capsys.readouterr().out


def test_a_super_stream(
    uri: str, broker: Broker, coordinated: None, capsys: pytest.CaptureFixture[str]
) -> None:
    port = broker.port("stream")
    with connect(parse(uri, port)) as connection:
        if connection.version < (3, 11):
            pytest.skip("a single active consumer needs RabbitMQ 3.11")
        create_super_stream(connection, "orders", 2, amqp=uri)
    with StreamPublisher(parse(uri, port), "orders-1") as publisher:
        publisher.publish([b"one", b"two"])
    example = snippets("streams.md")[3].replace("5552", str(port))
    consumer: Consumer = execute("streams.md", example, uri)["consumer"]
    until(lambda: consumer.stats().queues["orders-1"].handled == 2)
    assert consumer.stop()
    assert "orders-1 1 b'two'" in capsys.readouterr().out


def test_metrics(channel: Channel, uri: str) -> None:
    fill(channel, "q", 1)
    registry, consumer = CollectorRegistry(), Consumer(uri, ["q"])
    consumer.handler(lambda _: None)
    consumer.start()
    try:
        names = execute(
            "operations.md", snippets("operations.md")[0], uri, consumer=consumer, registry=registry
        )
        names["stop"]()
        assert registry.get_sample_value("leash_connected") == 1
    finally:
        consumer.stop()


def test_tracing(channel: Channel, uri: str) -> None:
    declare_queue(channel, "orders")
    seen: list[Message] = []
    consumer: Consumer = execute("operations.md", snippets("operations.md")[1], uri)["consumer"]
    consumer.handler(seen.append)
    with running(consumer):
        until(lambda: [message.body for message in seen] == [b'{"order":13}'])


# --- files ---


def test_the_pipeline_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(snippets("spark.md")[4])
    assert pipeline.load(path).format == "parquet"


def test_the_plan_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(snippets("lab.md")[1])
    plan = plans.load(path)
    assert len(list(plan.settings())) == 32 * 4 * 2
