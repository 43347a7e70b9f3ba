"""The consumer's own parts in virtual time: what they decide is inherited, only the waiting is other.

All of it runs on one loop in one thread. Workers are the tasks of the asynchronous pool, for plain handlers
too; the conductor takes its turns in a task; copies of failed messages are published on the spot.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from leash.amqp import Connection, Outgoing
from leash.consumer.conductor import TICK, Conductor
from leash.consumer.engine import Engine
from leash.consumer.link import Link
from leash.consumer.message import Message, Raw
from leash.consumer.outbox import Outbox
from leash.consumer.republish import Courier, Republisher
from leash.consumer.settle import Outcome
from leash.consumer.workers import AsyncPool
from leash.flow import Shed
from leash.testing.broker import MemoryBroker
from leash.testing.connection import MemoryConnection
from leash.testing.loop import VirtualLoop

Saw = Callable[[str, bytes, Outcome], None]


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
    """For an event, but no longer than so many virtual seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class TaskThread(threading.Thread):
    """A coroutine of the loop for whoever expects a thread; to join it is to let virtual time go on."""

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


class RecordingEngine(Engine):
    """The engine, telling how each message was settled."""

    saw: Saw

    def settle(self, message: Message, outcome: Outcome, claimed: bool = False) -> bool:
        settled = super().settle(message, outcome, claimed)
        if settled:
            self.saw(message.queue, message.body, outcome)
        return settled

    def _ack(self, done: list[Raw]) -> None:
        for raw in done:
            if raw[6].alive:
                self.saw(raw[6].queue, raw[5], Outcome.DONE)
        super()._ack(done)

    def _give_back(self, link: Link, raws: list[Raw]) -> None:
        if link.alive and not link.spec.ordered:
            for raw in raws:
                self.saw(link.queue, raw[5], Outcome.GIVEN_BACK)
        super()._give_back(link, raws)

    def _shed(self, shed: Shed) -> None:
        outcome = Outcome.GIVEN_BACK if shed.kind == "return" else Outcome.DROPPED
        self.saw(shed.lane, shed.message[5], outcome)
        super()._shed(shed)


class VirtualPool(AsyncPool):
    def __init__(self, loop: VirtualLoop, engine: Engine, *rest: Any) -> None:
        super().__init__(engine, *rest)
        self._due = _Bell(loop, engine.drain)
        self.threads = [TaskThread(loop, self._main)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def leave_later(self, _: Callable[[], object]) -> bool:
        """Here it is the end of the rehearsal that leaves."""
        if self._loop is None or not self._loop.is_running():
            return False
        self.engine.stop()
        return True

    def _cancelled(self) -> None:
        """Here it is the loop that goes down, with whatever still runs."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


class VirtualConductor(Conductor):
    def __init__(self, loop: VirtualLoop, broker: MemoryBroker, engine: Engine, *rest: Any) -> None:
        super().__init__(engine, *rest)
        self._broker = broker
        self._turn_due = asyncio.Event()
        engine.nudge = _Bell(loop, self._turn_due.set)
        self.thread = TaskThread(loop, self._take_turns)

    def _connect(self) -> None:
        connection = MemoryConnection(self._broker, self._uri)
        with self._engine.lock:
            self._engine.outbox = Outbox(connection, self._engine.lock)
        self._connection, self._probing = connection, None

    async def _take_turns(self) -> None:
        while not self._left.is_set():
            self._turn()
            self._emit()
            await wait(self._turn_due, TICK)
            self._turn_due.clear()


class InstantRepublisher(Republisher):
    def __init__(self, broker: MemoryBroker, *rest: Any) -> None:
        super().__init__(*rest)
        self._broker = broker

    def put(self, message: Message, copy: Outgoing) -> None:
        self._pending += 1
        courier = self._couriers.setdefault(copy.routing_key, Courier(self, copy.routing_key))
        courier.deliver([(message, copy)])

    def connect(self) -> Connection:
        return MemoryConnection(self._broker, self._uri)
