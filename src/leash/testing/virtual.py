"""The consumer's parts in virtual time: their decisions are inherited, only their waiting differs.

All of it runs on one loop in one thread. Workers are the tasks of the asynchronous pool, for plain handlers
too; the upkeep runs in a task; copies of failed messages are published at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from leash.amqp import Connection, Outgoing, Uri
from leash.consumer.copy_courier import Courier, Republisher
from leash.consumer.engine import Engine
from leash.consumer.message import Message
from leash.consumer.reconnect import Connector
from leash.consumer.tasks import TaskPool
from leash.consumer.upkeep import TICK, Upkeep
from leash.fleet.budgets.permit_thread import Account, Desk
from leash.fleet.budgets.settings import Terms
from leash.policies.tokens import TokenBucket
from leash.testing.broker import MemoryBroker
from leash.testing.connection import MemoryConnection
from leash.testing.loop import VirtualLoop


class _Bell(threading.Event):
    """Setting it calls back, a moment later."""

    def __init__(self, loop: VirtualLoop, action: Callable[[], object]) -> None:
        super().__init__()
        self._loop = loop
        self._action = action

    def set(self) -> None:
        super().set()
        self._loop.call_soon(self._action)


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for up to `seconds` of virtual time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class TaskThread(threading.Thread):
    """A coroutine of the loop with the interface of a thread; joining it lets virtual time pass."""

    def __init__(self, loop: VirtualLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._loop = loop
        self._work = work
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = self._loop.create_task(self._work())

    def is_alive(self) -> bool:
        return self.task is not None and not self.task.done()

    def join(self, timeout: float | None = None) -> None:
        if self.task is not None:
            self._loop.run_until_complete(asyncio.wait({self.task}, timeout=timeout))


class VirtualPool(TaskPool):
    def __init__(self, loop: VirtualLoop, engine: Engine, *rest: Any) -> None:
        super().__init__(engine, *rest)
        self._due = _Bell(loop, engine.drain)
        self.threads = [TaskThread(loop, self.main)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def leave_later(self, _: Callable[[], object]) -> bool:
        """Do nothing: the end of the rehearsal leaves."""
        if self._loop is None or not self._loop.is_running():
            return False
        self.engine.stop()
        return True

    def _cancelled(self) -> None:
        """Let the cancellation through: the loop is ending."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


class MemoryConnector(Connector):
    """Connects to the broker in memory."""

    broker: MemoryBroker

    def dial(self, uri: Uri, avoid: str) -> Connection:  # noqa: ARG002
        return MemoryConnection(self.broker, uri)


class VirtualUpkeep(Upkeep):
    """Runs in a task."""

    def __init__(self, loop: VirtualLoop, engine: Engine, connector: Connector, *rest: Any) -> None:
        super().__init__(engine, connector, *rest)
        self._due = asyncio.Event()
        self._told = (engine, connector)
        engine.nudge = _Bell(loop, self._due.set)
        self.thread = TaskThread(loop, self._take_turns)

    async def _take_turns(self) -> None:
        engine, connector = self._told
        while not connector.left.is_set():
            self.turn()
            engine.emit()
            await wait(self._due, TICK)
            self._due.clear()


class VirtualDesk(Desk):
    """Every budget is a token bucket, or a number of permits, that only this consumer uses."""

    def __init__(
        self, loop: VirtualLoop, accounts: list[Account], lock: Any, changed: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._accounts = list(accounts)
        self._changed = changed
        self._lock = lock
        self._buckets = {
            each.budget.name: TokenBucket(each.budget.per_second, each.budget.size)
            for each in accounts
            if each.budget.per_second is not None
        }
        self.nudge = _Bell(loop, self._serve)
        self.on_numbers: Callable[[Terms], object] = lambda _: None

    def open(self) -> None:
        for each in self._accounts:
            self.on_numbers(each.budget)

    def close(self) -> None:
        """There is no broker to return permits to."""

    abandon = close

    def _serve(self) -> None:
        now = self._loop.clock.now()
        with self._lock:
            for budget, permits in self._accounts:
                bucket = self._buckets.get(budget.name)
                permits.spent = 0
                free = budget.size - permits.at_work - permits.available(now) if bucket is None else 0
                count = min(permits.short, free if bucket is None else bucket.available(now))
                if count > 0:
                    if bucket is not None:
                        bucket.take(now, count)
                    permits.grant(now, count)
                    self._changed()
                if permits.short and bucket is not None:
                    self._loop.later(max(1, bucket.wait(now)), self._serve)


class InstantRepublisher(Republisher):
    def __init__(self, broker: MemoryBroker, *rest: Any) -> None:
        super().__init__(*rest)
        self._broker = broker

    def put(self, message: Message, copy: Outgoing) -> None:
        self.pending += 1
        courier = self.couriers.setdefault(copy.routing_key, Courier(self, copy.routing_key))
        courier.deliver([(message, copy)])

    def check(self) -> None:
        """Everyone may publish."""

    def connect(self, avoid: str) -> Connection:  # noqa: ARG002
        return MemoryConnection(self._broker, self.uri)
