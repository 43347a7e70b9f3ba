"""Budgets for long: eight processes, two hundred kills, stops, cut connections and broker restarts; cycles.

pytest tests/soak/test_budgets.py -m soak
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leash import Budget
from leash.amqp import connect
from leash.broker import Broker
from leash.fleet.budgets import lifecycle, rate_to_tokens
from leash.fleet.budgets.state_at_broker import ready, wheel_queue
from leash.lab.proxy import slow
from tests.fleet.kit import Fleet, excess, most_at_once, publish
from tests.waiting import until

pytestmark = pytest.mark.soak

PROCESSES = 8
KILLS = int(os.environ.get("LEASH_SOAK_KILLS", "200"))
CYCLES = int(os.environ.get("LEASH_SOAK_CYCLES", "100000"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "node", owned=True) as made:
        yield made


@pytest.mark.parametrize(("rate", "burst"), [(50, 50), (1000, 1000), (1000, 100)])
def test_the_bound_holds_through_two_hundred_kills(
    node: Broker, tmp_path: Path, rate: int, burst: int
) -> None:
    fleet = Fleet(node.uri, tmp_path / "ledger", f"rate={rate}", f"burst={burst}")
    enough = 200 * rate
    publish(node.uri, "work", enough, lasting=True)
    published, stops = enough, 0
    try:
        for _ in range(PROCESSES):
            fleet.start("work")
        fleet.wait_for(burst)
        for turn in range(KILLS):
            fleet.kill()
            fleet.start("work")
            if turn % 10 == 5:
                stops += 1
                fleet.stop_and_continue(random.uniform(0.05, 5.0))
            if turn % 50 == 25:
                seen = len(fleet.starts())
                node.kill()
                node.start()
                fleet.wait_for(seen + burst)
            time.sleep(random.uniform(0.0, 1.0))
            if len(fleet.starts()) > published - enough // 2:  # a busy machine takes longer
                publish(node.uri, "work", enough, lasting=True)
                published += enough
        starts = fleet.starts()
    finally:
        fleet.end()
    late = 2 * stops  # a worker may be stopped between its look at the clock and the handler's first line
    worst, seconds = excess(starts, rate, burst, 0.1), (starts[-1] - starts[0]) / 1e9
    print(f"{rate}/{burst}: {len(starts)} starts in {seconds:.0f} s, {worst:.1f} above")  # noqa: T201
    assert worst <= late


def test_twenty_at_once_through_kills(node: Broker, tmp_path: Path) -> None:
    fleet = Fleet(node.uri, tmp_path / "ledger", "at_once=20")
    publish(node.uri, "work", 50_000, lasting=True)
    try:
        for _ in range(PROCESSES):
            fleet.start("work", workers=4, seconds=0.05)
        fleet.wait_for(20)
        for _ in range(50):
            fleet.kill()
            fleet.start("work", workers=4, seconds=0.05)
            time.sleep(random.uniform(0.0, 1.0))
        rows = fleet.rows()
    finally:
        fleet.end()
    most = most_at_once(rows, fleet.dead)
    print(f"at_once=20: at most {most}")  # noqa: T201
    assert most <= 20
    with connect(node.uri) as connection:
        card = lifecycle.find(connection, "sms")
        assert card is not None
        wheel = wheel_queue("sms", card.generation)
        until(lambda: ready(connection, wheel) == 20, what="a permit is lost")


def test_one_busy_process_among_seven_idle_ones_gets_the_budget(node: Broker, tmp_path: Path) -> None:
    rate = burst = 200
    fleet = Fleet(node.uri, tmp_path / "ledger", f"rate={rate}", f"burst={burst}")
    publish(node.uri, "idle", 0)
    publish(node.uri, "work", 60 * rate)
    try:
        for _ in range(PROCESSES - 1):
            fleet.start("idle")
        fleet.start("work")
        fleet.wait_for(30 * rate)
        starts = fleet.starts()
    finally:
        fleet.end()
    seconds = (starts[-1] - starts[burst]) / 1e9
    print(f"{(len(starts) - burst) / seconds / rate:.3f} of the rate")  # noqa: T201
    assert (len(starts) - burst) / seconds >= 0.95 * rate
    assert excess(starts, rate, burst, 0.1) <= 0


def test_cut_connections_give_nobody_more(node: Broker, tmp_path: Path) -> None:
    rate, burst = 200, 40
    proxy, uri = slow(node.uri, 0.0)
    with proxy:
        fleet = Fleet(uri, tmp_path / "ledger", f"rate={rate}", f"burst={burst}")
        publish(node.uri, "work", 20_000)
        try:
            for _ in range(4):
                fleet.start("work")
            fleet.wait_for(burst + 10)
            for _ in range(20):
                seen = len(fleet.starts())
                proxy.cut()
                fleet.wait_for(seen + 20)
            starts = fleet.starts()
        finally:
            fleet.end()
    assert excess(starts, rate, burst, 0.1) <= 0


def test_the_brokers_disk_and_memory_do_not_grow_with_the_cycles(
    node: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_to_tokens, "TURNS", 5000)  # small tokens: more cycles a second than budgets have
    cycles, looks = 0, []
    with Budget("sms", rate=5000, burst=1000).open(node.uri) as till:
        for part in range(1, 11):
            while cycles < part * CYCLES // 10:
                cycles += till.take_some(64, 1.0)
            files = [file for file in node.folder.rglob("*") if file.is_file() and "log" not in file.parts]
            disk = sum(file.stat().st_size for file in files if file.exists()) / 1e6
            memory = int(node.eval("erlang:memory(total).")) / 1e6
            looks.append((disk, memory))
            print(f"{cycles} cycles: disk {disk:.1f} MB, memory {memory:.0f} MB", flush=True)  # noqa: T201
    disks, memories = zip(*looks, strict=True)
    assert max(disks[5:]) <= max(disks[:5]) + 20
    assert max(memories[5:]) <= max(memories[:5]) * 1.3
