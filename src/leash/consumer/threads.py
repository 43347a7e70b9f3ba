"""Workers that are threads, for plain handlers."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from typing import Any

from leash.consumer.engine import Finished
from leash.consumer.message import Message
from leash.consumer.raw_delivery import ARRIVED, LINK
from leash.consumer.take_back import put_back
from leash.consumer.workers import (
    Pool,
    Worker,
    batch_ended,
    batch_finished,
    each,
    from_limbo,
    raws_of,
    run_whatever_happens,
)
from leash.flow import Dispatch


class ThreadPool(Pool):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looping: threading.Thread | None = None
        self._left = threading.Event()
        self._starting = threading.Lock()
        if self.engine.gate is not None:
            self.handler = self.engine.gate.around(self.handler, self.await_)

    def inside(self) -> bool:
        return super().inside() or threading.current_thread() is self._looping

    def join(self, deadline: int) -> bool:
        ended = super().join(deadline)
        if ended and self._loop is not None:
            self._left.set()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None
        return ended

    def await_(self, result: object) -> None:
        """Await the result of a plain function, for example of a decorated `async def`.

        All awaitables run on one loop, while their threads wait.
        """
        if inspect.isawaitable(result):
            with self._starting:
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                    self._looping = threading.Thread(
                        target=_run_loop, args=(self._loop, self._left), name="leash-loop", daemon=True
                    )
                    self._looping.start()
                loop = self._loop
            asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()
        elif inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError("the handler returned a generator, which would not be run")

    def start(self) -> None:
        run = self._run if self.batch is None else self._run_batches
        for number, worker in enumerate(self.workers):
            thread = threading.Thread(target=run, args=(worker,), name=f"leash-worker {number}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run(self, worker: Worker) -> None:
        engine, handler, settle = self.engine, self.handler, self.engine.settler.settle
        finished: Finished | None = None
        while (work := self._next(finished)) is not None:
            services = []
            worker.take(work)
            done = worker.done.append
            now = engine.clock.now
            for index, (todo, (lane, _, _, until)) in enumerate(zip(worker.todo, work, strict=True)):
                begin = end = worker.at(lane)
                spans: list[tuple[int, int]] = []
                ended = spans.append
                for raw in each(todo):
                    if until is not None and now() >= until:
                        put_back(engine, worker, index, raw)
                        break
                    if (engine.stopping or not raw[LINK].alive) and not self.startable(raw):
                        continue
                    message = Message(raw, settle)
                    try:
                        result = handler(message)
                        if result is not None:
                            self.await_(result)
                    except BaseException as error:
                        self.failed([message], error)
                    else:
                        if message.outcome is None:
                            done(raw)
                    ended((raw[ARRIVED], end := now()))
                services.append(end - begin)
                if spans:
                    worker.durations[lane].batch(begin, spans)
            worker.begin = None
            finished = Finished(work, services, worker.done)

    def _next(self, finished: Finished | None, most: int | None = None) -> list[Dispatch] | None:
        """Work, from the buffers or from limbo."""
        engine = self.engine
        while (work := engine.pull(finished, most)) is not None and not work:
            finished = None
            if engine.limbo is not None and (work := engine.limbo.begin()):
                break
        return work

    def _run_batches(self, worker: Worker) -> None:
        engine = self.engine
        finished: Finished | None = None
        while (work := self._collect(finished)) is not None:
            messages = [Message(raw, engine.settler.settle) for raw in raws_of(work) if self.startable(raw)]
            begin = worker.at(work[0].lane)
            end, given = begin, messages
            if messages:
                try:
                    self.await_(self.handler(messages))
                except BaseException as error:
                    self.failed([message for message in messages if not message.settled], error)
                    messages = []
                end = engine.clock.now()
                batch_ended(worker, begin, end, given)
            finished = batch_finished(work, end - begin, messages)
            worker.begin = None

    def _collect(self, finished: Finished | None) -> list[Dispatch] | None:
        assert self.batch is not None
        work = self._next(finished, self.batch.size)
        if work is not None and from_limbo(work):  # it was taken to be begun at once
            return work
        until = self.engine.clock.now() + self.batch.wait
        while work is not None and (missing := self.batch.size - len(raws_of(work))) > 0:
            more = self.engine.pull(None, missing, until)
            if not more:
                break
            work += more
        return work


def _run_loop(loop: asyncio.AbstractEventLoop, left: threading.Event) -> None:
    run_whatever_happens(loop, loop.run_forever, left.is_set)


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable
