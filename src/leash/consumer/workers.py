"""The workers: threads for plain handlers, tasks of one event loop for `async def`.

Each takes a batch of work, runs it message by message, and brings it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from leash.consumer.clock import Clock
from leash.consumer.engine import NAP, Engine, Finished
from leash.consumer.message import Message, Raw
from leash.flow import Dispatch

Failed = Callable[[list[Message], BaseException], None]


class Worker:
    """What a worker is at, for the watchdog, and what can be taken off its hands meanwhile.

    The worker takes messages from the front of `todo` and `Engine.recall` from its end; a deque gives each to
    one of them. What is `done` only ever grows at its end, but for a recall.
    """

    __slots__ = ("_clock", "begin", "done", "queue", "todo", "warned", "work")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin: int | None = None
        self.queue = ""
        self.warned = False
        self.work: list[Dispatch] = []
        self.todo: list[deque[Raw]] = []
        self.done: list[Raw] = []

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
        """Wait until all are done; False: some were not by the deadline."""
        for thread in self.threads:
            if thread.is_alive():
                thread.join(max(0, deadline - self.engine.clock.now()) / 1e9)
        return not any(thread.is_alive() for thread in self.threads)

    def leave_later(self, leave: Callable[[], object]) -> bool:
        """Within a handler, which cannot wait for itself: begin nothing more, and leave in another thread."""
        if not self.inside():
            return False
        self.engine.stop()
        leave_in_thread(leave)
        return True

    def inside(self) -> bool:
        """Whether a handler asks."""
        return threading.current_thread() in self.threads

    def startable(self, raw: Raw) -> bool:
        """Whether to begin with a message: not after a stop, nor when its settling would go nowhere."""
        if self.engine.stopping:
            self.engine.give_back([raw])
            return False
        return raw[6].alive


class ThreadPool(Pool):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looping: threading.Thread | None = None
        self._starting = threading.Lock()

    def inside(self) -> bool:
        return super().inside() or threading.current_thread() is self._looping

    def join(self, deadline: int) -> bool:
        ended = super().join(deadline)
        if ended and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None
        return ended

    def await_(self, result: object) -> None:
        """A plain function may return an awaitable: its decorator did not say that it is `async`.

        All of them run on one loop, while their threads wait.
        """
        if inspect.isawaitable(result):
            with self._starting:
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                    self._looping = threading.Thread(
                        target=_run_loop, args=(self._loop,), name="leash-loop", daemon=True
                    )
                    self._looping.start()
                loop = self._loop
            asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()
        elif inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError("the handler returned a generator, which nobody runs")

    def start(self) -> None:
        run = self._run if self.batch is None else self._run_batches
        for number, worker in enumerate(self.workers):
            thread = threading.Thread(target=run, args=(worker,), name=f"leash-worker {number}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run(self, worker: Worker) -> None:
        engine, handler, settle = self.engine, self.handler, self.engine.settle
        finished: Finished | None = None
        while (work := engine.pull(finished)) is not None:
            services = []
            worker.take(work)
            done = worker.done.append
            for todo, (lane, _, _) in zip(worker.todo, work, strict=True):
                begin = worker.at(lane)
                for raw in _each(todo):
                    if (engine.stopping or not raw[6].alive) and not self.startable(raw):
                        continue
                    message = Message(raw, settle)
                    try:
                        result = handler(message)
                        if result is not None:
                            self.await_(result)
                    except BaseException as error:
                        self.failed([message], error)
                    else:
                        if message._outcome is None:
                            done(raw)
                services.append(engine.clock.now() - begin)
            worker.begin = None
            finished = Finished(work, services, worker.done)

    def _run_batches(self, worker: Worker) -> None:
        engine = self.engine
        finished: Finished | None = None
        while (work := self._collect(finished)) is not None:
            messages = [Message(raw, engine.settle) for raw in _raws(work) if self.startable(raw)]
            begin = worker.at(work[0].lane)
            if messages:
                try:
                    self.await_(self.handler(messages))
                except BaseException as error:
                    self.failed([message for message in messages if not message.settled], error)
                    messages = []
            finished = _finished(work, self.engine.clock.now() - begin, messages)
            worker.begin = None

    def _collect(self, finished: Finished | None) -> list[Dispatch] | None:
        assert self.batch is not None
        work = self.engine.pull(finished, self.batch.size)
        until = self.engine.clock.now() + self.batch.wait
        while work is not None and (missing := self.batch.size - len(_raws(work))) > 0:
            more = self.engine.pull(None, missing, until)
            if not more:
                break
            work += more
        return work


class AsyncPool(Pool):
    """One thread with an event loop, and another that writes: no I/O happens on the handlers' loop."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._told = False
        self._due = threading.Event()

    def start(self) -> None:
        for target, name in ((self._run_loop, "leash-loop"), (self._write, "leash-writer")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self.threads.append(thread)
            thread.start()

    def _write(self) -> None:
        while not self.engine.stopping or self.threads[0].is_alive():
            self._due.wait(0.5)
            self._due.clear()
            self.engine.drain()

    def _run_loop(self) -> None:
        asyncio.run(self._main())
        self._due.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine.on_ready = self._tell
        await asyncio.gather(*(self._task(worker) for worker in self.workers))
        self.engine.on_ready = None

    def _tell(self) -> None:
        """There may be work. Called under the engine's lock, by any thread."""
        if not self._told and self._loop is not None:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop has just ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """As many tasks as there are batches; each that finds work wakes the next."""
        self._told = False
        flow = self.engine.flow
        count = len(self._waiting) if self.engine.stopping else max(1, flow.buffered // flow.batch)
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        for future in waiting:
            _resolve(future)

    async def _pull(
        self, finished: Finished | None, most: int | None = None, until: int | None = None
    ) -> list[Dispatch] | None:
        since: int | None = None
        while True:
            work, wait = self.engine.try_pull(finished, most, since)
            finished = None
            self._due.set()
            if work:
                if self._waiting and self.engine.flow.buffered:
                    self._wake()
                return work
            if self.engine.stopping:
                return None
            now = self.engine.clock.now()
            if until is not None and now >= until:
                return []
            since = since or now
            nap = min(NAP if wait is None else wait, self.engine.patience(now, since, until))
            assert self._loop is not None
            future = self._loop.create_future()
            self._waiting.append(future)
            timer = self._loop.call_later(nap / 1e9, _resolve, future)
            try:
                await future
            except asyncio.CancelledError:
                self._cancelled()  # meant for a handler that was done before
            timer.cancel()
            if future in self._waiting:
                self._waiting.remove(future)

    async def _task(self, worker: Worker) -> None:
        run = self._messages if self.batch is None else self._batch
        finished: Finished | None = None
        most = None if self.batch is None else self.batch.size
        while (work := await self._pull(finished, most)) is not None:
            finished = await run(worker, work)
            worker.begin = None

    async def _messages(self, worker: Worker, work: list[Dispatch]) -> Finished:
        handler: Callable[[Message], Awaitable[object]] = self.handler
        services = []
        worker.take(work)
        for todo, (lane, _, _) in zip(worker.todo, work, strict=True):
            begin = worker.at(lane)
            for raw in _each(todo):
                if not self.startable(raw):
                    continue
                message = Message(raw, self.engine.settle)
                try:
                    await handler(message)
                except BaseException as error:
                    self._cancelled()
                    self.failed([message], error)
                else:
                    if message._outcome is None:
                        worker.done.append(raw)
            services.append(self.engine.clock.now() - begin)
        return Finished(work, services, worker.done)

    def _cancelled(self) -> None:
        """Whoever cancels a handler cancels its worker's task: the handler has failed, the worker goes on."""
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()

    async def _batch(self, worker: Worker, work: list[Dispatch]) -> Finished:
        assert self.batch is not None
        until = self.engine.clock.now() + self.batch.wait
        while (missing := self.batch.size - len(_raws(work))) > 0:
            more = await self._pull(None, missing, until)
            if not more:
                break
            work += more
        messages = [Message(raw, self.engine.settle) for raw in _raws(work) if self.startable(raw)]
        begin = worker.at(work[0].lane)
        if messages:
            try:
                await self.handler(messages)
            except BaseException as error:
                self._cancelled()
                self.failed([message for message in messages if not message.settled], error)
                messages = []
        return _finished(work, self.engine.clock.now() - begin, messages)


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine for sure; a decorator around it may do anything."""
    call = getattr(type(handler), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _each(todo: deque[Raw]) -> Iterator[Raw]:
    """Until it is empty, whoever takes the last."""
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


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _raws(work: list[Dispatch]) -> list[Raw]:
    return [raw for dispatch in work for raw in dispatch.messages]


def _finished(work: list[Dispatch], took: int, messages: list[Message]) -> Finished:
    """A batch's time is shared by its messages; those that were not settled by hand are done."""
    total = len(_raws(work))
    services = [took * len(dispatch.messages) // total for dispatch in work]
    kept = {(message.queue, message._tag) for message in messages if not message.settled}
    done = [raw for raw in _raws(work) if (raw[6].queue, raw[0]) in kept]
    return Finished(work, services, done)
