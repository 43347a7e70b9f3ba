"""Which functions can be handlers, and how others are refused."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest

from leash import Consumer, Message, Retry
from leash.amqp import Channel
from leash.errors import ConfigError

URI = "amqp://nowhere.invalid"


@dataclass
class Order:
    number: int


def idle(message: Message) -> None: ...


def idle_batch(messages: list[Message]) -> None: ...


def test_every_queue_needs_a_handler_and_only_one() -> None:
    consumer = Consumer(URI, ["a", "b", "c"])
    with pytest.raises(ConfigError, match="decorate it"):
        consumer.start()
    consumer.handler("a")(idle)
    with pytest.raises(ConfigError, match="one for 'b', 'c'"):
        consumer.start()
    with pytest.raises(ConfigError, match="queue 'a', and it has one"):
        consumer.handler("a")(idle)
    with pytest.raises(ConfigError, match="one of 'a', 'b', 'c'"):
        consumer.handler("d")
    consumer.handler(idle)
    with pytest.raises(ConfigError, match="there is one"):
        consumer.handler(idle)
    with pytest.raises(ConfigError, match="one batch handler and no other"):
        consumer.batch_handler(10)(idle_batch)
    with pytest.raises(ConfigError, match="names of queues"):
        consumer.handler()


def by_default(message: Message, spare: int = 3) -> None: ...


def by_keyword(message: Message, *, needed: int) -> None: ...


def body_then_wrong(order: Order, other: int) -> None: ...


def message_twice(message: Message, again: Message) -> None: ...


def unknown(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def impossible(connection: Channel) -> None: ...


class Bound:
    def method(self, order: Order) -> None: ...


def one_or_many(message: Message | list[Message]) -> None: ...


def only_with_message(order: Order, message: Message | None = None) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        by_default,
        Bound().method,
        functools.partial(body_then_wrong, other=1),
        print,
        [].append,
        only_with_message,
        one_or_many,
        lambda *_: None,
    ],
)
def test_functions_of_many_shapes_are_handlers(function: Any) -> None:
    Consumer(URI, ["q"]).handler(function)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (by_keyword, "keyword"),
        (body_then_wrong, "second argument is the Message"),
        (message_twice, "a type for its first argument"),
        (unknown, "Missing"),
        (impossible, "argument of type Message"),
        (1, "names of queues|a function"),
    ],
)
def test_what_cannot_be_called_is_refused_when_decorated(function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Consumer(URI, ["q"]).handler(function)


@pytest.mark.parametrize(
    "wrong", [{"on": "x"}, {"give_up_on": (int,)}, {"jitter": 1}, {"jitter": True}, {"jitter": -0.1}]
)
def test_a_retry_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Retry(**wrong)
