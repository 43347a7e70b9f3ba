"""Reports of real consumers: with and without permission, with and without the exchange."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest

from leash import Consumer
from leash.amqp import Channel, Outgoing, Publisher
from leash.amqp.uri import parse
from leash.broker import Broker
from tests.consumer.kit import fill, publish, running, until
from tests.page.kit import served


@pytest.fixture
def poor(broker: Broker, uri: str) -> Iterator[str]:
    """The URI of a user who may use queues, and no exchange of ours."""
    name, vhost = f"poor-{secrets.token_hex(3)}", parse(uri).vhost
    broker.management.ask("PUT", f"/api/users/{name}", {"password": "pw", "tags": ""})
    may = {
        "configure": "^(q|leash\\.(dead|retry|limbo)\\..*)$",
        "write": "^amq\\.default$",
        "read": "^(q|leash\\..*)$",
    }
    broker.management.ask("PUT", f"/api/permissions/{quote(vhost, safe='')}/{name}", may)
    yield replace(parse(uri), username=name, password="pw").reveal()
    broker.management.ask("DELETE", f"/api/users/{name}")


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
                for body in (b"", b"\xff", b"[]", b'{"v":1}', b'{"v":1,"kind":"consumer"}', b'{"v":9}'):
                    publisher.publish([Outgoing(body, exchange)])
            for nonsense in ({"queue": "nope"}, {"queue": "q", "action": "quantum", "value": "x"}):
                body = json.dumps({"v": 1, "action": "pause", **nonsense}).encode()
                publisher.publish([Outgoing(body, "leash.control")])
        until(lambda: first.fleet.strangers >= 5)
        assert consumer.stats().queues["q"].why == ""
        assert consumer.stats().queues["q"].quantum == 1
        until(lambda: first.view()["processes"][0]["state"] == "here")
