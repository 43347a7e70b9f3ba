"""A budget in any code: taking, holding, and what becomes of it when something happens to it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from leash import Budget
from leash.amqp import connect, topology
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.errors import BudgetError, ConfigError
from leash.fleet.budgets import lifecycle
from leash.fleet.budgets.state_at_broker import (
    card_queue,
    cooling_queue,
    ready,
    seen_queue,
    turn_queue,
    wheel_queue,
)
from tests.fleet.kit import excess
from tests.waiting import until


def card_of(uri: str, name: str) -> Any:
    with connect(uri) as connection:
        return lifecycle.find(connection, name)


def test_takes_stay_within_the_bound(uri: str) -> None:
    starts = []
    with Budget("sms", rate=100, burst=10).open(uri) as till:
        for _ in range(40):
            assert till.take()
            starts.append(time.monotonic_ns())
    assert excess(starts, 100, 10, 0.1) <= 0


def test_a_coroutine_waits_without_stopping_its_loop(uri: str) -> None:
    async def work() -> list[int]:
        starts: list[int] = []
        with Budget("sms", rate=100, burst=5).open(uri) as till:

            async def one() -> None:
                await till.atake()
                starts.append(time.monotonic_ns())

            await asyncio.gather(*[one() for _ in range(20)])
            waiting = asyncio.create_task(till.atake(5))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await till.atake(1)  # whoever left is not waited for
        return starts

    starts = asyncio.run(work())
    assert len(starts) == 20
    assert excess(sorted(starts), 100, 5, 0.1) <= 0


def test_a_take_gives_up_when_it_is_told_to(uri: str) -> None:
    with Budget("slow", rate="1/1000", burst=1).open(uri) as till:
        assert till.take()
        assert not till.take(timeout=0.2)


def test_what_nobody_uses_is_given_back(uri: str) -> None:
    with Budget("sms", rate="1/100", burst=20).open(uri) as till:
        assert till.take()
        wheel = wheel_queue("sms", card_of(uri, "sms").generation)
        with connect(uri) as connection:
            until(lambda: ready(connection, wheel) == 19)
    assert till.permits.taken == 1


def test_a_cost_of_many_tokens_is_gathered_by_one_at_a_time(uri: str) -> None:
    budget = Budget("llm", rate=2000, burst=400)
    done: list[int] = []

    def work() -> None:
        with budget.open(uri) as till:
            for _ in range(3):
                till.take(300)  # two of them never fit: with a part each, both would wait forever
                done.append(time.monotonic_ns())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 9
    assert excess(sorted(done * 300), 2000, 400, 0.1) <= 0


def test_a_cost_above_the_burst_does_not_wait_forever_and_is_paid_in_full(uri: str) -> None:
    with Budget("llm", rate=200, burst=20).open(uri) as till:
        till.take(60)
        begun = time.monotonic()
        till.take(1)
        assert time.monotonic() - begun >= 0.2  # 40 that were owed, at 200 a second, and one
        assert till.permits.debt == 0


def test_hold_lets_so_many_be_at_work_and_no_more(uri: str) -> None:
    at_work = most = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal at_work, most
        with Budget("pdf", at_once=3).open(uri) as till:
            for _ in range(4):
                with till.hold():
                    with lock:
                        at_work += 1
                        most = max(most, at_work)
                    time.sleep(0.01)
                    with lock:
                        at_work -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most <= 3
    with connect(uri) as connection:  # none is lost
        until(lambda: ready(connection, wheel_queue("pdf", card_of(uri, "pdf").generation)) == 3)


def test_take_and_hold_are_for_different_budgets(uri: str) -> None:
    with Budget("pdf", at_once=3).open(uri) as till, pytest.raises(ConfigError, match=r"use hold\(\)"):
        till.take()
    with Budget("sms", rate=3).open(uri) as till, pytest.raises(ConfigError, match=r"use take\(\)"):
        till.hold()


def test_whoever_waits_hears_that_it_was_closed(uri: str) -> None:
    till = Budget("slow", rate="1/1000", burst=1).open(uri)
    till.take()
    said: list[str] = []

    def wait() -> None:
        try:
            till.take()
        except BudgetError as error:
            said.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    till.close()
    thread.join(30)
    assert said == ["budget 'slow' is closed"]
    with pytest.raises(BudgetError, match="closed"):
        till.take()


def test_other_numbers_are_refused_with_both_in_the_error(uri: str) -> None:
    Budget("sms", rate=50, burst=100).open(uri).close()
    Budget("sms", rate="3000", per=60, burst=100).open(uri).close()  # means the same
    with pytest.raises(ConfigError, match=r"rate=60 per second, burst=100.*made with rate=50 per second"):
        Budget("sms", rate=60, burst=100).open(uri)
    with pytest.raises(ConfigError, match=r"at_once=3, but it was made with rate=50"):
        Budget("sms", at_once=3).open(uri)


def test_a_missing_permission_is_named(uri: str, broker: Broker) -> None:
    management, place = broker.management, parse(uri)
    management.ask("PUT", "/api/users/nobody", {"password": "nothing", "tags": ""})
    management.ask(
        "PUT", f"/api/permissions/{place.vhost}/nobody", {"configure": "^$", "write": ".*", "read": ".*"}
    )
    other = f"amqp://nobody:nothing@{place.hosts[0][0]}:{place.hosts[0][1]}/{place.vhost}"
    with pytest.raises(BudgetError, match=r"configure, write and read on 'leash\\\.budget"):
        Budget("sms", rate=50).open(other)


def test_set_changes_the_numbers_under_those_who_use_it(uri: str) -> None:
    budget = Budget("sms", rate=10, burst=2)
    with budget.open(uri) as till:
        assert till.take(2)
        with connect(uri) as connection:
            card = lifecycle.find(connection, "sms")
            assert card is not None
            lifecycle.renew(connection, "sms", card, Budget("sms", rate=500, burst=50).numbers)
        for _ in range(60):
            assert till.take(timeout=30)
    budget.open(uri).close()  # the code may go on naming the old ones
    assert card_of(uri, "sms").numbers["burst"] == 50


def test_a_deleted_budget_is_made_anew_by_whoever_uses_it(uri: str) -> None:
    with Budget("sms", rate=100, burst=50).open(uri) as till:
        starts = []
        for turn in range(80):
            if turn == 50:  # all of it was just used
                with connect(uri) as connection:
                    assert lifecycle.delete(connection, "sms")
            assert till.take(timeout=30)
            starts.append(time.monotonic_ns())
    assert excess(starts, 100, 50, 0.1) <= 0
    with connect(uri) as connection:
        card = card_of(uri, "sms")
        assert lifecycle.delete(connection, "sms")
        assert not lifecycle.delete(connection, "sms")
        names = [card_queue("sms"), seen_queue("sms")]
        names += [queue("sms", card.generation) for queue in (wheel_queue, cooling_queue, turn_queue)]
        assert [ready(connection, name) for name in names] == [None] * 5


def test_a_wheel_that_was_not_finished_is_made_again(uri: str) -> None:
    Budget("sms", rate=100, burst=5).open(uri).close()
    card = card_of(uri, "sms")
    with connect(uri) as connection, connection.channel() as channel:
        topology.delete_queue(channel, wheel_queue("sms", card.generation))
    with Budget("sms", rate=100, burst=5).open(uri) as till:
        assert till.take(timeout=30)
    assert card_of(uri, "sms").generation > card.generation


def test_fewer_or_more_at_once_while_some_are_at_work(uri: str) -> None:
    with Budget("pdf", at_once=3).open(uri) as till, connect(uri) as connection:
        till.acquire()
        assert lifecycle.resize(connection, "pdf", 5, 5.0).numbers == {"at_once": 5}
        for _ in range(4):
            assert till.acquire(timeout=30)
        with pytest.raises(BudgetError, match="4 more than at_once=1 are still in use, so at_once is 5"):
            lifecycle.resize(connection, "pdf", 1, 0.1)
        for _ in range(4):
            till.release()
        assert lifecycle.resize(connection, "pdf", 1, 30.0).numbers == {"at_once": 1}
        assert not till.acquire(timeout=0.3)
        till.release()
        assert till.acquire(timeout=30)
        till.release()
