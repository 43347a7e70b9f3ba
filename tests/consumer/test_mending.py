"""Lost connections, deleted queues, a broker that cancels: it goes on, and settles nothing twice."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel
from leash.amqp.topology import declare_queue, delete_queue, state
from leash.broker import Broker
from leash.consumer.copy_courier import Republisher
from leash.consumer.engine import Engine
from leash.consumer.failures import Failures
from leash.consumer.link import Link
from leash.consumer.outbox import Outbox
from leash.flow import Flow, Lane
from leash.lab.proxy import Proxy
from tests.consumer.kit import depth, fill, publish, running, until


def test_after_a_cut_it_connects_again_and_goes_on_with_its_windows(
    channel: Channel, uri: str, broker: Broker
) -> None:
    fill(channel, "q", 3000)
    seen: Counter[bytes] = Counter()
    again: Counter[bytes] = Counter()
    done: set[bytes] = set()
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        far = uri.replace(f":{broker.port('amqp')}/", f":{proxy.port}/")
        consumer = Consumer(far, [Queue("q", window=20)], workers=2)

        @consumer.handler
        def work(message: Message) -> None:
            (again if message.redelivered else seen)[message.body] += 1
            done.add(message.body)
            time.sleep(0.001)

        with running(consumer):
            for cut in range(1, 4):
                until(lambda cut=cut: len(seen) > 500 * cut)  # type: ignore[misc]
                proxy.cut()
                until(lambda cut=cut: consumer.stats().reconnects == cut)  # type: ignore[misc]
            until(lambda: len(done) == 3000)
            stats = consumer.stats()
    assert set(seen.values()) == {1}
    assert stats.queues["q"].window == 20
    assert 0 < sum(again.values()) <= 3 * 20
    assert depth(channel, "q") == 0


def test_what_runs_during_a_cut_is_not_settled_on_the_new_channel(
    channel: Channel, uri: str, broker: Broker
) -> None:
    fill(channel, "q", 2)
    go, begun = threading.Event(), threading.Event()
    got: list[tuple[bytes, bool]] = []
    answers: list[bool] = []
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        far = uri.replace(f":{broker.port('amqp')}/", f":{proxy.port}/")
        consumer = Consumer(far, [Queue("q", window=1)])

        @consumer.handler
        def work(message: Message) -> None:
            got.append((message.body, message.redelivered))
            if not begun.is_set():
                begun.set()
                go.wait(120)
                answers.append(message.ack())

        with running(consumer):
            assert begun.wait(60)
            proxy.cut()
            until(lambda: consumer.stats().reconnects == 1)
            until(lambda: consumer.stats().queues["q"].buffered == 1)
            go.set()
            until(lambda: len(got) == 3)
    assert answers == [False]
    assert got == [(b"0", False), (b"0", True), (b"1", False)]
    assert depth(channel, "q") == 0


def test_a_deleted_queue_is_looked_for_until_it_is_back_while_others_go_on(
    channel: Channel, uri: str
) -> None:
    for name in ("a", "b"):
        fill(channel, name, 50)
    seen: Counter[str] = Counter()
    consumer = Consumer(uri, ["a", "b"])

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1

    with running(consumer):
        until(lambda: seen == {"a": 50, "b": 50})
        delete_queue(channel, "a")
        until(lambda: not consumer.stats().queues["a"].connected)
        publish(channel, "b", [b"x"] * 20)
        until(lambda: seen["b"] == 70)
        declare_queue(channel, "a")
        publish(channel, "a", [b"x"] * 20)
        until(lambda: seen["a"] == 70)
        assert consumer.stats().reconnects == 0
    assert depth(channel, "a") == 0


def test_a_handler_that_nears_the_consumer_timeout_is_reported(
    channel: Channel, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, "q", 1)
    consumer = Consumer(uri, ["q"], consumer_timeout=0.5)

    @consumer.handler
    def work(message: Message) -> None:
        until(lambda: consumer.stats().overdue == 1)

    with caplog.at_level(logging.WARNING, "leash.consumer"), running(consumer):
        until(lambda: consumer.stats().queues["q"].handled == 1)
    assert "event=handler_overdue queue=q" in caplog.text


def test_every_change_of_a_window_is_logged_with_its_reason(
    channel: Channel, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, "q", 400)
    consumer = Consumer(uri, ["q"])

    @consumer.handler
    def work(message: Message) -> None:
        time.sleep(0.005)

    with caplog.at_level(logging.DEBUG, "leash.consumer"), running(consumer):
        until(lambda: consumer.stats().queues["q"].window < 16)
        until(lambda: "event=window" in caplog.text)
    assert "event=window queue=q window=" in caplog.text
    assert "never used in the last" in caplog.text
    assert uri.split(":")[2].split("@")[0] not in caplog.text


def test_a_loss_is_logged_before_the_return(
    channel: Channel, uri: str, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, "q", 1)
    caplog.set_level(logging.INFO, "leash.consumer")
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        consumer = Consumer(uri.replace(f":{broker.port('amqp')}/", f":{proxy.port}/"), ["q"])
        consumer.handler(lambda _: None)
        with running(consumer):
            proxy.cut()
            until(lambda: consumer.stats().reconnects)
            until(lambda: any("event=consuming" in record.getMessage() for record in caplog.records))
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events.index("event=channel_lost") < events.index("event=reconnected")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_tries_in_place_are_counted_on_when_the_channel_is_lost(
    channel: Channel, uri: str, broker: Broker, kind: str
) -> None:
    fill(channel, "q", 3, kind=kind, arguments={"x-single-active-consumer": True})
    tries: list[int] = []
    others: list[bytes] = []
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        consumer = Consumer(
            uri.replace(f":{broker.port('amqp')}/", f":{proxy.port}/"),
            [Queue("q", ordered=True)],
            retry=Retry(tries=4, delay=0.5),
        )

        @consumer.handler
        def work(message: Message) -> None:
            if message.body != b"0":
                others.append(message.body)
                return
            tries.append(message.tries)
            raise ValueError

        with running(consumer):
            for count in range(1, 4):
                until(lambda n=count: len(tries) == n, what=f"{tries}")  # type: ignore[misc]
                until(lambda n=count: consumer.stats().queues["q"].counts.get("retried") == n)  # type: ignore[misc]
                proxy.cut()
            until(lambda: depth(channel, "leash.dead.q") == 1, what=f"{tries}")
            until(lambda: others == [b"1", b"2"])
    assert tries == [0, 1, 2, 3]


def test_a_queue_that_is_paused_while_its_consumer_starts_is_not_consumed(
    channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(channel, "q", 5)
    seen: list[bytes] = []
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda message: seen.append(message.body))
    start = Link.start

    def paused_meanwhile(link: Link, *arguments: Any) -> Any:
        consumer.pause("q")
        return start(link, *arguments)

    monkeypatch.setattr(Link, "start", paused_meanwhile)
    with running(consumer):
        until(lambda: state(channel, "q").consumers == 0)
        until(lambda: depth(channel, "q") == 5)
        assert not seen
        consumer.resume("q")
        until(lambda: len(seen) == 5)


def linked(engine: Engine, spec: Queue, number: int = 1, *, limbo: bool = False) -> Link:
    """A link on a channel that only has a number."""
    connection: Any = SimpleNamespace(frame_max=1 << 17)
    channel: Any = SimpleNamespace(number=number, connection=connection, closed=False)
    return Link(spec, channel, Outbox(connection, engine.lock, engine.unwritten), limbo=limbo)


def test_an_ordered_queue_goes_on_when_its_channel_is_lost_while_a_message_is_about_to_be_parked() -> None:
    spec = Queue("q", ordered=True)
    engine = Engine(Flow([Lane("q", ordered=True)]), None)
    link = engine.links["q"] = linked(engine, spec)

    def lose(_: str) -> Retry:
        engine.lost(link)
        return Retry(1)

    failures = Failures(engine, [spec], lose, "park")
    failures.republisher = cast(Republisher, SimpleNamespace(put=lambda *_: None))
    message = Message((1, False, "", "q", b"\0\0", b"x", link, 0), engine.settler.settle)
    failures.failed([message], ValueError("last"))
    with engine.lock:
        engine.flow.arrive(0, "q", ["it comes again, on another channel"])
        assert engine.flow.take(0)


def test_a_message_out_of_limbo_is_given_back_on_its_own_channel() -> None:
    spec = Queue("q")
    engine = Engine(Flow([Lane("q")]), None)
    link = engine.links["q"] = linked(engine, spec)
    link.ledger.delivered = 5
    limbo = linked(engine, spec, 2, limbo=True)
    limbo.ledger.delivered = 1
    with engine.lock:  # as after `put_back`
        engine.flow.arrive(0, "q", [(1, True, "", "q", b"\0\0", b"x", limbo, 0)])
    engine.pause("q")
    assert limbo.ledger.is_settled(1)
    assert not link.ledger.is_settled(1)
