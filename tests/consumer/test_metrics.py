"""Metrics and the table, read off a consumer in virtual time."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from leash import Consumer, Message, Queue, Retry
from leash.cli import consume_table as view
from leash.cli.looks import Looks
from leash.consumer.health import serve_health
from leash.consumer.metrics import ConsumerCollector
from leash.errors import ConfigError
from leash.testing import Rehearsal


def a_consumer(tries: int = 2) -> Consumer:
    queues = [Queue("gold", 3), Queue("free", 1, rate=100, burst=10)]
    consumer = Consumer("amqp://nowhere.invalid", queues, retry=Retry(tries, delay=1))

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
        with pytest.raises(ConfigError, match=f"health={taken.getsockname()[1]}: .* free"):
            serve_health(a_consumer(), taken.getsockname()[1])
        port = taken.getsockname()[1]
    stop = serve_health(a_consumer(), port)
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
    gold, free = view.rows(Looks(before, now))
    assert gold.rate + free.rate == pytest.approx(200, rel=0.05)
    assert gold.share == pytest.approx(0.75, abs=0.01)
    assert gold.target == 0.75
    assert gold.depth is not None
    assert gold.wait is not None
    assert gold.wait < 0.1
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view.table(Looks(before, now), 120))
    text = console.export_text()
    console.file.close()
    for word in ("queue", "depth", "rate", "share", "target", "window", "wait", "gold", "75.0%", "spread"):
        assert word in text
    line = view.line(Looks(before, now))
    assert line.startswith("event=summary seconds=4 connected=true queues=2 depth=")
    assert " troubled=0" in line


def test_a_queue_name_is_not_markup() -> None:
    consumer = Consumer("amqp://nowhere.invalid", ["[red]x[/nope]"])
    consumer.handler(lambda _: None)
    with Rehearsal(consumer):
        stats = consumer.stats()
    with open("/dev/null", "w") as nowhere:
        console = Console(width=120, record=True, file=nowhere)
        console.print(view.table(Looks(stats)))
        assert "[red]x[/nope]" in console.export_text()


def test_forty_queues_fit_a_small_terminal_with_the_troubled_first_and_totals_last() -> None:
    names = [f"tenant-{n:02d}.region-europe-west.orders.priority" for n in range(40)]
    queues = [Queue(name, rate=5 if name == names[33] else None) for name in names]
    consumer = Consumer("amqp://nowhere.invalid", queues, retry=Retry(1))

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("bad")

    with Rehearsal(consumer, takes=0.001) as stage:
        stage.advance(1)
        before = consumer.stats()
        stage.publish(names[7], [b"x"] * 300)
        stage.publish(names[20], [b"bad"])
        stage.publish(names[33], [b"x"] * 50)
        stage.advance(1)
        now = consumer.stats()
    with open("/dev/null", "w") as nowhere:
        console = Console(width=80, height=24, record=True, file=nowhere)
        console.print(view.table(Looks(before, now), 80, 24))
        lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    body = [line for line in lines if "priority" in line]
    assert [line[:9] for line in body[:3]] == ["tenant-20", "tenant-33", "tenant-07"]
    assert "1 parked" in body[0]
    assert "at its rate" in body[1]
    assert "tenant-20…s.priority" in body[0]
    assert any(line.startswith("... 24 more") for line in lines)
    (total,) = [line for line in lines if line.startswith("all 40")]
    assert "100%" in total
    assert "2 troubled" in total
    assert "troubled=2" in view.line(Looks(before, now))
    assert f'worst="{names[20]}: 1 parked, {names[33]}: at its rate"' in view.line(Looks(before, now))


def test_parked_is_trouble_for_ten_seconds_and_a_count_for_ever() -> None:
    consumer = a_consumer(tries=1)
    looks = Looks()
    with Rehearsal(consumer) as stage:
        stage.publish("gold", [b"bad"])
        stage.publish("free", [b"x"])
        for second in range(1, 30):
            stage.advance(1)
            looks.add(consumer.stats())
            notes = {row.queue: row.note for row in view.rows(looks)}
            assert notes == {"gold": "1 parked" if second <= 10 else "", "free": ""}
            assert ("troubled=1" in view.line(looks)) == (second <= 10)
            assert view.summary(looks.now).endswith(", 1 parked since start")
            assert " parked=1 " in view.line(looks)


def test_looks_that_are_far_apart_tell_all_that_happened_between_them() -> None:
    consumer = a_consumer(tries=1)
    looks = Looks()
    with Rehearsal(consumer) as stage:
        for bodies in ([], [b"bad"], []):
            stage.publish("gold", bodies)
            stage.advance(60)
            looks.add(consumer.stats())
            assert looks.lately("gold") == (len(bodies), len(bodies))


def test_a_consumer_that_stops_is_no_trouble() -> None:
    consumer = a_consumer()
    with Rehearsal(consumer) as stage:
        stage.advance(1)
        running = consumer.stats()
    queues = {name: replace(each, connected=False) for name, each in running.queues.items()}
    lost = replace(running, connected=False, queues=queues)
    leaving = replace(lost, stopping=True)
    assert {row.note for row in view.rows(Looks(lost))} == {"not consumed"}
    assert {row.note for row in view.rows(Looks(leaving))} == {""}
    assert "NOT CONNECTED" in view.summary(lost)
    assert view.summary(leaving).startswith("1 s, stopping, ")
    assert view.summary(leaving, "stopped: 2 messages left").startswith(
        "1 s, stopped: 2 messages left, spread"
    )


def test_a_long_name_loses_its_middle() -> None:
    assert view.cut("abcdefghij", 10) == "abcdefghij"
    assert view.cut("abcdefghijk", 7) == "abc…ijk"
    assert view.cut("abcdefghijk", 8) == "abc…hijk"
    assert view.cut("日本語のとても長い名前", 9) == "日本…名前"  # each takes two columns
    assert view.cut("a\x1b[31m\nb", 20) == "a\\x1b[31m\\nb"  # a terminal would obey


def test_long_names_are_cut_where_they_can_still_be_told_apart() -> None:
    names = [f"tenant-{n:03d}.region-europe-west" for n in range(3)]
    assert view.cuts(names, 16)[:2] == ["tenant-000…-west", "tenant-001…-west"]
    assert view.cuts(["short", "abcdefghijk"], 7) == ["short", "abc…ijk"]


def test_histograms_tell_how_long_messages_waited_and_took() -> None:
    consumer = Consumer("amqp://nowhere.invalid", ["q"])
    consumer.handler(lambda _: None)
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"queue": "q", **labels})

    def takes(message: Message) -> float:
        return 0.2 if message.body == b"slow" else 0.002

    with Rehearsal(consumer, takes=takes) as stage:
        stage.publish("q", [b"x"] * 99 + [b"slow"])
        stage.run()
        assert value("leash_handler_duration_seconds_count") == 100
        assert value("leash_handler_duration_seconds_bucket", le="0.001") == 0
        assert value("leash_handler_duration_seconds_bucket", le="0.005") == 99
        assert value("leash_handler_duration_seconds_bucket", le="0.1") == 99
        assert value("leash_handler_duration_seconds_bucket", le="0.25") == 100
        assert value("leash_handler_duration_seconds_sum") == pytest.approx(0.398, rel=0.01)
        assert value("leash_wait_duration_seconds_count") == 100
        stats = consumer.stats().queues["q"]
        assert sum(stats.waited.counts) == 100
        assert stats.waited.seconds == pytest.approx(stats.wait_seconds, rel=0.05)


def test_a_batch_in_one_bucket_is_counted_at_once_and_any_other_message_by_message() -> None:
    from leash.consumer.durations import BOUNDS, Durations, Histogram

    def one_by_one(begin: int, spans: list[tuple[int, int]]) -> tuple[Histogram, Histogram]:
        waited, handled = Histogram(), Histogram()
        for arrived, ended in spans:
            waited.add(begin - arrived)
            handled.add(ended - begin)
            begin = ended
        return waited, handled

    ms = BOUNDS[0]
    for begin, spans in (
        (ms, [(0, ms + 10), (0, ms + 20)]),
        (ms, [(0, ms + 10), (ms - 5, ms + 20)]),
        (10 * ms, [(0, 11 * ms), (8 * ms, 300 * ms), (9 * ms, 301 * ms)]),
        (7 * ms, [(0, 7 * ms + 5), (4 * ms, 7 * ms + 9)]),
    ):
        made = Durations()
        made.batch(begin, spans)
        waited, handled = one_by_one(begin, spans)
        assert made.handled.counts == handled.counts
        assert made.handled.total == handled.total
        assert made.waited.counts == waited.counts
        assert made.waited.total == waited.total
