"""A long run on three nodes, to which something happens again and again: live consumers and Spark go on.

Two consumers, each a process, share a plain queue and one with a single active consumer. Two Spark queries
read one of each kind into Parquet. All queues are quorum queues with three members; one node at a time is
away, so a majority always lives.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from leash.amqp import connect
from leash.amqp.uri import parse
from leash.broker import Broker, Cluster
from leash.errors import BrokerError
from leash.lab.quiet import Sleeper
from tests.consumer.kit import until
from tests.faults.kit import FAULTS, Feed, Handled, check_order, check_repeats
from tests.spark import app
from tests.spark.harness import declare, options, ready
from tests.spark.output import batches

MESSAGES = int(os.environ.get("LEASH_SOAK_MESSAGES", "200000"))
ROUNDS = int(os.environ.get("LEASH_SOAK_ROUNDS", "4"))  # of every kind of fault
SEED = int(os.environ.get("LEASH_SOAK_SEED", "1"))
STANDSTILL = 10.0  # seconds

LIVE = ["plain", "ordered"]
SPARK = ["spark", "spark-ordered"]

pytestmark = pytest.mark.soak


class Live:
    """Two consumers that write down what they handle."""

    def __init__(self, uris: list[str], folder: Path) -> None:
        self._log = folder / "handled"
        self._log.touch()
        self.errors = folder / "consumers.log"
        command = [sys.executable, str(Path(__file__).with_name("consumer_app.py"))]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.errors.open("ab") as errors:
            self._processes = [
                subprocess.Popen([*command, uri, str(self._log)], stderr=errors, env=path) for uri in uris
            ]

    def handled(self) -> dict[str, list[Handled]]:
        found: dict[str, list[Handled]] = {name: [] for name in LIVE}
        text = self._log.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            queue, number, flagged, at = line.split()
            found[queue].append(Handled(int(number), flagged == "1", float(at)))
        return found

    def stop(self) -> list[int]:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(30) for process in self._processes]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Query:
    """A Spark query, started again should it give up."""

    def __init__(self, uri: str, queue: str, folder: Path) -> None:
        self.queue, self.gave_up = queue, 0
        self._folder = folder / queue
        self._folder.mkdir()
        self._options = options(uri, self._folder / "staging", queue=queue, ordered="ordered" in queue)
        self._start()

    def _start(self) -> None:
        log = self._folder / "stderr"
        self._process = app.start(self._options, self._folder, trigger="1 second", errors=log)

    def tend(self) -> None:
        if self._process.poll() is not None:
            self.gave_up += 1
            self._start()

    @property
    def started(self) -> bool:
        return (self._folder / "checkpoint" / "metadata").exists()

    def rows(self) -> list[Handled]:
        found = batches(self._folder / "out")
        return [Handled(int(row["value"]), row["redelivered"], 0.0) for batch in found for row in batch]

    def commits(self) -> list[float]:
        """When batches were committed, by the monotonic clock."""
        ahead = time.time() - time.monotonic()
        logs = (self._folder / "out" / "_spark_metadata").glob("[0-9]*")
        return [log.stat().st_mtime - ahead for log in logs]

    def has(self, numbers: Iterable[int]) -> bool:
        self.tend()
        time.sleep(2)
        return set(numbers) <= {row.number for row in self.rows()}

    def kill(self) -> None:
        if self._process.poll() is None:
            app.kill(self._process)


def test_nothing_is_lost_and_all_goes_on_while_nodes_come_and_go(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled():  # progress shows at once
        _run(cluster, tmp_path)


def _run(cluster: Cluster, folder: Path) -> None:
    uri = cluster.uri_of("/")
    with connect(uri) as link:
        if link.version < (4, 2):
            pytest.skip("before Khepri, a node that was frozen for long does not find back to its cluster")
    declare(uri, "plain", "spark", kind="quorum")
    declare(uri, "ordered", "spark-ordered", kind="quorum", single_active_consumer=True)
    near = itertools.cycle([_first(uri, at) for at in range(3)])  # not all at the same node
    feeds = {name: Feed(next(near), name, burst=15, pause=0.1) for name in LIVE + SPARK}
    live = Live([next(near), next(near)], folder)
    queries = [Query(next(near), name, folder) for name in SPARK]
    try:
        until(lambda: all(query.started for query in queries), 300, "no start")
        for feed in feeds.values():
            feed.start()
        until(lambda: all(live.handled().values()), 60, "no start")
        for query in queries:
            until(lambda query=query: query.has([0]), 300, "no start")  # type: ignore[misc]
        slowest = _strike(cluster, live, feeds, queries)
        until(lambda: all(len(feed.confirmed) >= MESSAGES / len(feeds) for feed in feeds.values()), 900)
        for feed in feeds.values():
            feed.end()
        _finish(uri, live, feeds, queries)
        assert live.stop() == [0, 0]
    finally:
        for feed in feeds.values():
            feed.end()
        live.kill()
        for query in queries:
            query.kill()
    _check(live, feeds, queries)
    assert slowest < STANDSTILL


def _first(uri: str, at: int) -> str:
    """The same nodes, from another one on."""
    place = parse(uri)
    return replace(place, hosts=place.hosts[at:] + place.hosts[:at]).reveal()


def _strike(cluster: Cluster, live: Live, feeds: dict[str, Feed], queries: list[Query]) -> float:
    """All faults, one after the other; the longest that a live queue stood still."""
    chance = random.Random(SEED)
    kinds = list(FAULTS) * ROUNDS
    chance.shuffle(kinds)
    slowest = 0.0
    with Sleeper() as sleeper:
        for count, kind in enumerate(kinds, 1):
            time.sleep(chance.uniform(1, 4))
            node, seconds = chance.choice(_in_use(cluster)), chance.uniform(1, 12)
            began = time.monotonic()
            with FAULTS[kind](cluster, node):
                struck = time.monotonic()
                news = {name: feed.next for name, feed in feeds.items()}
                time.sleep(seconds)
            cluster.wait_joined()
            until(lambda: not any(map(_critical, cluster.nodes)), 120, "not all members came back")
            over = time.monotonic()
            until(lambda over=over: _go_on(live, over), 60, f"stands still after {kind}")  # type: ignore[misc]
            handled = live.handled()
            still = {name: _longest([each.at for each in handled[name]], began) for name in LIVE}
            new = {name: min(h.at for h in handled[name] if h.number >= news[name]) - struck for name in LIVE}
            fed = {name: _longest(feeds[name].confirmed.values(), began) for name in LIVE}
            for query in queries:
                query.tend()
            batch = [_longest([*query.commits(), time.monotonic()], began) for query in queries]
            slowest = max(slowest, *still.values())
            _say(
                f"{count:2} {kind:8} node {cluster.nodes.index(node) + 1} for {over - began:4.1f} s:",
                *[
                    f"{name} new after {new[name]:4.1f}, stood {still[name]:4.1f} (feed {fed[name]:4.1f});"
                    for name in LIVE
                ],
                f"Spark {' and '.join(f'{each:.1f}' for each in batch)};",
                f"busy {sleeper.away(began, over):.0%},",
                f"{sum(len(feed.confirmed) for feed in feeds.values())} confirmed",
            )
    return slowest


def _in_use(cluster: Cluster) -> list[Broker]:
    """Each node as often as it has connections: clients gather where nothing happened for long."""
    used = Counter(each["node"] for each in cluster.management.ask("GET", "/api/connections?columns=node"))
    return [node for node in cluster.nodes for _ in range(used[node.name])]


def _critical(node: Broker) -> bool:
    """Whether a queue would lose its majority with it."""
    try:
        node.management.ask("GET", "/api/health/checks/node-is-quorum-critical")
    except BrokerError:
        return True
    return False


def _go_on(live: Live, since: float) -> bool:
    time.sleep(0.1)
    return all(handled[-1].at > since for handled in live.handled().values())


def _longest(times: Iterable[float], since: float) -> float:
    """The longest time without any, from the last before `since` on."""
    times = sorted(times)
    first = max(0, sum(1 for at in times if at < since) - 1)
    return max(after - before for before, after in itertools.pairwise(times[first:]))


def _finish(uri: str, live: Live, feeds: dict[str, Feed], queries: list[Query]) -> None:
    def all_handled() -> bool:
        time.sleep(0.5)
        handled = live.handled()
        return all(feeds[name].confirmed.keys() <= {each.number for each in handled[name]} for name in LIVE)

    until(all_handled, 120, "not everything was handled")
    for query in queries:
        sure = feeds[query.queue].confirmed.keys()
        until(lambda query=query, sure=sure: query.has(sure), 300, "rows are missing")  # type: ignore[misc]
    until(lambda: not any(ready(uri, name) for name in feeds), 60, "something is left")


def _check(live: Live, feeds: dict[str, Feed], queries: list[Query]) -> None:
    ledger = live.handled() | {query.queue: query.rows() for query in queries}
    for name, feed in feeds.items():
        numbers = [each.number for each in ledger[name]]
        assert not feed.confirmed.keys() - set(numbers), f"lost from {name}"
        repeats = check_repeats(ledger[name], name) if name in LIVE else _check_plain_rows(ledger[name])
        if "ordered" in name:
            check_order(numbers, feed.confirmed)
        doubtful = feed.next - len(feed.confirmed)
        _say(f"{name}: {len(feed.confirmed)} confirmed, {doubtful} in doubt, {repeats} flagged repeats")
    _say(*[f"the query on {query.queue} gave up {query.gave_up} times;" for query in queries])
    assert "Traceback" not in live.errors.read_text()


def _check_plain_rows(rows: list[Handled]) -> int:
    """Per message at most one row without a flag; returns how many rows are repeats."""
    plain = Counter(row.number for row in rows if not row.flagged)
    assert not plain or max(plain.values()) == 1
    return len(rows) - len({row.number for row in rows})


def _say(*words: str) -> None:
    sys.stderr.write(" ".join(words) + "\n")
