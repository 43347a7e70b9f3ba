"""The live page with a real fleet, in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, Outgoing, Properties, Publisher
from leash.amqp.topology import declare_queue
from leash.amqp.uri import parse
from leash.cli.main import app
from leash.page import snapshot
from leash.page.fleet import Fleet
from leash.page.server import Page
from tests.consumer.kit import depth, fill, publish, running, until
from tests.page.browser import CHROMIUM, Browser
from tests.page.kit import queue, report, served
from tests.page.worker import JOBS

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"
)


@contextmanager
def fleet_of_three(uri: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    script = str(Path(__file__).with_name("worker.py"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen([sys.executable, script, uri, name], env=environment)
        for name in ("worker-0", "worker-1", "tenants-0")
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(60)


@contextmanager
def a_query(uri: str, folder: Path, page: Page) -> Iterator[None]:
    """A Spark query that reads a few messages of `orders` a second, in a process of its own. It has reported:
    on a busy machine Spark takes minutes to start, in which the fleet would run out of messages.
    """
    from tests.spark import app as spark_app
    from tests.spark.harness import options

    given = options(uri, folder / "orders-to-lake", queues="orders", maxRecordsPerTrigger=50)
    process = spark_app.start(given, folder / "lake", trigger="1 second")
    try:
        until(lambda: page.view()["spark"])
        yield
    finally:
        spark_app.kill(process)


def feed(channel: Channel, uri: str) -> None:
    for name in ("gold", "<b>free</b>", "mail", "sms", "reports", "orders"):
        declare_queue(channel, name)
    with Publisher(channel.connection) as publisher:
        counts = {"gold": 20_000, "<b>free</b>": 20_000, "mail": 500, "sms": 5000, "orders": 5000}
        for name, count in counts.items():
            publisher.publish(Outgoing(b"x", "", name) for _ in range(count))
        publisher.publish([Outgoing(b"stuck", "", "reports")])
        bad = Properties(message_id="<i>id</i>")
        publisher.publish([Outgoing(b"<script>alert(%d)</script>" % n, "", "mail", bad) for n in range(3)])
    JOBS.declare(uri)
    with Publisher(channel.connection) as publisher:
        publisher.publish(_job(n) for n in range(2000))


def _job(number: int) -> Outgoing:
    """Every second message is of one tenant, and takes long."""
    tenant = "<i>acme</i>" if number % 2 else f"quiet-{number % 3}"
    properties = Properties(headers={"tenant": tenant}, delivery_mode=1)
    return Outgoing(b"slow" if number % 2 else b"x", "jobs", "", properties)


PANELS = [
    *(
        "totals",
        "attention",
        "flow",
        "shares",
        "queues",
        "windows",
        "rates",
        "budgets",
        "failures",
        "tenants",
    ),
    *("spark", "processes"),
]
MARKUP = "main b:not(#totals b):not(.changes b), main td i:not(.meter i), main img, main script"
"""Elements that only a name or a body could have brought, if it were not shown as text."""
SIDEWAYS = """
    [...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth + 1)
        .map((each) => each.closest("section").id)
"""
"""Panels of which a part is seen only by scrolling sideways."""


@pytest.mark.spark
def test_every_panel_is_drawn_with_a_fleet_of_three_and_a_query(
    channel: Channel, uri: str, browser: Browser, tmp_path: Path
) -> None:
    feed(channel, uri)
    publish(channel, "reports", [b"<script>alert(9)</script>"])
    with (
        served(uri, actions=True) as (page, url),
        a_query(uri, tmp_path, page),
        fleet_of_three(uri) as workers,
    ):
        origin = url.partition("#")[0]
        until(lambda: page.fleet.view(0)["totals"] is not None and len(page.fleet._processes) == 3)
        browser.open(url)
        browser.until("document.querySelectorAll('#processes tbody tr').length === 3")
        browser.until("document.querySelector('#attention').innerText.includes('stuck')")
        browser.until("document.querySelector('#attention').innerText.includes('throttled')")
        browser.until("document.querySelector('#attention').innerText.includes('sms-gateway')")
        browser.until("document.querySelector('#attention').innerText.includes('<i>acme</i>')")
        browser.until("document.querySelector('#tenants').innerText.includes('quiet-2')")
        browser.until("document.querySelector('#shares').innerText.includes('in worker-0, worker-1')")
        browser.until("document.querySelector('#budgets').innerText.includes('at its limit')")
        browser.until("document.querySelector('#spark').innerText.includes('orders-to-lake')")
        browser.until("document.querySelector('#spark').innerText.includes('orders 100 %')")
        browser.until(
            "document.querySelector('#failures').innerText.includes('<img src=x onerror=alert(1)>')"
        )
        browser.until("document.querySelector('.changes').children.length > 0")
        for width in (390, 1024, 1600):
            for theme in ("light", "dark"):
                browser.open(url, width, 900, theme)
                browser.until("Number(document.documentElement.dataset.drawn) > 1")
                browser.until(f"document.documentElement.scrollWidth === {width}")
                assert browser.run("document.querySelectorAll('canvas').length") == 2
                ground = browser.run("getComputedStyle(document.body).backgroundColor")
                assert (ground == "rgb(246, 247, 249)") is (theme == "light")
                for panel in PANELS:
                    assert len(browser.run(f"document.querySelector('#{panel}').innerText")) > 20, panel
                assert browser.run(SIDEWAYS) == []
                browser.shot(tmp_path / f"{width}-{theme}.png")
        for width in (700, 1280):  # in between
            browser.open(url, width, 900)
            browser.until("Number(document.documentElement.dataset.drawn) > 1")
            assert browser.run(SIDEWAYS) == []
        assert "<b>free</b>" in browser.run("document.querySelector('#shares').innerText")
        assert browser.run(f"document.querySelectorAll('{MARKUP}').length") == 0
        workers[0].kill()
        browser.until("document.querySelector('#processes').innerText.includes('gone')")
        browser.until("document.querySelector('#attention').innerText.includes('gone')")
    assert browser.console == []
    assert {f"{urlsplit(each).scheme}://{urlsplit(each).netloc}/" for each in browser.requests} == {origin}


def test_a_viewer_pauses_a_queue_and_retries_chosen_messages(
    channel: Channel, uri: str, browser: Browser
) -> None:
    fill(channel, "q", 0)
    fill(channel, "leash.dead.q", 0)
    fails = threading.Event()
    fails.set()
    done: list[bytes] = []
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
    assert said.exit_code == 0, said.output
    assert f"Snapshot: {path}" in said.output
    assert parse(uri).password not in path.read_text()
    browser.open(path.as_uri())
    browser.until("Number(document.documentElement.dataset.drawn) > 0")
    assert "q</script><b>" in browser.run("document.querySelector('#queues').innerText")
    assert "as it was at" in browser.text()
    assert browser.console == []
    assert browser.requests == [path.as_uri()]


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
    cell = "document.querySelectorAll('#queues tbody tr')[950].cells[2]"
    browser.run(f"{cell}.textContent = 'old'; {cell}.scrollIntoView()")
    browser.until(f"/^[0-9]+$/.test({cell}.innerText)")
    browser.run("const f = document.querySelector('#filter'); f.value = '0042'; f.oninput({target: f})")
    browser.until("document.querySelectorAll('#queues tbody tr').length === 1")
    assert browser.console == []


class Silent:
    """A source for a page whose reports are made up."""

    trouble: str | None = None
    thrifty = False

    def ask(self, _: object) -> bool:
        return False

    def close(self) -> None:
        pass


def test_a_row_stays_where_it_is_while_somebody_points_at_it(browser: Browser) -> None:
    page = Page(Fleet(), lambda _: Silent())  # type: ignore[arg-type, return-value]
    queues, over = {"a": queue(depth=5), "b": queue(depth=1)}, threading.Event()

    def tell() -> None:
        while not over.wait(0.2):
            page.heard(time.time(), report(queues=dict(queues)))

    telling = threading.Thread(target=tell)
    telling.start()
    first = "document.querySelector('#queues tbody tr').cells[0].innerText === '{}'"
    try:
        browser.open(page.start("127.0.0.1", 0))
        browser.until(first.format("a"))
        place = browser.run(
            "(() => { const r = document.querySelector('#queues tbody tr').getBoundingClientRect(); "
            "return [r.x + 50, r.y + r.height / 2]; })()"
        )
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
        queues["b"] = queue(depth=1, why="paused")
        browser.until("document.querySelector('#queues').innerText.includes('paused')")
        assert browser.run(first.format("a"))
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
        browser.until(first.format("b"))
    finally:
        over.set()
        telling.join(60)
        page.stop()
    assert browser.console == []
