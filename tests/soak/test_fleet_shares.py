"""Shares over processes: each process stays within one round, so all of them within as many as there are."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leash.amqp import Channel, Outgoing, Publisher
from leash.amqp.topology import declare_queues
from tests.consumer.kit import TRANSIENT, depth, until
from tests.soak.shares_app import NAMES, QUANTA, RECORD

PROCESSES = 8
ROUNDS = 800
"""Every queue has messages for this many."""
COMPARED = 0.6
"""The part of them in which no queue can run dry, whatever the windows hold."""


@pytest.mark.broker
@pytest.mark.soak
def test_eight_processes_are_within_eight_rounds_and_each_within_one(
    channel: Channel, uri: str, tmp_path: Path
) -> None:
    declare_queues(channel, [(name, "classic", {}) for name in NAMES])
    with Publisher(channel.connection) as publisher:
        publisher.publish(
            Outgoing(b"x", "", name, TRANSIENT)
            for _ in range(ROUNDS)
            for name, quantum in zip(NAMES, QUANTA, strict=True)
            for _ in range(quantum)
        )
    files = [tmp_path / f"{number}" for number in range(PROCESSES)]
    commands = [[sys.executable, "-m", "tests.soak.shares_app", uri, str(file)] for file in files]
    processes = [subprocess.Popen(command) for command in commands]
    try:
        until(lambda: all(depth(channel, name) == 0 for name in NAMES))
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(120) for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            process.kill()
    records = sorted(
        (*RECORD.unpack_from(data, at), number)
        for number, data in enumerate(file.read_bytes() for file in files)
        for at in range(0, len(data), RECORD.size)
    )
    assert len(records) == ROUNDS * sum(QUANTA)
    assert len({number for *_, number in records}) > 1, "one process had it all: nothing was shared"
    worst_each, worst_all = spreads(records)
    logging.info("spread of one process at most %.2f rounds, of all %.2f", worst_each, worst_all)
    assert worst_each <= 1
    assert worst_all <= PROCESSES


def spreads(records: list[tuple[int, int, int]]) -> tuple[float, float]:
    """The largest spread of one process, and of all together, while every queue has messages."""
    own = [[0] * len(QUANTA) for _ in range(PROCESSES)]
    total = [0] * len(QUANTA)
    worst_each = worst_all = 0.0
    for _, queue, number in records:
        own[number][queue] += 1
        total[queue] += 1
        if total[queue] > COMPARED * ROUNDS * QUANTA[queue]:
            break
        worst_each = max(worst_each, spread(own[number]))
        worst_all = max(worst_all, spread(total))
    return worst_each, worst_all


def spread(counts: list[int]) -> float:
    positions = [count / quantum for count, quantum in zip(counts, QUANTA, strict=True)]
    return max(positions) - min(positions)
