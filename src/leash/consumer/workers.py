"""The workers: what threads and tasks have in common.

Each takes a batch of work, handles it message by message, and reports the result.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from leash.consumer.clock import Clock
from leash.consumer.durations import Durations
from leash.consumer.engine import Engine, Finished
from leash.consumer.message import Message
from leash.consumer.raw_delivery import LINK, TAG, Raw
from leash.flow import Dispatch
from leash.logfmt import logger

log = logger("leash.consumer")

Failed = Callable[[list[Message], BaseException], None]


class Worker:
    """What a worker is doing, for the watchdog, and what `recall` can take from it meanwhile.

    The worker takes messages from the front of `todo` and `recall` from its end; a deque gives each to
    only one of them. `done` only grows, except in a recall.
    """

    __slots__ = ("_clock", "begin", "done", "durations", "queue", "todo", "warned", "work")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin: int | None = None
        self.queue = ""
        self.warned = False
        self.work: list[Dispatch] = []
        self.todo: list[deque[Raw]] = []
        self.done: list[Raw] = []
        self.durations: defaultdict[str, Durations] = defaultdict(Durations)
        """By queue. Only the worker adds to them."""

    def take(self, work: list[Dispatch]) -> None:
        self.done = []
        self.todo = [deque(dispatch.messages) for dispatch in work]
        self.work = work

    def at(self, queue: str) -> int:
        self.begin = now = self._clock.now()
        self.queue = queue
        self.warned = False
        return now


class Batch:
    """How many messages a batch handler wants, and how long it waits for them, in ns."""

    __slots__ = ("size", "wait")

    def __init__(self, size: int, wait: int) -> None:
        self.size = size
        self.wait = wait


class Pool:
    """`count` workers around one handler."""

    def __init__(
        self, engine: Engine, handler: Callable[..., Any], count: int, batch: Batch | None, failed: Failed
    ) -> None:
        self.engine = engine
        self.handler = handler
        self.batch = batch
        self.failed = failed
        self.workers = [Worker(engine.clock) for _ in range(count)]
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        raise NotImplementedError

    def join(self, deadline: int) -> bool:
        """Wait until all are done; False: some were not at the deadline."""
        for thread in self.threads:
            if thread.is_alive():
                thread.join(max(0, deadline - self.engine.clock.now()) / 1e9)
        return not any(thread.is_alive() for thread in self.threads)

    def leave_later(self, leave: Callable[[], object]) -> bool:
        """In a handler, which cannot wait for itself: begin nothing more, and leave in another thread."""
        if not self.inside():
            return False
        self.engine.stop()
        leave_in_thread(leave)
        return True

    def inside(self) -> bool:
        """True if called by a handler."""
        return threading.current_thread() in self.threads

    def startable(self, raw: Raw) -> bool:
        """True if a worker may begin with a message: not after a stop, nor when it cannot be settled. One
        from limbo counts as begun, so it always may.
        """
        if self.engine.stopping and not raw[LINK].limbo:
            self.engine.give_back([raw])
            return False
        return raw[LINK].alive


def from_limbo(work: list[Dispatch]) -> bool:
    """True if this is a message out of limbo."""
    return bool(work[0].messages) and work[0].messages[0][LINK].limbo


def is_async(handler: Callable[..., Any]) -> bool:
    """True if calling it surely returns a coroutine; a decorator around it may do anything."""
    call = getattr(type(handler), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def run_whatever_happens(
    loop: asyncio.AbstractEventLoop, run: Callable[[], object], done: Callable[[], bool]
) -> None:
    """Keep the loop and its workers alive when a task exits or is interrupted.

    asyncio passes SystemExit and KeyboardInterrupt on to the caller of the loop. The handler that awaits
    the task gets the exception too, and fails with it.
    """
    while True:
        try:
            run()
            break
        except (SystemExit, KeyboardInterrupt) as error:
            if done():
                break
            log.error("event=task_exited error=%r reason=%r", error, "a task of a handler raised it")
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def each(todo: deque[Raw]) -> Iterator[Raw]:
    """Take messages until none are left; `recall` may take the last."""
    take = todo.popleft
    while todo:
        try:
            yield take()
        except IndexError:
            return


def leave_in_thread(leave: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=leave, name="leash-leaving", daemon=True)
    thread.start()
    return thread


def raws_of(work: list[Dispatch]) -> list[Raw]:
    return [raw for dispatch in work for raw in dispatch.messages]


def batch_ended(worker: Worker, begin: int, end: int, messages: list[Message]) -> None:
    """Count how long a batch handler's messages waited and took."""
    by_queue: dict[str, list[int]] = {}
    for message in messages:
        by_queue.setdefault(message.queue, []).append(message.arrived)
    for queue, arrived in by_queue.items():
        worker.durations[queue].together(begin, end, arrived)


def batch_finished(work: list[Dispatch], took: int, messages: list[Message]) -> Finished:
    """What a batch handler finished: its time is split among its messages; those not settled by hand are
    done.
    """
    total = len(raws_of(work))
    services = [took * len(dispatch.messages) // total for dispatch in work]
    kept = {(message.link, message.tag) for message in messages if not message.settled}
    done = [raw for raw in raws_of(work) if (raw[LINK], raw[TAG]) in kept]
    return Finished(work, services, done)
