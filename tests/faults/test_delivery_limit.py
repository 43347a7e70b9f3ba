"""The broker drops nothing that no handler began, however often its consumers go away.

Quorum queues without arguments have a delivery limit of 20 from RabbitMQ 4.0 on. Everything here happens 30
times. What the broker dropped is asked of the broker itself, besides the ledger of what was handled.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel, Outgoing, Properties, Publisher, encode_properties
from leash.amqp.delivery_limit import limbo_queue
from leash.amqp.topology import declare_queue, state
from leash.broker import Broker
from leash.lab.proxy import Proxy
from tests.consumer.kit import publish, until
from tests.faults.queues import empty, fill, parked

TIMES = 30


class Lives:
    """One consumer after the other, in processes of their own."""

    def __init__(self, uri: str, folder: Path, style: str, queues: list[str]) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name("poison_app.py"))]
        self._command += [uri, str(folder / "begun"), style, *queues]
        self._log = folder / "begun"
        self._errors = folder / "stderr"
        self._log.touch()

    def begun(self) -> list[str]:
        return self._log.read_text().splitlines()

    def live(self, until_: Callable[[list[str]], object], end: signal.Signals = signal.SIGKILL) -> None:
        """Until something has come about; then it is killed, or told to stop."""
        before = len(self.begun())
        with self._errors.open("ab") as errors:
            app = subprocess.Popen(self._command, stderr=errors)
        try:
            until(
                lambda: until_(self.begun()[before:]) or app.poll() is not None, what=str(self.begun()[-3:])
            )
        finally:
            app.send_signal(end)
            app.wait(60)
        assert "Traceback" not in self._errors.read_text()


def _is_parked(channel: Channel, queue: str) -> bool:
    return state(channel, f"leash.dead.{queue}").ready > 0


@pytest.mark.parametrize(
    ("style", "end"),
    [("threads", signal.SIGKILL), ("async", signal.SIGKILL), ("threads", signal.SIGTERM)],
    ids=["threads killed", "async killed", "threads stopped"],
)
def test_30_ends_with_a_message_that_is_never_done(
    uri: str, channel: Channel, tmp_path: Path, dropped: Callable[[], int], style: str, end: signal.Signals
) -> None:
    others = fill(channel, "a", poison=3) | fill(channel, "b", poison=None)
    lives = Lives(uri, tmp_path, style, ["a", "b"])

    queues = ["a", "b", limbo_queue("a"), limbo_queue("b")]

    def done() -> bool:
        return others <= set(lives.begun()) and _is_parked(channel, "a") and empty(channel, queues)

    def held_or_done(begun: list[str]) -> bool:  # one worker: while it holds poison, nothing else goes on
        return "a poison" in begun or done()

    for _ in range(TIMES):
        lives.live(held_or_done, end)
    for _ in range(TIMES):  # what a stop finds in somebody's hands comes back
        lives.live(held_or_done, signal.SIGTERM)
        if done():
            break
    else:
        pytest.fail(f"never done: {[state(channel, queue) for queue in queues]}")
    assert dropped() == 0
    assert set(lives.begun()) == {*others, "a poison"}
    found = parked(channel, "a")
    assert {body for body, _ in found} == {b"poison"}  # twice, if the kill came between copy and ack
    assert "never settled" in found[0][1]
    assert not parked(channel, "b")


def test_30_kills_of_an_ordered_queue(
    uri: str, channel: Channel, tmp_path: Path, dropped: Callable[[], int]
) -> None:
    others = fill(channel, "ordered", poison=3, **{"x-single-active-consumer": True})
    lives = Lives(uri, tmp_path, "threads", ["ordered"])
    for _ in range(TIMES):
        lives.live(lambda begun: "ordered poison" in begun or others <= set(lives.begun()))
    lives.live(lambda _: others <= set(lives.begun()), signal.SIGTERM)
    assert dropped() == 0
    assert {body for body, _ in parked(channel, "ordered")} == {b"poison"}
    first = list(dict.fromkeys(line for line in lives.begun() if not line.endswith("poison")))
    assert first == sorted(others, key=lambda line: int(line.split()[1]))


def test_30_stops_and_nothing_is_begun_in_between(
    uri: str, channel: Channel, dropped: Callable[[], int]
) -> None:
    fill(channel, "busy", poison=None, count=1)
    others = fill(channel, "q", poison=None)
    hold, holding = threading.Event(), threading.Event()
    seen: set[str] = set()

    def consumer() -> Consumer:
        made = Consumer(uri, [Queue("busy"), Queue("q", tier=1)], drain=0.05)

        @made.handler
        def work(message: Message) -> None:
            if message.queue == "busy":
                holding.set()
                hold.wait(60)
                raise SystemExit  # as if it had never been
            seen.add(f"q {message.body.decode()}")

        return made

    for _ in range(TIMES):
        holding.clear()
        running = consumer()
        running.start()
        until(holding.is_set)
        until(lambda run=running: run.stats().queues["q"].buffered or not state(channel, "q").ready)  # type: ignore[misc]
        running.stop()
        publish(channel, "busy", [b"more"])
    assert not seen
    hold.set()
    last = consumer()
    last.start()
    until(lambda: others == seen)
    last.stop()
    assert dropped() == 0


def test_30_pauses(uri: str, channel: Channel, dropped: Callable[[], int]) -> None:
    fill(channel, "busy", poison=None, count=1)
    others = fill(channel, "q", poison=None)
    hold, holding = threading.Event(), threading.Event()
    seen: set[str] = set()
    consumer = Consumer(uri, ["busy", "q"])

    @consumer.handler
    def work(message: Message) -> None:
        if message.queue == "busy":
            holding.set()
            hold.wait(120)
        else:
            seen.add(f"q {message.body.decode()}")

    consumer.start()
    until(holding.is_set)
    early = len(seen)
    for _ in range(TIMES):
        until(lambda: consumer.stats().queues["q"].buffered or state(channel, "q").ready == 0)
        consumer.pause("q")
        until(lambda: not consumer.stats().queues["q"].unsettled)
        consumer.resume("q")
    assert len(seen) == early
    hold.set()
    until(lambda: others == seen)
    consumer.stop()
    assert dropped() == 0


def test_30_cut_connections(uri: str, broker: Broker, channel: Channel, dropped: Callable[[], int]) -> None:
    others = fill(channel, "q", poison=3)
    seen: set[str] = set()
    held: list[threading.Event] = []
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        consumer = Consumer(uri.replace(f":{broker.port('amqp')}/", f":{proxy.port}/"), ["q"])

        @consumer.handler
        def work(message: Message) -> None:
            if message.body == b"poison":
                held.append(threading.Event())
                held[-1].wait(120)  # for longer than its connection lives
            else:
                seen.add(f"q {message.body.decode()}")

        def done() -> bool:
            return others == seen and _is_parked(channel, "q")

        consumer.start()
        for times in range(TIMES):
            until(lambda n=times: len(held) > n or done())  # type: ignore[misc]
            if len(held) == times:
                break
            reconnects = consumer.stats().reconnects
            proxy.cut()
            until(lambda before=reconnects: consumer.stats().reconnects > before)  # type: ignore[misc]
            held[-1].set()
        until(done)
        consumer.stop()
    assert dropped() == 0
    assert {body for body, _ in parked(channel, "q")} == {b"poison"}


def test_a_message_may_be_requeued_for_ever(uri: str, channel: Channel, dropped: Callable[[], int]) -> None:
    declare_queue(channel, "q", kind="quorum")
    with Publisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"again", "", "q")])
    times = 0
    done = threading.Event()
    consumer = Consumer(uri, ["q"])

    @consumer.handler
    def work(message: Message) -> None:
        nonlocal times
        times += 1
        if times <= 2 * TIMES:
            assert message.requeue()
        else:
            done.set()

    with consumer:
        until(done.is_set, what=f"{times} times")
    assert dropped() == 0


def test_headers_that_fill_a_frame_leave_room_for_the_brokers_counts(
    uri: str, channel: Channel, dropped: Callable[[], int]
) -> None:
    """Its counts make the frame larger than what was agreed; so does what it tells of a dead letter."""
    routes = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    declare_queue(channel, "q", kind="quorum")
    declare_queue(channel, "expired", arguments={"x-message-ttl": 1, **routes})
    room = channel.connection.frame_max - 20 - len(encode_properties(Properties(headers={"h": ""}), 2))
    spares = (0, 20, 100, 500, 1000)
    with Publisher(channel.connection) as publisher:
        publisher.publish(
            Outgoing(f"{queue} {spare}".encode(), "", queue, Properties(headers={"h": "x" * (room - spare)}))
            for queue in ("q", "expired")
            for spare in spares
        )
    times: Counter[bytes] = Counter()
    unflagged: Counter[bytes] = Counter()
    consumer = Consumer(uri, ["q"])

    @consumer.handler
    def work(message: Message) -> None:
        times[message.body] += 1
        unflagged[message.body] += not message.redelivered
        if times[message.body] <= 15:
            assert message.requeue()

    with consumer:
        until(lambda: len(times) == 10 and all(count > 15 for count in times.values()), what=str(times))
        assert consumer.stats().reconnects == 0
    assert {
        body for body, count in unflagged.items() if count > 1 and not body.endswith((b" 0", b" 20"))
    } == set()
    assert dropped() == 0
