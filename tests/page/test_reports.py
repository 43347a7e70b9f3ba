"""Reports of real consumers: with and without permission, with and without the exchange."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from leash import Budget, Consumer, Queue
from leash.amqp import Channel, Outgoing, Publisher
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.cli.main import app
from leash.consumer import reporting
from leash.errors import LeashError
from leash.page.listen import Exchange
from tests.consumer.kit import fill, publish, running, until
from tests.page.kit import served


@contextmanager
def user(broker: Broker, uri: str, configure: str, write: str, read: str) -> Iterator[str]:
    """The URI of a user with these permissions."""
    name, vhost = f"poor-{secrets.token_hex(3)}", parse(uri).vhost
    broker.management.ask("PUT", f"/api/users/{name}", {"password": "pw", "tags": ""})
    may = {"configure": configure, "write": write, "read": read}
    broker.management.ask("PUT", f"/api/permissions/{quote(vhost, safe='')}/{name}", may)
    yield replace(parse(uri), username=name, password="pw").reveal()
    broker.management.ask("DELETE", f"/api/users/{name}")


@pytest.fixture
def poor(broker: Broker, uri: str) -> Iterator[str]:
    """The URI of a user who may use queues, and no exchange of ours."""
    configure, read = "^(q|leash\\.(dead|retry|limbo)\\..*)$", "^(q|leash\\..*)$"
    with user(broker, uri, configure, "^amq\\.default$", read) as made:
        yield made


def test_without_permission_the_page_says_so_and_consumers_go_on(
    channel: Channel, poor: str, uri: str
) -> None:
    fill(channel, "q", 100)
    done: list[bytes] = []
    consumer = Consumer(poor, ["q"])
    consumer.handler(lambda message: done.append(message.body))
    with running(consumer), served(poor) as (page, _):
        until(lambda: len(done) == 100)
        until(lambda: "ACCESS_REFUSED" in (page.fleet.trouble or ""))
        publish(channel, "q", [b"more"])
        until(lambda: done[-1] == b"more")
        assert consumer.stats().connected


def test_a_snapshot_that_heard_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leash.cli.page._PATIENCE", 0.3)
    path = tmp_path / "page.html"
    said = CliRunner().invoke(
        app, ["page", "--once", "--html", str(path)], env={"LEASH_URI": "amqp://u:secret@127.0.0.1:1"}
    )
    assert isinstance(said.exception, LeashError)
    assert "nothing could be heard: 127.0.0.1:1" in str(said.exception)
    assert "The page hears nothing: 127.0.0.1:1" in path.read_text()
    assert "secret" not in path.read_text() + said.output + str(said.exception)


MAY_NOT = r"^(?!leash\.stats$).*$"


@pytest.mark.parametrize(
    ("configure", "write", "read", "speaks", "hears"),
    [
        (MAY_NOT, ".*", ".*", True, True),  # the exchange is there: it needs not be declared
        (".*", MAY_NOT, ".*", False, True),
        (".*", ".*", MAY_NOT, True, False),
        (r"^(?!amq\.gen).*$", ".*", ".*", True, False),  # nor may it have a queue to listen with
    ],
)
def test_each_permission_that_is_missing_costs_only_what_needs_it(
    channel: Channel,
    uri: str,
    broker: Broker,
    configure: str,
    write: str,
    read: str,
    speaks: bool,
    hears: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "leash.consumer")
    for name in ("q", "rich"):
        fill(channel, name, 0)
    rich = Consumer(uri, ["rich"], name="rich")
    rich.handler(lambda _: None)
    done: list[bytes] = []
    with running(rich), served(uri) as (theirs, _), user(broker, uri, configure, write, read) as few:
        until(lambda: [each["name"] for each in theirs.view()["processes"]] == ["rich"])
        consumer = Consumer(few, ["q"], name="poor")
        consumer.handler(lambda message: done.append(message.body))
        with running(consumer), served(few) as (ours, _):
            if speaks:
                until(lambda: {each["name"] for each in theirs.view()["processes"]} == {"rich", "poor"})
            else:
                until(lambda: "event=not_reported" in caplog.text)
            if hears:
                until(lambda: "rich" in {each["name"] for each in ours.view()["processes"]})
                assert ours.fleet.trouble is None
            else:
                until(lambda: "ACCESS_REFUSED" in (ours.fleet.trouble or ""))
            publish(channel, "q", [b"on"])
            until(lambda: done == [b"on"])
            if not speaks:
                assert [each["name"] for each in theirs.view()["processes"]] == ["rich"]


def test_code_that_has_a_budget_open_is_one_of_its_users(uri: str) -> None:
    sms = Budget("sms-gateway", rate=5, burst=5)
    left = threading.Event()
    with served(uri) as (page, _):
        with sms.open(uri, "nightly job") as till, sms.open(uri, "unseen", report=False):
            taking = threading.Thread(target=lambda: [till.take() for _ in iter(left.is_set, True)])
            taking.start()
            until(lambda: [each["used_up"] for each in page.view()["budgets"]] == [True])
            (found,) = page.view()["budgets"]
            assert (found["name"], found["rate"], found["users"]) == ("sms-gateway", 5.0, ["nightly job"])
            assert 0 < found["used"] < 20
            left.set()
            taking.join(60)
        until(lambda: page.view()["budgets"] == [])


def test_one_process_shows_itself_without_the_exchange(channel: Channel, poor: str) -> None:
    fill(channel, "q", 10)
    consumer = Consumer(poor, ["q"], report=False)
    consumer.handler(lambda _: None)
    with running(consumer), served(poor, consumer=consumer) as (page, _):
        until(lambda: page.view()["totals"]["processes"] == 1)
        assert [each["name"] for each in page.view()["queues"]] == ["q"]
        assert page.source is not None
        page.source.ask({"action": "pause", "queue": "q", "from": "a test"})
        until(lambda: consumer.stats().queues["q"].why == "paused")


def test_a_consumer_says_good_bye_and_one_that_does_not_report_is_not_seen(
    channel: Channel, uri: str
) -> None:
    fill(channel, "q", 0)
    fill(channel, "other", 0)
    seen, unseen = Consumer(uri, ["q"], name="seen"), Consumer(uri, ["other"], name="unseen", report=False)
    for each in (seen, unseen):
        each.handler(lambda _: None)
    with served(uri) as (page, _):
        with running(unseen), running(seen):
            until(lambda: [each["state"] for each in page.view()["processes"]] == ["here"])
        until(lambda: [each["state"] for each in page.view()["processes"]] == ["left"])
        assert [each["name"] for each in page.view()["processes"]] == ["seen"]


def test_a_second_page_hears_the_same_and_nonsense_harms_nobody(channel: Channel, uri: str) -> None:
    fill(channel, "q", 0)
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda _: None)
    with running(consumer), served(uri) as (first, _), served(uri) as (second, _):
        until(lambda: first.view()["processes"] and second.view()["processes"])
        with Publisher(channel.connection) as publisher:
            for exchange in ("leash.stats", "leash.control"):
                for body in (
                    b"[" * 100_000,
                    b"",
                    b"\xff",
                    b"[]",
                    b'{"v":1}',
                    b'{"v":1,"kind":"consumer"}',
                    b'{"v":9}',
                ):
                    publisher.publish([Outgoing(body, exchange)])
            for nonsense in ({"queue": "nope"}, {"queue": "q", "action": "quantum", "value": "x"}):
                body = json.dumps({"v": 1, "action": "pause", **nonsense}).encode()
                publisher.publish([Outgoing(body, "leash.control")])
        until(lambda: first.fleet.strangers >= 6)
        assert consumer.stats().queues["q"].why == ""
        assert consumer.stats().queues["q"].quantum == 1
        until(lambda: first.view()["processes"][0]["state"] == "here")


def test_budgets_are_reported_with_their_numbers_and_a_queue_that_waits_for_one_says_so(
    channel: Channel, uri: str
) -> None:
    fill(channel, "sms", 500)
    fill(channel, "pdf", 2)
    go = threading.Event()
    sms, pdf = Budget("sms-gateway", rate=4, burst=2), Budget("pdf-renderer", at_once=1)
    consumer = Consumer(uri, [Queue("sms", budget=sms), Queue("pdf", budget=pdf)], workers=3)
    consumer.handler("sms")(lambda _: None)
    consumer.handler("pdf")(lambda _: go.wait(300))
    with running(consumer), served(uri) as (page, _):
        try:
            until(lambda: [each["used_up"] for each in page.view()["budgets"]] == [True, True])
            found = {each["name"]: each for each in page.view()["budgets"]}
            assert (found["sms-gateway"]["rate"], found["sms-gateway"]["burst"]) == (4.0, 2)
            assert (found["pdf-renderer"]["at_once"], found["pdf-renderer"]["at_work"]) == (1, 1)
            assert found["pdf-renderer"]["queues"] == ["pdf"]
            until(lambda: consumer.stats().queues["sms"].why == "no permit")
            assert consumer.stats().queues["sms"].budgets == ("sms-gateway",)
            until(lambda: {"at its limit"} <= {each["kind"] for each in page.view()["attention"]})
        finally:
            go.set()


def test_a_large_report_comes_less_often_with_signs_of_life_in_between(
    channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "COST", 1e-9)  # as if it had ten thousand queues
    fill(channel, "q", 0)
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda _: None)
    heard: list[str] = []
    source = Exchange(uri, lambda _, told: heard.append(told["kind"]))
    try:
        until(lambda: source.trouble is None)
        with running(consumer):
            until(lambda: heard.count("consumer") == 2)
            assert heard.count("alive") >= 2
            consumer.pause("q")
            until(lambda: heard[-1] == "alive")
    finally:
        source.close()
