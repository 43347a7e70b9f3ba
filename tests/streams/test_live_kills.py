"""Processes that consume streams are killed: the next one continues without a gap, and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from leash.broker import Broker
from leash.streams import Connection, create_stream, create_super_stream, query_offset
from tests.streams.kit import numbers, write
from tests.waiting import until

APP = Path(__file__).with_name("live_app.py")


class Apps:
    """Processes, and what they wrote."""

    def __init__(self, arguments: list[str], path: Path) -> None:
        self.path = path
        self._arguments = arguments
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        app = subprocess.Popen([sys.executable, str(APP), *self._arguments], env=os.environ)
        self.running.append(app)
        return app

    def kill(self, app: subprocess.Popen[bytes]) -> None:
        app.send_signal(signal.SIGKILL)
        app.wait()
        self.running.remove(app)

    def lines(self) -> list[tuple[int, str, int]]:
        """Who, which stream, which number."""
        if not self.path.exists():
            return []
        parts = [line.split() for line in self.path.read_text().splitlines()]
        return [(int(pid), stream, int(number)) for pid, stream, number in parts]

    def of(self, stream: str) -> list[tuple[int, int]]:
        return [(pid, number) for pid, name, number in self.lines() if name == stream]

    def all_of(self, stream: str, count: int) -> bool:
        return {number for _, number in self.of(stream)} >= set(range(count))


@contextmanager
def apps(uri: str, broker: Broker, folder: Path, kind: str, names: str, workers: int = 1) -> Iterator[Apps]:
    path = folder / "lines"
    arguments = [uri, str(broker.port("stream")), str(path), kind, names, str(workers)]
    made = Apps(arguments, path)
    try:
        yield made
    finally:
        for app in list(made.running):
            made.kill(app)


@pytest.mark.parametrize("kind", ["ordered", "plain"])
def test_after_a_kill_the_next_process_continues_where_all_was_settled(
    broker: Broker, uri: str, stream_uri: str, streams: Connection, tmp_path: Path, kind: str
) -> None:
    create_stream(streams, "s")
    write(stream_uri, "s", numbers(6_000), 100)  # before anything is stored: numbers are offsets
    workers = 1 if kind == "ordered" else 4
    begins: dict[int, int] = {}
    with apps(uri, broker, tmp_path, kind, "s", workers) as started:
        for turn in range(4):
            seen = len(started.lines())
            stored = query_offset(streams, "billing", "s")
            app = started.start()
            begins[app.pid] = 0 if stored is None else stored + 1
            if turn < 3:
                enough = seen + 400
                until(lambda enough=enough: len(started.lines()) > enough)  # type: ignore[misc]
                until(lambda app=app: (query_offset(streams, "billing", "s") or 0) > begins[app.pid])  # type: ignore[misc]
                started.kill(app)
        until(lambda: started.all_of("s", 6_000))
        lines = started.of("s")
    by_process = {pid: [number for _, number in found] for pid, found in groupby(lines, lambda line: line[0])}
    assert list(by_process) == list(begins)
    before: set[int] = set()
    for pid, handled in by_process.items():
        begin = min(handled)
        assert begin >= begins[pid]  # nothing that was stored comes again
        assert before >= set(range(begin))  # and nothing is skipped
        assert len(handled) == len(set(handled))
        if kind == "ordered":
            assert handled == list(range(begin, begin + len(handled)))
        before |= set(handled)
    assert sorted({number for _, number in lines}) == list(range(6_000))


def test_two_processes_share_a_super_stream_and_one_continues_for_the_other(
    broker: Broker, uri: str, stream_uri: str, streams: Connection, tmp_path: Path
) -> None:
    if streams.version < (3, 11):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    partitions = [f"orders-{number}" for number in range(3)]
    create_super_stream(streams, "orders", 3, amqp=uri)
    for partition in partitions:
        write(stream_uri, partition, numbers(1_000), 100)
    with apps(uri, broker, tmp_path, "super", "orders") as started:
        one, two = started.start(), started.start()
        count = 1_000
        while len({pid for pid, _, number in started.lines() if number >= count - 1_000}) < 2:
            until(lambda count=count: all(started.all_of(each, count) for each in partitions))  # type: ignore[misc]
            for partition in partitions:
                write(stream_uri, partition, numbers(1_000, count), 100)
            count += 1_000
            assert count < 30_000
        started.kill(one)  # in the middle of some partition, or of two
        for partition in partitions:
            write(stream_uri, partition, numbers(1_000, count), 100)
        count += 1_000
        until(lambda: all(started.all_of(each, count) for each in partitions))
        lines = {partition: started.of(partition) for partition in partitions}
        assert started.running == [two]
    for handled in lines.values():
        first = list(dict.fromkeys(number for _, number in handled))
        assert first == list(range(count))  # nothing is skipped, and the order is kept
        for (before, number), (after, following) in pairwise(handled):
            assert following == number + 1 or (following <= number and before != after)
        assert handled[-1][0] == two.pid
