"""Thousands of queues in one process: the start, idleness, memory and throughput, beside a bare client."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pamqp import commands

from bench import harness
from leash import Consumer, Queue
from leash.amqp import Channel, Connection, Deliveries, Outgoing, Publisher, connect
from leash.amqp.channel import Reply
from leash.amqp.topology import declare_queues, delete_queue

MESSAGES = 300_000
COUNTS = (10, 1_000, 10_000)
ROUNDS = 3
"""Of which the one in the middle counts; of the last number of queues there is one only."""
WINDOW = 16
IDLE = 8.0
"""Seconds in which the idle process is watched."""
_ROOM = 2_000  # channels of a connection
_ENOUGH = 4  # this part of the messages must be left after the start for a rate


@dataclass(frozen=True)
class Seen:
    """One client with one number of queues."""

    queues: int
    client: str
    start: float  # seconds
    rate: float  # messages a second, from the beginning to the last message
    after: float | None  # of what came after the start; None: next to nothing did
    idle: float  # percent of a core
    memory: float  # MB


def names_of(count: int) -> list[str]:
    return [f"many.{count}.{number}" for number in range(count)]


def fill(uri: str, names: list[str]) -> None:
    """All messages, evenly."""
    with connect(uri) as connection, Publisher(connection) as publisher:
        body = b"x" * 100
        publisher.publish(
            Outgoing(body, "", names[number % len(names)], harness.TRANSIENT) for number in range(MESSAGES)
        )


def declare(uri: str, names: list[str]) -> None:
    with connect(uri) as connection:
        channel = connection.channel()
        for at in range(0, len(names), 500):
            declare_queues(channel, [(name, "classic", {}) for name in names[at : at + 500]])


def delete(uri: str, names: list[str]) -> None:
    with connect(uri) as connection:
        channel = connection.channel()
        for name in names:
            delete_queue(channel, name)


class Bare:
    """As many channels, each with a window, and an ack for every half of it; no policy, no worker."""

    def __init__(self, uri: str, names: list[str], done: threading.Event) -> None:
        self._done = done
        self.seen = 0
        self._lock = threading.Lock()
        self._connections = [connect(uri) for _ in range(0, len(names), _ROOM)]
        for number, connection in enumerate(self._connections):
            with connection.together():
                own = names[number * _ROOM : (number + 1) * _ROOM]
                asked = [self._consume(connection, name) for name in own]
            for answer in asked:
                answer(60.0)

    def _consume(self, connection: Connection, name: str) -> Reply:
        channel = connection.channel(wait=False)
        tag = channel.expect_consumer("", self._deliverer(channel))
        channel.ask(commands.Basic.Qos(0, WINDOW, False), commands.Basic.QosOk)
        return channel.ask(commands.Basic.Consume(0, name, tag), commands.Basic.ConsumeOk)

    def _deliverer(self, channel: Channel) -> Callable[[Deliveries], None]:
        unacked = 0

        def deliver(batch: Deliveries) -> None:
            nonlocal unacked
            unacked += len(batch)
            if unacked >= WINDOW // 2:
                channel.ack(batch.tags[-1], multiple=True)
                unacked = 0
            with self._lock:
                self.seen += len(batch)
                if self.seen == MESSAGES:
                    self._done.set()

        return deliver

    def stop(self) -> None:
        for connection in self._connections:
            connection.close()


class Whole:
    """`leash.Consumer`."""

    def __init__(self, uri: str, names: list[str], done: threading.Event) -> None:
        self.seen = 0
        self._consumer = Consumer(uri, [Queue(name, quantum=4) for name in names], workers=1)

        @self._consumer.handler
        def handle(_: object) -> None:
            self.seen += 1
            if self.seen == MESSAGES:
                done.set()

        self._consumer.start()

    def stop(self) -> None:
        self._consumer.stop()


def child(uri: str, client: str, count: int) -> Seen:
    """In a process of its own: start, drain, idle."""
    names, done = names_of(count), threading.Event()
    began = time.perf_counter()
    running = (Whole if client == "leash.Consumer" else Bare)(uri, names, done)
    started, left = time.perf_counter(), MESSAGES - running.seen
    if not done.wait(240):
        raise SystemExit("not all messages came")
    drained = time.perf_counter()
    time.sleep(3.0)
    before, since = _cpu(), time.perf_counter()
    time.sleep(IDLE)
    idle = 100 * (_cpu() - before) / (time.perf_counter() - since)
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    running.stop()
    after = left / (drained - started) if left >= MESSAGES / _ENOUGH else None
    return Seen(count, client, started - began, MESSAGES / (drained - began), after, idle, memory)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(uri: str, client: str, count: int) -> Seen:
    command = [sys.executable, "-m", "bench.many", client, str(count)]
    environment = os.environ | {"LEASH_BENCH_URI": uri}
    done = subprocess.run(
        command, env=environment, cwd=harness.ROOT, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{client} with {count} queues failed: {done.stderr.strip()[-800:]}")
    return Seen(**json.loads(done.stdout))


def table(rows: list[Seen]) -> str:
    lines = [
        "| queues | client | start s | messages/s, start included | of ten queues | of the bare client "
        "| messages/s after it | of ten queues | idle CPU % | MB |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    ten = {row.client: row for row in rows if row.queues == COUNTS[0]}
    for row in rows:
        bare = next(other.rate for other in rows if other.queues == row.queues and other.client == "bare")
        lines.append(
            f"| {row.queues:,} | {row.client} | {row.start:.2f} | {row.rate:,.0f} | "
            f"{row.rate / ten[row.client].rate:.2f} | {row.rate / bare:.2f} | "
            f"{_after(row.after, ten[row.client].after)} | {row.idle:.1f} | {row.memory:.0f} |"
        )
    return "\n".join(lines)


def _after(rate: float | None, ten: float | None) -> str:
    if rate is None or ten is None:
        return "all came in it |"
    return f"{rate:,.0f} | {rate / ten:.2f}"


def main(uri: str) -> None:
    """Run all, print, and write docs/results.md."""
    with connect(uri) as connection:
        version = str(connection.server["version"])
    rows = []
    for count in COUNTS:
        names = names_of(count)
        declare(uri, names)
        runs: dict[str, list[Seen]] = {"bare": [], "leash.Consumer": []}
        for _ in range(ROUNDS if count < COUNTS[-1] else 1):
            for client, seen in runs.items():
                fill(uri, names)
                seen.append(measure(uri, client, count))
                print(seen[-1], flush=True)
        rows += [sorted(seen, key=lambda each: each.rate)[len(seen) // 2] for seen in runs.values()]
        delete(uri, names)
    text = (
        "## Thousands of queues\n\n"
        f"{MESSAGES:,} messages of 100 B, spread evenly over classic queues, one process, one worker, an "
        "empty handler. In the start, a process opens a channel and a consumer for each queue. "
        f"The bare client is Leash's wire client: windows of {WINDOW}, an ack for "
        f"every half of one, no policies.\n\n{table(rows)}\n"
    )
    print(table(rows), flush=True)
    harness.publish_section("many", text, version, [asdict(row) for row in rows])


if __name__ == "__main__":
    print(json.dumps(asdict(child(os.environ["LEASH_BENCH_URI"], sys.argv[1], int(sys.argv[2])))))
