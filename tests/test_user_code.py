"""User code, checked with mypy --strict against the package as it is installed: `py.typed` says it may be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leash
from leash import Consumer, Message
from leash.errors import ConfigError

SRC = Path(leash.__file__).parent.parent

HEAD = """
from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pydantic

from leash import Consumer, Message, Partitions, Publisher, Queue, Retry


@dataclass
class Order:
    number: int


class Model(pydantic.BaseModel):
    number: int


def log(message: Message, call_next: Any) -> object:
    return call_next(message)


consumer = Consumer("amqp://localhost", [Queue("orders", declare="quorum"), "events"], middleware=[log])
publisher = Publisher("amqp://localhost")
"""

RIGHT = """
@consumer.handler
def plain(message: Message) -> None:
    body: bytes = message.body

@consumer.handler
async def asynchronous(message: Message) -> None: ...

@consumer.handler("orders", retry=Retry(tries=3, on=(TimeoutError,), give_up_on=ValueError, jitter=0.1))
def typed(order: Order, message: Message) -> None: ...

@consumer.handler("orders", "events")
async def model(model: Model) -> int:
    return model.number

@consumer.handler("events", retry=None)
def parsed(event: dict[str, Any]) -> None: ...

@consumer.handler
def lines(lines: list[str]) -> None: ...

@consumer.handler
def text(text: str, message: Message) -> None: ...

@consumer.handler
def raw(body: bytes) -> None: ...

@consumer.batch_handler(100, wait=1.0)
def batch(messages: list[Message]) -> None: ...

consumer.handler(lambda message: print(message.body))
order: Order = Order(1)
typed(order, publisher)  # type: ignore[arg-type]

with publisher:
    number: str = publisher.publish(order, "orders").message_id
    count: int = publisher.publish_many((b"x" for _ in range(3)), exchange="e", routing_key="k")
    publisher.send({"a": 1}, partitions=Partitions("p", {"p.0": 1}), key="k", headers={"h": 1}).result()

async def main() -> bool:
    async with Publisher("amqp://localhost", timeout=None) as other:
        await other.send(b"x", "orders")
        return (await other.apublish("text", "orders")).resent
"""

WRONG = {
    "no argument": "@consumer.handler\ndef work() -> None: ...",
    "no argument for a queue": "@consumer.handler('orders')\ndef work() -> None: ...",
    "three arguments": "@consumer.handler\ndef work(order: Order, message: Message, more: int) -> None: ...",
    "the message first": "@consumer.handler\ndef work(message: Message, order: Order) -> None: ...",
    "a type that cannot be decoded": "@consumer.handler\ndef work(consumer: Consumer) -> None: ...",
    "the same for a queue": "@consumer.handler('orders')\ndef work(c: Consumer) -> None: ...",
    "one message for a batch": "@consumer.batch_handler(10)\ndef work(message: Message) -> None: ...",
    "no function": "consumer.handler(1)",
    "a retry that is a number": "@consumer.handler('orders', retry=3)\ndef work(m: Message) -> None: ...",
    "middleware of one argument": "Consumer('amqp://localhost', ['q'], middleware=[lambda message: None])",
    "an unknown option": "publisher.publish(b'', 'q', queues='q')",
    "a queue that is a number": "publisher.publish(b'', 1)",
    "on that is a text": "Retry(on='TimeoutError')",
}


def check(folder: Path, code: str) -> str:
    (folder / "user.py").write_text(HEAD + code)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder.parent / "cache"), "user.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.program
def test_what_is_right_passes(tmp_path: Path) -> None:
    assert check(tmp_path, RIGHT).startswith("Success")


@pytest.mark.program
def test_what_is_wrong_is_refused(tmp_path: Path) -> None:
    """In one run; each piece has a line of its own to complain about."""
    code = HEAD
    places: dict[str, range] = {}
    for name, piece in WRONG.items():
        first = code.count("\n") + 1
        code += piece.replace("def work", f"def work{len(places)}") + "\n"
        places[name] = range(first, code.count("\n") + 1)
    told = check(tmp_path, code.removeprefix(HEAD))
    lines = {int(found[1]) for found in re.finditer(r"^user\.py:(\d+): error", told, re.MULTILINE)}
    assert [name for name, place in places.items() if not lines & set(place)] == [], told
    assert lines <= {line for place in places.values() for line in place}, told


def test_the_package_says_that_it_is_typed() -> None:
    assert (SRC / "leash" / "py.typed").exists()


def nothing() -> None: ...


def too_many(a: bytes, b: Message, c: int) -> None: ...


@pytest.mark.parametrize("wrong", [nothing, too_many, lambda: None])
def test_a_wrong_number_of_arguments_fails_when_decorated(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="of one or two arguments"):
        Consumer("amqp://localhost", ["q"]).handler(wrong)
