"""Runs a consumer in virtual time and without a broker: its handler, shares, retries and limits."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from leash.amqp.properties import Properties, encode_properties, with_headers
from leash.consumer import Consumer, Message
from leash.consumer.copies import dead_queue
from leash.consumer.engine import Engine
from leash.consumer.session import Parts, Session
from leash.consumer.settle import Outcome
from leash.consumer.stream_settings import StreamQueue
from leash.errors import ConfigError, Unfinished
from leash.fleet.budgets.permit_thread import Account
from leash.flow.lane import PAUSED
from leash.testing.broker import MemoryBroker, MemoryQueue, Stored
from leash.testing.loop import VirtualLoop
from leash.testing.virtual import (
    InstantRepublisher,
    MemoryConnector,
    TaskThread,
    VirtualDesk,
    VirtualPool,
    VirtualUpkeep,
    wait,
)
from leash.units import SECOND, nanoseconds

Takes = float | Callable[[Any], float]


@dataclass(slots=True)
class Handled:
    """One call of the handler with one message."""

    at: float
    """Virtual seconds since the start."""
    message: Message
    error: BaseException | None = None
    """What the handler raised."""

    @property
    def queue(self) -> str:
        return self.message.queue

    @property
    def body(self) -> bytes:
        return self.message.body


class Settled(NamedTuple):
    """How a delivery ended: done, republished (for a later try, or parked), rejected, requeued and so on."""

    at: float
    queue: str
    body: bytes
    outcome: str


class Rehearsal:
    """Runs `consumer` in memory. `takes`: virtual seconds for each call of the handler, or a function of its
    argument. For plain tests: it drives its own event loop, so it cannot run inside another one.
    """

    def __init__(self, consumer: Consumer, *, takes: Takes = 0.001) -> None:
        if not callable(takes):
            nanoseconds("takes", takes)
        for queue in consumer.settings.queues:
            if isinstance(queue, StreamQueue):
                raise ConfigError("streams", queue.name, "queues: a rehearsal has no streams")
        if consumer.super_stream is not None:
            raise ConfigError(
                "super_stream", consumer.super_stream.stream, "queues: a rehearsal has no streams"
            )
        self.consumer = consumer
        self.handled: list[Handled] = []
        self.settled: list[Settled] = []
        self._takes = takes
        self._loop = VirtualLoop()
        self._broker = MemoryBroker(self._loop.clock.now, self._loop.later)
        self._changed = asyncio.Event()
        self._broker.changed = self._changed.set
        self._session: Session | None = None

    def __enter__(self) -> Rehearsal:
        for queue in self.consumer.settings.queues:
            self.declare(queue.name)
        try:
            self.consumer.start(self._parts())
            self._session = self.consumer.session
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._session is not None:
                self.stop()
        finally:
            self._close()

    def _parts(self) -> Parts:
        loop, broker = self._loop, self._broker

        def pool(engine: Engine, handler: Callable[..., Any], *rest: Any) -> VirtualPool:
            engine.settler.on_settled = lambda queue, body, outcome: self.settled.append(
                Settled(self.now, queue, body, outcome.value)
            )
            return VirtualPool(loop, engine, self._acted(handler), *rest)

        def connector(*arguments: Any) -> MemoryConnector:
            made = MemoryConnector(*arguments)
            made.broker = broker
            return made

        def desk(_: Any, accounts: list[Account], lock: Any, __: Any, changed: Any, ___: str) -> VirtualDesk:
            return VirtualDesk(loop, accounts, lock, changed)

        return Parts(
            loop.clock,
            partial(InstantRepublisher, broker),
            pool,
            connector,
            partial(VirtualUpkeep, loop),
            desk,
        )

    def _acted(self, handler: Callable[..., Any]) -> Callable[[Any], Awaitable[None]]:
        """The handler, recorded, and taking virtual time."""

        async def act(given: Any) -> None:
            seen = [Handled(self.now, each) for each in (given if isinstance(given, list) else [given])]
            self.handled += seen
            try:
                result = handler(given)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                for each in seen:
                    each.error = error
                raise
            finally:
                await asyncio.sleep(self._takes(given) if callable(self._takes) else self._takes)

        return act

    # --- the broker's side ---

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Declare a queue; the consumer's own exist already, and get these arguments."""
        self._broker.declare(queue, arguments or {}, again=True)

    def publish(
        self,
        queue: str,
        bodies: bytes | Iterable[bytes],
        *,
        headers: Mapping[str, Any] | None = None,
        properties: Properties | None = None,
        exchange: str = "",
        routing_key: str | None = None,
    ) -> None:
        """Publish one or more messages to a queue; the handler sees exchange and routing key as given."""
        raw = encode_properties(properties)
        if headers:
            raw = with_headers(raw, headers)
        for body in [bodies] if isinstance(bodies, bytes) else bodies:
            if not isinstance(body, bytes):
                raise ConfigError("bodies", body, "bytes, or a list of them")
            self._broker.publish(queue, body, exchange, queue if routing_key is None else routing_key, raw)

    def depth(self, queue: str) -> int:
        """How many messages are ready."""
        return len(self._broker.queue(queue).ready)

    def messages(self, queue: str) -> list[Stored]:
        """The ready messages of a queue, in order."""
        return sorted(self._broker.queue(queue).ready)

    def parked(self, queue: str) -> list[Stored]:
        """The parked messages of a queue, with the reason in their headers."""
        return self.messages(dead_queue(queue)) if dead_queue(queue) in self._broker.queues else []

    # --- time ---

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._loop.ns / SECOND

    def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        nanoseconds("seconds", seconds)
        self._drive(asyncio.sleep(seconds))

    def run(self, most: float = 600.0) -> None:
        """Run until every queue is empty, including later tries; paused queues may keep their messages."""
        deadline = self.now + most

        async def until_done() -> None:
            while self._unfinished() and self.now < deadline:
                self._changed.clear()
                await wait(self._changed, deadline - self.now)

        self._drive(until_done())
        left = self._unfinished()
        if left:
            counts = ", ".join(f"{q.name!r} {len(q.ready)} ready, {q.unsettled} unsettled" for q in left)
            raise Unfinished(f"after {most:g} virtual seconds there is still work: {counts}")

    def _unfinished(self) -> list[MemoryQueue]:
        lanes = self.consumer.session.engine.flow.lanes
        active = {name for name, lane in lanes.items() if not lane.blocks & PAUSED}
        return [
            queue
            for queue in self._broker.queues.values()
            if (queue.name in active or queue.arguments.get("x-dead-letter-routing-key") in active)
            and (queue.ready or queue.unsettled)
        ]

    def stop(self) -> bool:
        """Stop the consumer as in production: running handlers finish, the other messages return to their
        queues.
        """
        return self.consumer.stop()

    # --- results ---

    @property
    def order(self) -> list[tuple[str, bytes]]:
        """Queue and body of everything that was handled, in the order of beginning."""
        return [(each.queue, each.body) for each in self.handled]

    def outcomes(self, outcome: str, queue: str | None = None) -> list[bytes]:
        """The bodies of the deliveries with this outcome; `leash.consumer.settle` lists the outcomes."""
        known = [each.value for each in Outcome]
        if outcome not in known:
            raise ConfigError("outcome", outcome, f"one of {', '.join(known)}")
        return [each.body for each in self.settled if each.outcome == outcome and queue in (None, each.queue)]

    def acked(self, queue: str | None = None) -> list[bytes]:
        """The bodies of the messages that were acked."""
        return self.outcomes("done", queue)

    def retried(self, queue: str | None = None) -> list[bytes]:
        """The bodies of the messages that failed and were to be tried again, once for each try."""
        return [
            each.body
            for each in self.handled
            if each.error is not None
            and each.message.outcome in (None, Outcome.REPUBLISHED)  # not settled by hand before it failed
            and self._tried_again(each)
            and queue in (None, each.queue)
        ]

    def _tried_again(self, each: Handled) -> bool:
        assert each.error is not None
        retry = self.consumer.settings.retry_of(each.queue)
        return retry.wants(each.error) and retry.wait(each.message.tries + 1) is not None

    def shares(self, since: float = 0.0) -> dict[str, float]:
        """Each queue's share of the handled messages."""
        counts = Counter(each.queue for each in self.handled if each.at >= since)
        return {
            queue.name: counts[queue.name] / (sum(counts.values()) or 1)
            for queue in self.consumer.settings.queues
        }

    # --- inside ---

    def _drive(self, work: Any) -> None:
        self._loop.run_until_complete(work)
        session = self.consumer.session
        for thread in (*session.pool.threads, session.upkeep.thread):
            if isinstance(thread, TaskThread) and thread.task is not None and thread.task.done():
                thread.task.result()

    def _close(self) -> None:
        self.consumer.reset()
        loop = self._loop
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
