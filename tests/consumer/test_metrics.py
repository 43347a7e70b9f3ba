"""Metrics and the table, read off a consumer in virtual time."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from leash import Consumer, Message, Queue, Retry
from leash.cli import consume_table as view
from leash.consumer.metrics import ConsumerCollector, serve_metrics
from leash.errors import ConfigError
from leash.testing import Rehearsal


def a_consumer() -> Consumer:
    queues = [Queue("gold", 3), Queue("free", 1, rate=100, burst=10)]
    consumer = Consumer("amqp://nowhere.invalid", queues, retry=Retry(2, delay=1))

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("bad")

    return consumer


def test_every_number_that_an_operator_asks_for_is_there() -> None:
    consumer = a_consumer()
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("leash_connected") == 0
    with Rehearsal(consumer, takes=0.01) as stage:
        stage.publish("gold", [b"x"] * 300 + [b"bad"])
        stage.publish("free", [b"x"] * 100)
        stage.run()
        assert value("leash_connected") == 1
        assert value("leash_handled_total", queue="gold") == 302
        assert value("leash_quantum", queue="gold") == 3
        assert value("leash_share", queue="gold") == pytest.approx(302 / 402)
        assert value("leash_target_share", queue="gold") == 0.75
        assert value("leash_handler_seconds_total", queue="gold") == pytest.approx(3.02, rel=0.01)
        waited = value("leash_buffer_wait_seconds_total", queue="gold")
        assert waited is not None
        assert waited > 0
        assert value("leash_failed_total", queue="gold") == 2
        assert value("leash_retried_total", queue="gold") == 1
        assert value("leash_parked_total", queue="gold") == 1
        assert value("leash_settled_total", queue="gold", outcome="republished") == 2
        assert value("leash_unsettled", queue="gold") == 0
        assert value("leash_tokens", queue="free") == pytest.approx(10, abs=0.1)
        assert value("leash_tokens", queue="gold") is None
        spread, bound = value("leash_spread_rounds"), value("leash_spread_bound_rounds")
        assert spread is not None
        assert bound is not None
        assert spread <= bound
        for kind in ("signal", "return", "drop"):
            assert value("leash_sheds_total", queue="gold", kind=kind) is not None
        assert value("leash_window", queue="gold") == consumer.stats().queues["gold"].window


def test_why_the_window_changed_is_one_series_however_often_it_changes() -> None:
    consumer = a_consumer()
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))
    with Rehearsal(consumer, takes=0.01) as stage:
        stage.publish("gold", [b"x"] * 300)
        stage.advance(1)
        lines = [line for line in generate_latest(registry).decode().splitlines() if "window_reason{" in line]
    gold = next(line for line in lines if 'queue="gold"' in line)
    assert "credits never used" in gold
    reason = gold.split('reason="')[1].split('"')[0]
    assert not any(char.isdigit() for char in reason)


def test_they_are_served_over_http_and_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port={taken.getsockname()[1]}: one that is free"):
            serve_metrics(a_consumer(), taken.getsockname()[1])
        port = taken.getsockname()[1]
    stop = serve_metrics(a_consumer(), port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b"leash_connected 0.0" in answer.read()
    finally:
        stop()


def test_the_table_has_a_row_for_each_queue_and_rates_since_the_last_look() -> None:
    consumer = a_consumer()
    with Rehearsal(consumer, takes=0.005) as stage:
        stage.publish("gold", [b"x"] * 3000)
        stage.publish("free", [b"x"] * 3000)
        stage.advance(2)
        before = consumer.stats()
        stage.advance(2)
        now = consumer.stats()
    gold, free = view.rows(before, now)
    assert gold.rate + free.rate == pytest.approx(200, rel=0.05)
    assert gold.share == pytest.approx(0.75, abs=0.01)
    assert gold.target == 0.75
    assert gold.depth is not None
    assert gold.wait is not None
    assert gold.wait < 0.1
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view.table(before, now))
    text = console.export_text()
    console.file.close()
    for word in ("queue", "depth", "rate", "share", "target", "window", "wait", "gold", "75.0%", "spread"):
        assert word in text
    lines = view.lines(before, now)
    assert len(lines) == 3
    assert lines[0].startswith("queue='gold' depth=")


def test_a_queue_name_is_not_markup() -> None:
    consumer = Consumer("amqp://nowhere.invalid", ["[red]x[/nope]"])
    consumer.handler(lambda _: None)
    with Rehearsal(consumer):
        stats = consumer.stats()
    with open("/dev/null", "w") as nowhere:
        console = Console(width=120, record=True, file=nowhere)
        console.print(view.table(None, stats))
        assert "[red]x[/nope]" in console.export_text()
