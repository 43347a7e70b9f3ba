"""A long run of numbered messages through Spark; driver, task workers and broker are killed at random."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from leash.amqp import Outgoing, Properties, Publisher, connect
from leash.broker import Broker
from leash.errors import AmqpError
from tests.spark import app
from tests.spark.harness import declare, options, ready
from tests.spark.output import committed_rows
from tests.spark.workers import python_workers

KILLS = int(os.environ.get("LEASH_SOAK_KILLS", "40"))
SEED = int(os.environ.get("LEASH_SOAK_SEED", "1"))

pytestmark = pytest.mark.soak


class Feed(threading.Thread):
    """Publishes numbers until stopped; `sure` are those that the broker confirmed. None is sent twice."""

    def __init__(self, uri: str) -> None:
        super().__init__(daemon=True)
        self._uri = uri
        self.sure: list[bytes] = []
        self.done = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.done.is_set():
            try:
                with connect(self._uri) as link:
                    publisher = Publisher(link, timeout=10)
                    while not self.done.is_set():
                        bodies = [b"%08d" % (number + i) for i in range(20)]
                        number += 20
                        publisher.publish(_message(body) for body in bodies)
                        self.sure += bodies
                        time.sleep(0.1)
            except AmqpError:
                time.sleep(0.5)


def _message(body: bytes) -> Outgoing:
    return Outgoing(body, "", "q", Properties(delivery_mode=2, message_id=body.decode()))


@pytest.mark.parametrize(
    ("kind", "dedup"), [("classic", "none"), ("classic", "messageId"), ("quorum", "messageId")]
)
def test_nothing_is_lost_and_nothing_doubled_over_forty_random_kills(
    broker: Broker, uri: str, tmp_path: Path, kind: str, dedup: str
) -> None:
    chance = random.Random(SEED)
    declare(uri, kind=kind)
    time.sleep(3)  # until then a killed broker forgets even a durable queue
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=500, maxRecordsPerPartition=50)
    given |= {"deduplication": dedup}
    feed = Feed(uri)
    feed.start()
    program = app.start(given, tmp_path)
    killed = {"driver": 0, "worker": 0, "broker": 0}
    try:
        while sum(killed.values()) < KILLS:
            time.sleep(chance.uniform(0.5, 8.0))
            if program.poll() is not None:  # gave up while the broker was away, as a query may
                program = app.start(given, tmp_path)
                continue
            victim = chance.choice(["driver", "worker", "worker", "broker"])
            if victim == "driver":
                app.kill(program)
                program = app.start(given, tmp_path)
            elif victim == "broker":
                broker.kill()
                broker.start()
            else:
                workers = python_workers(program.pid)
                if not workers:
                    continue
                _end(chance.choice(workers))
            killed[victim] += 1
    finally:
        feed.done.set()
        feed.join()
        if program.poll() is None:
            app.kill(program)
    _finish(given, tmp_path)
    assert ready(uri) == 0
    everything, plain = committed_rows(tmp_path / "out")
    assert set(feed.sure) <= set(everything)
    assert len(plain) == len(set(plain))
    if dedup == "messageId":
        assert len(everything) == len(set(everything))
    assert min(killed.values()) > 0 or KILLS < 10


def _finish(given: dict[str, str], folder: Path) -> None:
    """Twice: copies of what the last killed task had sealed come after what was there at the start."""
    given = given | {"maxRecordsPerTrigger": "100000", "maxRecordsPerPartition": "5000"}
    for _ in range(2):
        last = app.start(given, folder, available_now=True)
        try:
            assert last.wait(900) == 0
        finally:
            if last.poll() is None:
                app.kill(last)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
