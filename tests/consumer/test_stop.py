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

from leash import Consumer, Message, Queue
from leash.amqp import Channel
from tests.consumer.kit import depth, fill, running, until


def test_stopping_finishes_what_runs_and_gives_back_the_rest(channel: Channel, uri: str) -> None:
    fill(channel, "q", 100)
    begun: list[bytes] = []
    done: list[bytes] = []
    consumer = Consumer(uri, [Queue("q", window=50)], workers=3)

    @consumer.handler
    def work(message: Message) -> None:
        begun.append(message.body)
        time.sleep(0.3)
        done.append(message.body)

    consumer.start()
    until(lambda: len(begun) == 3)
    begin = time.monotonic()
    assert consumer.stop()
    assert time.monotonic() - begin < 2
    assert sorted(begun) == sorted(done)
    assert depth(channel, "q") == 100 - len(done)
    again: list[bool] = []
    second = Consumer(uri, ["q"])
    second.handler(lambda message: again.append(message.redelivered))
    with running(second):
        until(lambda: len(again) == 100 - len(done))


def test_a_handler_that_hangs_is_left_behind_at_the_deadline(channel: Channel, uri: str) -> None:
    fill(channel, "q", 3)
    hang = threading.Event()
    begun = threading.Event()
    consumer = Consumer(uri, ["q"], drain=0.5)

    @consumer.handler
    def work(message: Message) -> None:
        begun.set()
        hang.wait(20)

    consumer.start()
    begun.wait(10)
    begin = time.monotonic()
    assert not consumer.stop()
    assert time.monotonic() - begin < 3
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


_APP = """
    import sys, time
    from leash import Consumer, Queue
    consumer = Consumer(sys.argv[1], [Queue("q", window=4)], workers=2, drain=20)
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
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "left"
    done = out.count("done")
    assert done >= 1
    assert depth(channel, "q") == 10 - done


def test_a_second_signal_leaves_at_once(channel: Channel, uri: str, tmp_path: Path) -> None:
    fill(channel, "q", 10)
    process = _app(tmp_path, uri, 15)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)
    assert time.monotonic() - begin < 3
    assert process.returncode == 1
    until(lambda: depth(channel, "q") == 10)
