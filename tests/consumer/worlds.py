"""Two worlds for one suite: a real broker in real time, and `leash.testing` in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from leash import Consumer
from leash.amqp import Channel, Outgoing, Properties, Publisher, decode_properties
from leash.amqp.topology import declare_queue
from leash.testing import Rehearsal
from tests.consumer.kit import depth, running, until

Headers = Mapping[str, Any]


class World(Protocol):
    uri: str

    def declare(self, queue: str, arguments: Headers | None = None) -> None: ...

    def publish(self, queue: str, bodies: list[bytes], headers: Headers | None = None) -> None: ...

    def play(self, consumer: Consumer) -> Any:
        """A context in which it runs."""

    def until(self, condition: Callable[[], object]) -> None: ...

    def sleep(self, seconds: float) -> None: ...

    def spend(self, seconds: float) -> None:
        """What a plain handler calls to take its time."""

    def now(self) -> float: ...

    def depth(self, queue: str) -> int: ...

    def peek(self, queue: str) -> tuple[bytes, Headers]:
        """Body and headers of the first message."""


class Live:
    def __init__(self, channel: Channel, uri: str) -> None:
        self.uri = uri
        self._channel = channel

    def declare(self, queue: str, arguments: Headers | None = None) -> None:
        declare_queue(self._channel, queue, arguments=arguments)

    def publish(self, queue: str, bodies: list[bytes], headers: Headers | None = None) -> None:
        properties = Properties(headers=dict(headers)) if headers else None
        with Publisher(self._channel.connection) as publisher:
            publisher.publish(Outgoing(body, "", queue, properties) for body in bodies)

    @contextmanager
    def play(self, consumer: Consumer) -> Iterator[None]:
        with running(consumer):
            yield

    def until(self, condition: Callable[[], object]) -> None:
        until(condition)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def spend(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def depth(self, queue: str) -> int:
        return depth(self._channel, queue)

    def peek(self, queue: str) -> tuple[bytes, Headers]:
        with self._channel.connection.channel() as channel:
            found = channel.get(queue)
            assert found is not None
            return found.body, decode_properties(found.properties).headers or {}


class Memory:
    uri = "amqp://nowhere.invalid"

    def __init__(self) -> None:
        self._stage: Rehearsal | None = None
        self._before: list[Callable[[Rehearsal], None]] = []
        self._spent = 0.0

    def _do(self, action: Callable[[Rehearsal], None]) -> None:
        if self._stage is None:
            self._before.append(action)
        else:
            action(self._stage)

    def declare(self, queue: str, arguments: Headers | None = None) -> None:
        self._do(lambda stage: stage.declare(queue, arguments))

    def publish(self, queue: str, bodies: list[bytes], headers: Headers | None = None) -> None:
        self._do(lambda stage: stage.publish(queue, bodies, headers=headers))

    @contextmanager
    def play(self, consumer: Consumer) -> Iterator[None]:
        with Rehearsal(consumer, takes=self._takes) as self._stage:
            for action in self._before:
                action(self._stage)
            yield

    def _takes(self, _: object) -> float:
        spent, self._spent = self._spent, 0.0
        return spent

    def until(self, condition: Callable[[], object]) -> None:
        assert self._stage is not None
        deadline = self._stage.now + 60
        while not condition():
            assert self._stage.now < deadline, "not within 60 virtual seconds"
            self._stage.advance(0.005)

    def sleep(self, seconds: float) -> None:
        assert self._stage is not None
        self._stage.advance(seconds)

    def spend(self, seconds: float) -> None:
        self._spent += seconds

    def now(self) -> float:
        assert self._stage is not None
        return self._stage.now

    def depth(self, queue: str) -> int:
        assert self._stage is not None
        return self._stage.depth(queue)

    def peek(self, queue: str) -> tuple[bytes, Headers]:
        assert self._stage is not None
        found = self._stage.messages(queue)[0]
        return found.body, found.headers


def bodies(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]
