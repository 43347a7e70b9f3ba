"""The live page with a real fleet, in a real browser; and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from typer.testing import CliRunner

from leash import Consumer, Queue
from leash.amqp import Channel, Outgoing, Properties, Publisher
from leash.amqp.topology import declare_queue
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.cli.main import app
from leash.page import snapshot
from leash.page.actions import Actions
from leash.page.fleet import Fleet
from leash.page.listen import Exchange, Own
from leash.page.server import Page
from tests.consumer.kit import depth, fill, publish, running, until
from tests.page.browser import CHROMIUM, Browser
from tests.page.kit import queue, report

real = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")


@contextmanager
def served(uri: str, actions: bool = False, consumer: Consumer | None = None) -> Iterator[tuple[Page, str]]:
    fleet = Fleet({"vhost": parse(uri).vhost, "broker": "a broker"})

    def source(heard: Any) -> Exchange | Own:
        return Exchange(uri, heard) if consumer is None else Own(consumer, heard)

    page = Page(fleet, source, Actions(uri) if actions else None)
    url = page.start("127.0.0.1", 0)
    try:
        yield page, url
    finally:
        page.stop()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.stop()


@contextmanager
def fleet_of_three(uri: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    script = str(Path(__file__).with_name("worker.py"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen([sys.executable, script, uri, f"worker-{n}"], env=environment) for n in range(3)
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(60)


def feed(channel: Channel) -> None:
    for name in ("gold", "<b>free</b>", "mail", "reports", "q"):
        declare_queue(channel, name)
    with Publisher(channel.connection) as publisher:
        for name, count in (("gold", 20_000), ("<b>free</b>", 20_000), ("mail", 500), ("q", 5)):
            publisher.publish(Outgoing(b"x", "", name) for _ in range(count))
        publisher.publish([Outgoing(b"stuck", "", "reports")])
        bad = Properties(message_id="<i>id</i>")
        publisher.publish([Outgoing(b"<script>alert(%d)</script>" % n, "", "mail", bad) for n in range(3)])


ROWS = "#queues tbody tr, #rates tbody tr, #failures tbody tr, #spark tbody tr, #processes tbody tr"


@real
def test_every_panel_is_drawn_with_a_fleet_of_three_and_a_query(
    channel: Channel, uri: str, browser: Browser, tmp_path: Path
) -> None:
    from tests.spark.harness import Query, options

    feed(channel)
    publish(channel, "reports", [b"<script>alert(9)</script>"])
    query = Query(options(uri, tmp_path / "orders-to-lake"))
    with fleet_of_three(uri) as workers, served(uri, actions=True) as (page, url):
        origin = url.partition("#")[0]
        until(lambda: page.fleet.view(0)["totals"] is not None and len(page.fleet._processes) == 3)
        assert query.plan()
        browser.open(url)
        browser.until("document.querySelectorAll('#processes tbody tr').length === 3")
        browser.until("document.querySelector('#attention').innerText.includes('stuck')")
        browser.until("document.querySelector('#attention').innerText.includes('throttled')")
        browser.until("document.querySelector('#spark').innerText.includes('orders-to-lake')")
        browser.until(
            "document.querySelector('#failures').innerText.includes('<img src=x onerror=alert(1)>')"
        )
        browser.until("document.querySelector('.changes').children.length > 0")
        for width in (390, 1024, 1600):
            for theme in ("light", "dark"):
                browser.open(url, width, 900, theme)
                browser.until("Number(document.documentElement.dataset.drawn) > 1")
                assert browser.run("document.documentElement.scrollWidth") == width
                assert browser.run("document.querySelectorAll('canvas').length") == 2
                ground = browser.run("getComputedStyle(document.body).backgroundColor")
                assert (ground == "rgb(246, 247, 249)") is (theme == "light")
                for panel in (
                    "totals",
                    "shares",
                    "queues",
                    "rates",
                    "failures",
                    "spark",
                    "processes",
                    "windows",
                ):
                    assert len(browser.run(f"document.querySelector('#{panel}').innerText")) > 20, panel
                browser.shot(tmp_path / f"{width}-{theme}.png")
        assert "<b>free</b>" in browser.run("document.querySelector('#shares').innerText")
        assert (
            browser.run("document.querySelectorAll('main b:not(#totals b):not(.changes b), main img').length")
            == 0
        )
        workers[0].kill()
        browser.until("document.querySelector('#processes').innerText.includes('gone')")
        browser.until("document.querySelector('#attention').innerText.includes('worker-0')")
    assert browser.console == []
    assert {f"{urlsplit(each).scheme}://{urlsplit(each).netloc}/" for each in browser.requests} == {origin}
    query.reader.stop()


@real
def test_a_viewer_pauses_a_queue_and_retries_chosen_messages(
    channel: Channel, uri: str, browser: Browser
) -> None:
    fill(channel, "q", 0)
    fill(channel, "leash.dead.q", 0)
    fails = threading.Event()
    fails.set()
    done: list[bytes] = []
    from leash import Message, Retry

    consumer = Consumer(uri, ["q"], retry=Retry(1))

    @consumer.handler
    def work(message: Message) -> None:
        if fails.is_set():
            raise ValueError("no <u>address</u>")
        done.append(message.body)

    with running(consumer), served(uri, actions=True) as (_, url):
        publish(channel, "q", [b"<script>1</script>", b"two", b"three"])
        until(lambda: depth(channel, "leash.dead.q") == 3)
        fails.clear()
        browser.open(url)
        browser.until("document.querySelector('#failures button[type=button]:not([data-do])')")
        browser.run("document.querySelector('#failures td button').click()")
        browser.until("document.querySelectorAll('#parked tbody tr').length === 3")
        assert "<script>1</script>" in browser.run("document.querySelector('#parked').innerText")
        browser.run("document.querySelectorAll('#parked input')[0].click()")
        browser.run("document.querySelector('[data-do=retry]').click()")
        until(lambda: done == [b"<script>1</script>"])
        until(lambda: depth(channel, "leash.dead.q") == 2)
        browser.until("document.querySelectorAll('#parked tbody tr').length === 2")
        browser.run("window.confirm = () => true; document.querySelectorAll('#parked input')[0].click()")
        browser.run("document.querySelector('[data-do=purge]').click()")
        until(lambda: depth(channel, "leash.dead.q") == 1)
        assert done == [b"<script>1</script>"]
        press = "[...document.querySelectorAll('#queues button')].find((b) => b.innerText === '{}').click()"
        browser.run(press.format("pause"))
        until(lambda: consumer.stats().queues["q"].why == "paused")
        browser.until("document.querySelector('#queues').innerText.includes('resume')")
        browser.run(press.format("resume"))
        until(lambda: consumer.stats().queues["q"].why == "")
        browser.run(press.format("quantum"))
        browser.run("document.querySelector('#change input').value = '7'")
        browser.run("document.querySelector('#change button[value=ok]').click()")
        until(lambda: consumer.stats().queues["q"].quantum == 7)
        browser.run(press.format("rate"))
        browser.run("document.querySelector('#change input').value = '12.5'")
        browser.run("document.querySelector('#change button[value=ok]').click()")
        until(lambda: consumer.stats().queues["q"].rate == 12.5)
    assert browser.console == []


@real
def test_a_snapshot_is_one_file_that_draws_itself_and_fetches_nothing(
    channel: Channel, uri: str, browser: Browser, tmp_path: Path
) -> None:
    fill(channel, "q</script><b>", 50)
    consumer = Consumer(uri, [Queue("q</script><b>", rate=1)])
    consumer.handler(lambda _: None)
    path = tmp_path / "page.html"
    with running(consumer):
        until(lambda: consumer.stats().seconds > 2)
        said = CliRunner().invoke(
            app, ["page", "--once", "--html", str(path)], env={"LEASH_URI": uri}, catch_exceptions=False
        )
    assert said.exit_code == 0
    assert f"Snapshot: {path}" in said.output
    assert parse(uri).password not in path.read_text()
    browser.open(path.as_uri())
    browser.until("Number(document.documentElement.dataset.drawn) > 0")
    assert "q</script><b>" in browser.run("document.querySelector('#queues').innerText")
    assert "as it was at" in browser.text()
    assert browser.console == []
    assert browser.requests == [path.as_uri()]


@real
def test_a_thousand_queues_are_drawn_and_can_be_filtered(browser: Browser, tmp_path: Path) -> None:
    fleet = Fleet({"vhost": "/"})
    for seconds in (0.0, 1.0):
        queues = {f"tenant-{n:04d}": queue(handled=int(seconds * n), depth=n) for n in range(1000)}
        fleet.heard(10 + seconds, report(seconds=seconds, queues=queues))
    path = tmp_path / "many.html"
    snapshot.write(path, fleet.tick(11.0) | {"history": fleet.history})
    browser.open(path.as_uri(), 1600)
    browser.until("document.querySelectorAll('#queues tbody tr').length === 100")
    browser.run("document.querySelector('#all').click()")
    browser.until("document.querySelectorAll('#queues tbody tr').length === 1000")
    assert "Show 100" in browser.text()
    browser.run("const f = document.querySelector('#filter'); f.value = '0042'; f.oninput({target: f})")
    browser.until("document.querySelectorAll('#queues tbody tr').length === 1")
    assert browser.console == []


# --- without a browser ---


def ask(url: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    try:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


GOOD = {"Content-Type": "application/json"}


def test_an_action_needs_the_token_the_origin_the_host_and_to_be_allowed(channel: Channel, uri: str) -> None:
    fill(channel, "leash.dead.q", 3)
    look = {"queue": "q"}
    with served(uri, actions=True) as (page, url):
        assert page.token is not None
        port = urlsplit(url).port
        token = {"Authorization": f"Bearer {page.token}"}
        assert f"#token={page.token}" in url
        assert ask(url, "/api/parked", look, **GOOD, **token)[0] == 200
        assert ask(url, "/api/parked", look, **GOOD, **token, Origin=f"http://127.0.0.1:{port}")[0] == 200
        refused: list[dict[str, str]] = [
            {**GOOD},
            {**GOOD, "Authorization": "Bearer nonsense"},
            {**GOOD, "Authorization": f"Basic {page.token}"},
            {**GOOD, "Authorization": "Bearer \xe4"},
            {**GOOD, **token, "Origin": "https://evil.example"},
            {**GOOD, **token, "Origin": "null"},
            {**GOOD, **token, "Sec-Fetch-Site": "cross-site"},
            {**GOOD, **token, "Host": "evil.example"},
            {**GOOD, **token, "Host": f"evil.example:{port}"},
            {**token, "Content-Type": "text/plain"},
        ]
        for headers in refused:
            for path in ("/api/parked", "/api/purge", "/api/retry", "/api/change"):
                status, _, said = ask(url, path, {"queue": "q", "keys": ["x"], "action": "pause"}, **headers)
                assert status == 403, headers
                assert page.token not in said.decode()
        wrong: list[Any] = [{}, {"queue": 3}, {"queue": "q"}, {"queue": "q", "keys": []}, []]
        for body in wrong:
            assert ask(url, "/api/purge", body, **GOOD, **token)[0] == 400
        for change in (
            {"action": "drop"},
            {"action": "quantum", "value": 0},
            {"action": "rate", "value": "x"},
        ):
            assert ask(url, "/api/change", {"queue": "q", **change}, **GOOD, **token)[0] == 400
    assert depth(channel, "leash.dead.q") == 3
    with served(uri) as (page, url):
        assert "#" not in url
        assert page.token is None
        status, _, said = ask(url, "/api/parked", look, **GOOD, Authorization="Bearer None")
        assert status == 403
        assert b"--allow-actions" in said


def test_it_listens_on_loopback_serves_only_its_files_and_forbids_everything_foreign(uri: str) -> None:
    with served(uri) as (page, url):
        assert page._server is not None
        assert page._server.server_address[0] == "127.0.0.1"
        for path in ("/", "/app.js", "/draw.js", "/style.css", "/uPlot.js", "/uPlot.LICENSE.txt"):
            status, headers, body = ask(url, path)
            assert status == 200
            assert headers["Content-Security-Policy"].startswith("default-src 'self'")
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert body
        for path in ("/../server.py", "/static/../server.py", "/%2e%2e/server.py", "/index.html/x"):
            assert ask(url, path)[0] == 404
        for host in ("evil.example", "127.0.0.1", "localhost:1", ""):
            assert ask(url, "/view.json", Host=host)[0] == 403
        status, headers, body = ask(url, "/certificate.json")
        assert 'attachment; filename="leash-certificate-' in headers["Content-Disposition"]
        assert json.loads(body)["version"] == 1


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
