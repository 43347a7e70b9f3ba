"""What a budget may be, and the wheel that it becomes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from leash import Budget, Consumer, Queue
from leash.errors import ConfigError
from leash.fleet.budgets.rate_to_tokens import MOST_TOKENS, TURNS, shape_of


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs a rate, or at_once"),
        ({"rate": 1, "at_once": 1}, "not both"),
        ({"rate": 0}, "above 0"),
        ({"rate": -1}, "above 0"),
        ({"rate": "fast"}, "above 0"),
        ({"rate": 1, "burst": 0}, "from 1 to"),
        ({"rate": 1, "burst": 2.5}, "a whole number"),
        ({"rate": 1, "per": 0}, "seconds, above 0"),
        ({"rate": 1, "cost": "time"}, "count or header:<name>"),
        ({"rate": 1, "cost": "header:"}, "count or header:<name>"),
        ({"at_once": 0}, "from 1 to"),
        ({"at_once": 5, "burst": 5}, "a rate with it"),
        ({"rate": 1, "lease": 0}, "from 0.01 to 60"),
        ({"rate": "1/1000000", "burst": 100}, "46 days"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Budget("sms", **arguments)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 201, 7, None])
def test_a_name_is_part_of_queue_names(name: Any) -> None:
    with pytest.raises(ConfigError, match="a budget's name"):
        Budget(name, rate=1)


def test_the_burst_is_a_second_s_worth_unless_given() -> None:
    assert Budget("a", rate=50).size == 50
    assert Budget("a", rate=0.5).size == 1
    assert Budget("a", rate=200_000, per=60).size == 3334
    assert Budget("a", rate=50, burst=7).size == 7
    assert Budget("a", at_once=20).size == 20


@given(some.fractions(Fraction(1, 1000), 10**6), some.integers(1, 10**6))
def test_a_wheel_never_turns_faster_than_its_rate(rate: Fraction, burst: int) -> None:
    shape = shape_of(rate, burst)
    assert sum(shape.worths) == burst
    assert min(shape.worths) >= 1
    assert Fraction(burst * 1000, shape.period) <= rate
    assert len(shape.worths) <= MOST_TOKENS
    assert len(shape.worths) * 1000 <= max(1000, (TURNS + 1) * shape.period + 1000)


def test_one_consumer_names_a_budget_with_the_same_numbers_everywhere() -> None:
    queues = [Queue("a", budget=Budget("sms", rate=50)), Queue("b", budget=Budget("sms", rate=60))]
    with pytest.raises(ConfigError, match="the same numbers"):
        Consumer("amqp://localhost", queues)


def test_what_is_no_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="a Budget, for queue 'a'"):
        Queue("a", budget="sms")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a Budget"):
        Consumer("amqp://localhost", ["a"], budget=50)  # type: ignore[arg-type]


def test_a_batch_handler_cannot_have_one() -> None:
    consumer = Consumer("amqp://localhost", ["a"], budget=Budget("sms", rate=50))
    with pytest.raises(ConfigError, match="permits expire while a batch is gathered"):
        consumer.batch_handler(10)
