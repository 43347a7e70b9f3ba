"""Leaving: drained in time, given back at once, in order, or abandoned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from leash import Consumer, Message, Queue
from leash.amqp import Channel
from leash.amqp.delivery_limit import limbo_queue
from leash.amqp.last_acks import settled
from leash.amqp.topology import state
from leash.consumer import consumer as front
from leash.consumer.reconnect import Connector
from leash.consumer.session import Parts
from leash.consumer.signals import Signals
from leash.errors import NotDrained
from tests.conftest import StalledLog
from tests.consumer.kit import depth, fill, running, until


def test_stopping_finishes_what_runs_and_gives_back_the_rest(channel: Channel, uri: str) -> None:
    fill(channel, "q", 100)
    begun: list[bytes] = []
    done: list[bytes] = []
    consumer = Consumer(uri, [Queue("q", window=50)], workers=3, drain=600)

    @consumer.handler
    def work(message: Message) -> None:
        begun.append(message.body)
        time.sleep(0.3)
        done.append(message.body)

    consumer.start()
    until(lambda: len(begun) == 3)
    begin = time.monotonic()
    assert consumer.stop()
    assert time.monotonic() - begin < 300  # not for as long as it may drain
    assert sorted(begun) == sorted(done)
    assert depth(channel, "q") == 100 - len(done)
    again: list[bool] = []
    second = Consumer(uri, ["q"])
    second.handler(lambda message: again.append(message.redelivered))
    with running(second):
        until(lambda: len(again) == 100 - len(done))


def test_the_last_acks_are_applied_before_the_connection_ends(
    channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch, stalled_log: StalledLog
) -> None:
    """What was not begun is given back before, message by message, and the broker has not got so far."""
    fill(channel, "q", 100, kind="quorum")
    consumer = Consumer(uri, [Queue("q", window=100)], workers=3, drain=600)
    go = threading.Event()
    begun: list[bytes] = []

    @consumer.handler
    def work(message: Message) -> None:
        begun.append(message.body)
        assert go.wait(300)

    consumer.start()
    until(lambda: len(begun) == 3 and consumer.stats().queues["q"].unsettled == 100)
    stalled_log.begin()
    monkeypatch.setattr("leash.consumer.session._LAST_ACKS", 300.0)
    monkeypatch.setattr("leash.consumer.session.settled", stalled_log.ends_with(settled))
    stopping = threading.Thread(target=consumer.stop)
    stopping.start()
    until(lambda: consumer.stats().queues["q"].unsettled == 3)
    go.set()
    stopping.join()
    stalled_log.end()
    again: list[bytes] = []
    second = Consumer(uri, ["q"])
    second.handler(lambda message: again.append(message.body))
    with running(second):
        until(lambda: len(again) >= 97 and depth(channel, "q") == 0)
    assert not set(again) & set(begun)


def test_a_start_that_fails_leaves_nobody_behind(channel: Channel, uri: str) -> None:
    fill(channel, "q", 1, kind="quorum", arguments={"x-delivery-limit": 4})
    for _ in range(2):
        with channel.connection.channel() as taker:
            until(lambda taker=taker: taker.get("q") is not None)  # type: ignore[misc]

    class Failing(Connector):
        def open(self) -> None:
            super().open()
            until(lambda: depth(channel, limbo_queue("q")) == 1)  # there is a courier now
            assert self.connection is not None
            self.connection.close()
            raise RuntimeError("at the last moment")

    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda _: None)
    with pytest.raises(RuntimeError, match="last moment"):
        consumer.start(Parts(connector=Failing))
    until(lambda: not any(thread.name == "leash-republisher" for thread in threading.enumerate()))


def test_a_handler_that_hangs_is_left_behind_at_the_deadline(channel: Channel, uri: str) -> None:
    fill(channel, "q", 3)
    hang = threading.Event()
    begun = threading.Event()
    consumer = Consumer(uri, ["q"], drain=0.5)

    @consumer.handler
    def work(message: Message) -> None:
        begun.set()
        hang.wait(600)

    consumer.start()
    assert begun.wait(60)
    begin = time.monotonic()
    assert not consumer.stop()
    assert time.monotonic() - begin < 300  # far below the handler's time
    until(lambda: depth(channel, "q") == 3)
    hang.set()


def test_an_ordered_queue_is_handed_over_in_order(channel: Channel, uri: str) -> None:
    fill(channel, "q", 60, arguments={"x-single-active-consumer": True})
    order: list[tuple[str, bytes]] = []

    def make(name: str) -> Consumer:
        consumer = Consumer(uri, [Queue("q", ordered=True)], workers=2)

        @consumer.handler
        def work(message: Message) -> None:
            time.sleep(0.005)
            order.append((name, message.body))

        return consumer

    with running(make("second")):
        first = make("first")
        # The broker chose the one that came first, so this one waits.
        with running(first):
            until(lambda: len(order) > 10)
    with running(make("third")):
        until(lambda: len(order) >= 60)
    assert [body for _, body in order] == [str(number).encode() for number in range(60)]


def stopping(consumer: Consumer, kind: str, answers: list[bool]) -> None:
    """Gives it a handler that asks it to stop."""

    def work(message: Message) -> None:
        answers.append(consumer.stop())

    async def work_async(message: Message) -> None:
        work(message)

    def work_batch(messages: list[Message]) -> None:
        work(messages[0])

    if kind == "batch":
        consumer.batch_handler(1)(work_batch)
    else:
        consumer.handler(work_async if kind == "async" else work)


@pytest.mark.parametrize("kind", ["def", "async", "batch"])
def test_a_handler_may_stop_its_consumer(channel: Channel, uri: str, kind: str) -> None:
    fill(channel, "q", 10)
    answers: list[bool] = []
    consumer = Consumer(uri, [Queue("q", window=10)])
    stopping(consumer, kind, answers)
    consumer.start()
    until(lambda: answers and not consumer.stats().connected)
    assert consumer.stop()
    assert answers == [False]
    assert depth(channel, "q") == 9
    assert "failed" not in consumer.stats().queues["q"].counts


@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_run_ends_when_a_handler_stops_it(channel: Channel, uri: str, kind: str) -> None:
    fill(channel, "q", 10)
    answers: list[bool] = []
    consumer = Consumer(uri, ["q"])
    stopping(consumer, kind, answers)
    consumer.run()
    assert answers == [False]
    assert not consumer.stats().connected
    assert depth(channel, "q") == 9


def test_a_run_ends_when_another_thread_stops_it_and_all_get_the_same_answer(
    channel: Channel, uri: str
) -> None:
    fill(channel, "q", 1)
    hang, begun = threading.Event(), threading.Event()
    consumer = Consumer(uri, ["q"], drain=0.5)

    @consumer.handler
    def work(message: Message) -> None:
        begun.set()
        hang.wait(600)

    answers: list[bool] = []

    def stop() -> None:
        begun.wait(60)
        answers.append(consumer.stop())

    others = [threading.Thread(target=stop) for _ in range(2)]
    for thread in others:
        thread.start()
    begin = time.monotonic()
    with pytest.raises(NotDrained, match=r"messages left: 1 \(1 with handlers"):
        consumer.run()
    assert time.monotonic() - begin < 300  # far below the handler's time
    for thread in others:
        thread.join(60)
    assert answers == [False, False]
    assert consumer.stop() is False
    until(lambda: depth(channel, "q") == 1)
    hang.set()


def test_a_run_in_a_thread_ends_when_it_is_stopped_while_it_starts(channel: Channel, uri: str) -> None:
    fill(channel, "q", 0)
    consumer = Consumer(uri, ["q"])
    consumer.handler(print)
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    until(lambda: consumer._session is not None)
    assert consumer.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_a_signal_takes_no_lock(channel: Channel, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that it interrupts may hold any, and would wait for itself."""
    fill(channel, "q", 0)
    made: list[Signals] = []

    def signals() -> Signals:
        made.append(Signals())
        return made[-1]

    monkeypatch.setattr(front, "Signals", signals)
    consumer = Consumer(uri, ["q"])
    consumer.handler(print)
    ended: list[Any] = []

    def run() -> None:
        try:
            consumer.run()
        except SystemExit as error:
            ended.append(error.code)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: consumer._session is not None and not consumer._leaving.locked())
    engine, left = consumer.session.engine, consumer.session._connector.left
    with consumer._leaving, engine.lock, engine.nudge._cond, left._cond:  # type: ignore[attr-defined]

        def twice() -> None:
            made[0].note(signal.SIGINT, None)
            made[0].note(signal.SIGINT, None)

        interrupted = threading.Thread(target=twice)
        interrupted.start()
        interrupted.join(60)
        assert not interrupted.is_alive()
    thread.join(60)
    assert ended == [128 + signal.SIGINT]


_APP = """
    import sys, time
    from leash import Consumer, Queue
    consumer = Consumer(sys.argv[1], [Queue("q", window=4)], workers=2, drain=600)
    @consumer.handler
    def work(message):
        print(message.body.decode(), flush=True)
        time.sleep(float(sys.argv[2]))
        print("done", message.body.decode(), flush=True)
    consumer.run()
    print("left", flush=True)
"""


def _app(folder: Path, uri: str, seconds: float) -> subprocess.Popen[str]:
    path = folder / "app.py"
    path.write_text(textwrap.dedent(_APP))
    return subprocess.Popen(
        [sys.executable, str(path), uri, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_signal_drains_and_ends_the_run(channel: Channel, uri: str, tmp_path: Path) -> None:
    fill(channel, "q", 10)
    process = _app(tmp_path, uri, 0.5)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "left"
    done = out.count("done")
    assert done >= 1
    assert depth(channel, "q") == 10 - done


def test_a_second_signal_leaves_at_once(channel: Channel, uri: str, tmp_path: Path) -> None:
    fill(channel, "q", 10)
    process = _app(tmp_path, uri, 600)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    until(lambda: state(channel, "q").consumers == 0)  # it has heard the first one
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)  # far below the handler's time
    assert process.returncode == 128 + signal.SIGINT
    until(lambda: depth(channel, "q") == 10)
