"""Probes: alive, ready, and why not; a broker that is killed and comes back."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from leash import Consumer, Message
from leash.amqp import Channel, connect
from leash.amqp.topology import declare_queue, delete_queue
from leash.broker import Broker
from leash.consumer.health import address, serve_health, unready
from leash.errors import ConfigError
from tests.consumer.kit import fill, publish, running, until
from tests.page import kit as page


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def ready(port: int) -> dict[str, Any]:
    status, kind, body = ask(port, "/readyz")
    assert kind == "application/json"
    told: dict[str, Any] = json.loads(body)
    assert (status == 200) is told["ready"]
    assert ("reason" in told) is not told["ready"]
    return told


@contextmanager
def served(consumer: Consumer) -> Iterator[int]:
    port = free_port()
    stop = serve_health(consumer, port)
    try:
        yield port
    finally:
        stop()


def test_before_the_start_it_lives_and_is_not_ready() -> None:
    consumer = Consumer("amqp://nowhere.invalid", ["q"])
    with served(consumer) as port:
        assert ask(port, "/healthz")[0] == 200
        assert ready(port) == {"ready": False, "reason": "not started"}
        status, kind, body = ask(port, "/metrics")
        assert status == 200
        assert kind.startswith("text/plain")
        assert b"leash_connected 0.0" in body
        assert ask(port, "/metrics", "HEAD")[::2] == (200, b"")


@pytest.mark.parametrize("path", ["/", "/nope", "/metrics/x", "/healthz/..", "/readyz%00"])
def test_anything_else_is_not_found(path: str) -> None:
    with served(Consumer("amqp://nowhere.invalid", ["q"])) as port:
        assert ask(port, path)[0] == 404
        assert ask(port, path, "POST")[0] == 501


def test_it_listens_on_loopback_unless_told(channel: Channel, uri: str) -> None:
    assert address("health", 8080) == ("127.0.0.1", 8080)
    assert address("health", "8080") == ("127.0.0.1", 8080)
    assert address("health", "0.0.0.0:8080") == ("0.0.0.0", 8080)  # noqa: S104
    assert address("health", "[::1]:8080") == ("::1", 8080)
    for wrong in (":8080", "x", "0.0.0.0:", "0.0.0.0:70000", -1, True, "0.0.0.0:8_0"):  # type: Any
        with pytest.raises(ConfigError, match="health="):
            Consumer("amqp://localhost", ["q"], health=wrong)


def test_a_consumer_serves_its_own_health_from_start_to_end(channel: Channel, uri: str) -> None:
    fill(channel, "q", 1)
    port = free_port()
    go, begun = threading.Event(), threading.Event()
    consumer = Consumer(uri, ["q"], health=port)

    @consumer.handler
    def work(message: Message) -> None:
        begun.set()
        go.wait(60)

    with running(consumer):
        assert ready(port) == {"ready": True}
        assert begun.wait(60)
        leaving = threading.Thread(target=consumer.stop)
        leaving.start()
        until(lambda: ready(port).get("reason") == "stopping")
        go.set()
        leaving.join(60)
    with pytest.raises(urllib.error.URLError):
        ask(port, "/healthz")


def test_a_missing_queue_is_named_and_a_paused_one_is_not(channel: Channel, uri: str) -> None:
    fill(channel, "here", 0)
    fill(channel, "gone", 0)
    consumer = Consumer(uri, ["here", "gone"])
    consumer.handler(lambda _: None)
    with running(consumer), served(consumer) as port:
        assert ready(port) == {"ready": True}
        consumer.pause("here")
        assert ready(port) == {"ready": True}
        delete_queue(channel, "gone")
        until(lambda: ready(port).get("reason") == "not consuming 'gone'")
        declare_queue(channel, "gone")
        until(lambda: ready(port)["ready"])
    assert unready(None) == "not started"


def test_a_broker_that_is_killed_makes_it_unready_and_its_return_ready(
    broker: Broker, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It never waits for more than 3 s, so it is ready within 5 s of the broker's return."""
    with connect(uri) as link:
        declare_queue(link.channel(), "q")
    consumer = Consumer(uri, ["q"])
    seen: list[bytes] = []
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer), served(consumer) as port, page.served(uri) as (live, _):
        assert ready(port)["ready"]
        until(lambda: [each["state"] for each in live.view()["processes"]] == ["here"])
        broker.kill()
        until(lambda: not ready(port)["ready"])
        assert ready(port)["reason"] == "not connected to the broker"
        assert ask(port, "/healthz")[0] == 200
        until(lambda: live.fleet.trouble)
        assert live.view()["attention"][0]["kind"] == "page"
        until(lambda: len(waits(caplog)) >= 8)  # without a limit they would have grown far above it
        broker.start()
        until(lambda: ready(port)["ready"])
        assert max(waits(caplog)) <= 3.0
        with connect(uri) as link:
            publish(link.channel(), "q", [b"again"])
        until(lambda: seen == [b"again"])
        until(lambda: live.view()["trouble"] is None)
        until(lambda: [each["state"] for each in live.view()["processes"]] == ["here"])


def waits(caplog: pytest.LogCaptureFixture) -> list[float]:
    """The seconds before each new try to connect."""
    return [float(found) for found in re.findall(r"event=connect_failed .*wait=([\d.]+)", caplog.text)]
