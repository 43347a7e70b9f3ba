"""Workers that are tasks of one event loop, for `async def` handlers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from leash.consumer.engine import NAP, Finished
from leash.consumer.message import Message
from leash.consumer.raw_delivery import ARRIVED
from leash.consumer.rescuing import Limbo
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


class TaskPool(Pool):
    """One thread with an event loop, and another that writes: no I/O happens on the handlers' loop."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._told = False
        self._due = threading.Event()
        if self.engine.gate is not None:
            self.handler = self.engine.gate.around_async(self.handler)

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
        loop = asyncio.new_event_loop()
        main = loop.create_task(self.main())
        run_whatever_happens(loop, lambda: loop.run_until_complete(main), main.done)
        self._due.set()

    async def main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine.on_ready = self._tell
        await asyncio.gather(*(self._task(worker) for worker in self.workers))
        self.engine.on_ready = None

    def _tell(self) -> None:
        """Note that there may be work. Called under the engine's lock, by any thread."""
        if not self._told and self._loop is not None:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop has just ended, and no task waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Wake one task per batch; each that finds work wakes the next."""
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
            work, wait, limbo = self.engine.try_pull(finished, most, since)
            finished = None
            self._due.set()
            if work:
                if self._waiting and self.engine.flow.buffered:
                    self._wake()
                return work
            if self.engine.stopping:
                return None
            if limbo and self.engine.limbo is not None and until is None:
                work = await self._from_limbo(self.engine.limbo)
                if work:
                    return work
                continue
            now = self.engine.clock.now()
            if until is not None and (now >= until or self.engine.flow.spent):
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

    async def _from_limbo(self, limbo: Limbo) -> list[Dispatch]:
        fetching = asyncio.ensure_future(asyncio.to_thread(limbo.begin))
        while True:
            try:
                return await asyncio.shield(fetching)
            except asyncio.CancelledError:
                self._cancelled()  # meant for a handler that was done before

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
        for index, (todo, (lane, _, _, until)) in enumerate(zip(worker.todo, work, strict=True)):
            begin = end = worker.at(lane)
            spans: list[tuple[int, int]] = []
            for raw in each(todo):
                if until is not None and self.engine.clock.now() >= until:
                    put_back(self.engine, worker, index, raw)
                    break
                if not self.startable(raw):
                    continue
                message = Message(raw, self.engine.settler.settle)
                try:
                    await handler(message)
                except BaseException as error:
                    self._cancelled()
                    self.failed([message], error)
                else:
                    if message.outcome is None:
                        worker.done.append(raw)
                end = self.engine.clock.now()
                spans.append((raw[ARRIVED], end))
            services.append(end - begin)
            if spans:
                worker.durations[lane].batch(begin, spans)
        return Finished(work, services, worker.done)

    def _cancelled(self) -> None:
        """Cancelling a handler cancels its worker's task: the handler has failed, the worker goes on."""
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()

    async def _batch(self, worker: Worker, work: list[Dispatch]) -> Finished:
        assert self.batch is not None
        until = self.engine.clock.now() + self.batch.wait
        while not from_limbo(work) and (missing := self.batch.size - len(raws_of(work))) > 0:
            more = await self._pull(None, missing, until)
            if not more:
                break
            work += more
        messages = [Message(raw, self.engine.settler.settle) for raw in raws_of(work) if self.startable(raw)]
        begin = worker.at(work[0].lane)
        end, given = begin, messages
        if messages:
            try:
                await self.handler(messages)
            except BaseException as error:
                self._cancelled()
                self.failed([message for message in messages if not message.settled], error)
                messages = []
            end = self.engine.clock.now()
            batch_ended(worker, begin, end, given)
        return batch_finished(work, end - begin, messages)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
