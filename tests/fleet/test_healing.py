"""Lost tokens are noticed and replaced, and the bound holds."""

from __future__ import annotations

import time

import pytest

from leash import Budget
from leash.amqp import Connection, connect, topology
from leash.fleet.budgets import lifecycle, permit_thread, token_census
from leash.fleet.budgets.state_at_broker import card_queue, ready, wheel_queue
from tests.fleet.kit import excess
from tests.waiting import until

RATE, BURST = 100, 20


def test_a_purge_by_hand_heals(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_census, "WINDOW", 1.0)
    monkeypatch.setattr(permit_thread, "CHECK", 0.3)
    starts = []
    with Budget("sms", rate=RATE, burst=BURST).open(uri) as till:
        till.take()
        starts.append(time.monotonic_ns())
        with connect(uri) as connection, connection.channel() as channel:
            before = lifecycle.find(connection, "sms")
            assert before is not None
            wheel = wheel_queue("sms", before.generation)
            until(lambda: ready(connection, wheel) == BURST, what="all are back")
            assert topology.purge_queue(channel, wheel) == BURST
        for _ in range(2 * BURST):
            assert till.take(timeout=60)
            starts.append(time.monotonic_ns())
    with connect(uri) as connection:
        after = lifecycle.find(connection, "sms")
    assert after is not None
    assert after.generation > before.generation
    assert after.numbers == before.numbers
    assert excess(starts, RATE, BURST, 0.1) <= 0


def test_some_lost_tokens_are_noticed_while_the_others_are_used(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_census, "WINDOW", 1.0)
    monkeypatch.setattr(permit_thread, "CHECK", 0.3)
    starts = []
    with Budget("sms", rate=RATE, burst=BURST).open(uri) as till, connect(uri) as connection:
        before = lifecycle.find(connection, "sms")
        assert before is not None
        with connection.channel() as channel:
            lost = channel.get(wheel_queue("sms", before.generation))
            assert lost is not None
            channel.ack(lost.method.delivery_tag)  # type: ignore[attr-defined]
        deadline = time.monotonic() + 60
        while (
            card := lifecycle.find(connection, "sms")
        ) is not None and card.generation == before.generation:
            assert time.monotonic() < deadline
            if till.take(timeout=1):
                starts.append(time.monotonic_ns())
        assert till.take(timeout=60)
        starts.append(time.monotonic_ns())
    assert excess(starts, RATE, BURST, 0.1) <= 0


def test_a_whole_wheel_is_left_alone(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_census, "WINDOW", 3.0)
    monkeypatch.setattr(permit_thread, "CHECK", 0.2)
    verdicts = []
    judge = token_census.Census.take

    def judged(self: token_census.Census, connection: Connection) -> bool:
        verdicts.append(judge(self, connection))
        return verdicts[-1]

    monkeypatch.setattr(token_census.Census, "take", judged)
    with Budget("sms", rate=RATE, burst=BURST).open(uri) as till, connect(uri) as connection:
        before = lifecycle.find(connection, "sms")
        while len(verdicts) < 25:  # five seconds at least: the last ten of them knew enough
            till.take()
        assert lifecycle.find(connection, "sms") == before
    assert not any(verdicts)


def test_a_card_that_was_purged_is_put_back(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permit_thread, "CHECK", 0.2)
    with Budget("sms", rate=RATE, burst=BURST).open(uri) as till, connect(uri) as connection:
        before = lifecycle.find(connection, "sms")
        with connection.channel() as channel:
            assert topology.purge_queue(channel, card_queue("sms")) == 1
        deadline = time.monotonic() + 60
        while ready(connection, card_queue("sms")) != 1:
            assert time.monotonic() < deadline
            till.take()
        assert lifecycle.find(connection, "sms") == before
