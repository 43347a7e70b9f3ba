"""Nothing lost, nothing settled twice, order kept: through crashes of everybody, again and again.

Two consumers run as processes of their own, through a proxy that can be cut. Messages are numbered; one that
was not confirmed may or may not have arrived, and its number is never used again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from leash.amqp import Connection, Outgoing, Properties, Publisher, connect
from leash.amqp.topology import declare_queue, delete_queue, state
from leash.broker import Broker
from leash.errors import AmqpError
from leash.lab.proxy import Proxy
from tests.consumer.kit import until

QUEUES: dict[str, tuple[str, dict[str, object]]] = {
    "classic": ("classic", {}),
    "quorum": ("quorum", {}),
    "scratch": ("classic", {}),
    "ordered": ("classic", {"x-single-active-consumer": True}),
    "ordered-quorum": ("quorum", {"x-single-active-consumer": True}),
}
KEPT = [name for name in QUEUES if name != "scratch"]  # that one is deleted now and then, with what is in it


class Line(NamedTuple):
    queue: str
    number: int
    redelivered: bool
    tries: int


class World:
    """The broker, the proxy, two consumers, and a publisher that never gives up."""

    def __init__(self, uri: str, broker: Broker, proxy: Proxy, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.uri = uri
        self.broker = broker
        self.proxy = proxy
        self.log = folder / "handled"
        self.log.touch()
        self.errors = folder / "stderr"
        self.apps: list[subprocess.Popen[bytes]] = []
        self.confirmed: dict[str, set[int]] = {name: set() for name in QUEUES}
        self._stop = threading.Event()
        with connect(uri) as connection:
            for name in QUEUES:
                self.declare(connection, name)
        self._publishing = threading.Thread(target=self._publish, daemon=True)
        self._publishing.start()
        for _ in range(2):
            self.launch()

    def declare(self, connection: Connection, name: str) -> None:
        kind, arguments = QUEUES[name]
        with connection.channel() as channel:
            declare_queue(channel, name, kind=kind, arguments=arguments)

    def launch(self) -> None:
        far = self.uri.replace(f":{self.broker.port('amqp')}/", f":{self.proxy.port}/")
        app = Path(__file__).with_name("consumer_app.py")
        with self.errors.open("ab") as errors:
            self.apps.append(
                subprocess.Popen(
                    [sys.executable, str(app), far, str(self.log)],
                    stderr=errors,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            )

    def _publish(self) -> None:
        number = 0
        properties = Properties(delivery_mode=2)
        while not self._stop.is_set():
            try:
                with connect(self.uri) as connection, Publisher(connection, timeout=5) as publisher:
                    while not self._stop.wait(0.05):
                        batch = range(number, number + 2)
                        number += 2
                        publisher.publish(
                            Outgoing(str(each).encode(), "", name, properties)
                            for name in QUEUES
                            for each in batch
                        )
                        for name in QUEUES:
                            self.confirmed[name].update(batch)
            except (AmqpError, OSError):
                time.sleep(0.2)

    # --- faults ---

    def kill_consumer(self) -> None:
        self._end(signal.SIGKILL)

    def stop_consumer(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, sign: signal.Signals) -> None:
        app = self.apps.pop(self.random.randrange(len(self.apps)))
        app.send_signal(sign)
        assert app.wait(120) in (0, -sign)  # it may not have got as far as to catch the signal
        self.launch()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def cut(self) -> None:
        self.proxy.cut()

    def cut_for_a_while(self) -> None:
        self.proxy.refuse = True
        self.proxy.cut()
        time.sleep(1.0)
        self.proxy.refuse = False

    def delete_queue(self) -> None:
        with connect(self.uri) as connection, connection.channel() as channel:
            delete_queue(channel, "scratch")
            time.sleep(self.random.choice([0.0, 0.5]))
            self.declare(connection, "scratch")

    # --- the end ---

    def lines(self) -> list[Line]:
        text = self.log.read_text()
        rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [Line(row[0], int(row[1]), row[2] == "1", int(row[3])) for row in rows]

    def finish(self) -> None:
        """Publish no more, and wait until everything was handled and settled."""
        self._stop.set()
        self._publishing.join(120)
        until(self._all_seen, what="not every message was handled")
        until(self._all_settled, what="something was not settled")
        until(self._all_started, what="a consumer did not start")  # until then a signal just ends it
        for app in self.apps:
            app.send_signal(signal.SIGTERM)
        for app in self.apps:
            assert app.wait(120) == 0, (
                f"{app.pid} left with {app.returncode}:\n{self.errors.read_text()[-3000:]}"
            )

    def _all_started(self) -> bool:
        log = self.errors.read_text()
        return all(f" {app.pid} event=started" in log for app in self.apps)

    def _all_seen(self) -> bool:
        seen: dict[str, set[int]] = {name: set() for name in QUEUES}
        for line in self.lines():
            seen[line.queue].add(line.number)
        return all(self.confirmed[name] <= seen[name] for name in KEPT)

    def _all_settled(self) -> bool:
        """Nothing ready or unacked: the management plugin knows, AMQP does not."""
        with connect(self.uri) as connection, connection.channel() as channel:
            waiting = [f"leash.retry.{name}.100" for name in ("classic", "quorum")]
            if any(state(channel, name).ready for name in [*KEPT, *waiting]):
                return False
        listed = self.broker.ctl("-q", "list_queues", "-p", connection.uri.vhost, "name", "messages")
        counts = dict(line.split("\t") for line in listed.splitlines() if "\t" in line)
        time.sleep(0.5)
        return all(counts[name] == "0" for name in KEPT)

    def check(self) -> None:
        lines = self.lines()
        counts = Counter((line.queue, line.number) for line in lines)
        assert any(count > 1 for count in counts.values()), "the faults repeated nothing: too gentle"
        once: set[tuple[str, int]] = set()
        for line in lines:
            again = (line.queue, line.number) in once
            assert not again or line.redelivered or line.tries, f"{line} came twice for no reason"
            once.add((line.queue, line.number))
        for name in ("ordered", "ordered-quorum"):
            first = list(dict.fromkeys(line.number for line in lines if line.queue == name))
            assert first == sorted(first), f"{name} was served out of order"
        log = self.errors.read_text()
        assert "PRECONDITION_FAILED" not in log, "a delivery was settled twice"
        assert "Traceback" not in log
        self._check_parked()

    def _check_parked(self) -> None:
        """What failed for good is in its dead queue."""
        with connect(self.uri) as connection, connection.channel() as channel:
            for name in KEPT:
                hopeless = {
                    number
                    for number in self.confirmed[name]
                    if number % 97 == 11 and number % 101 != 7  # those hang, and may get away with it
                }
                parked = set()
                while (message := channel.get(f"leash.dead.{name}")) is not None:
                    parked.add(int(message.body))
                assert hopeless <= parked


def run(uri: str, broker: Broker, folder: Path, seed: int, faults: list[str]) -> None:
    with Proxy("127.0.0.1", broker.port("amqp")) as proxy:
        world = World(uri, broker, proxy, folder, seed)
        try:
            until(lambda: len(world.lines()) > 50)
            for fault in faults:
                action: Callable[[], None] = getattr(world, fault)
                action()
                time.sleep(world.random.uniform(0.2, 1.5))
                before = len(world.lines())
                until(lambda before=before: len(world.lines()) > before, what=f"stands still after {fault}")  # type: ignore[misc]
            world.finish()
            world.check()
        finally:
            world._stop.set()
            for app in world.apps:
                app.kill()
                app.wait()


FAULTS = ["kill_consumer", "stop_consumer", "cut", "cut_for_a_while", "delete_queue"]


def test_every_kind_of_fault_once(uri: str, broker: Broker, tmp_path: Path) -> None:
    run(uri, broker, tmp_path, 1, [*FAULTS, "kill_broker", "kill_consumer", "cut"])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_fifty_random_faults(uri: str, broker: Broker, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed).choices([*FAULTS, "kill_broker"], weights=[3, 3, 3, 2, 2, 1], k=50)
    run(uri, broker, tmp_path, seed, chosen)
