"""The front door: a consumer of many queues with one fair pool of workers."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from leash.amqp import Connection
from leash.amqp.uri import Uri, parse
from leash.consumer import retry as failing
from leash.consumer.costs import Asked, costs_of
from leash.consumer.engine import Engine
from leash.consumer.message import Message
from leash.consumer.parts import LIVE, Parts
from leash.consumer.settings import SECOND, OnExhausted, Queue, Retry, nanoseconds, queues_of, text
from leash.consumer.settle import Outcome
from leash.consumer.stats import Stats, collect
from leash.consumer.workers import Batch, leave_in_thread
from leash.errors import ConfigError
from leash.flow import Flow
from leash.policies.exact import Number, whole

if TYPE_CHECKING:
    from leash.partitions.consuming import PartitionedConsumer

log = logging.getLogger("leash.consumer")

Handler = TypeVar("Handler", bound=Callable[..., Any])

_RETRY = Retry()
_SLICE = 100_000_000  # ns to wait before looking whether it was abandoned
_LOOK = 0.1  # seconds until `run` looks for signals again


class Consumer:
    """Consumes `queues` with `workers` workers; see docs/consumer.md."""

    def __init__(
        self,
        uri: str | Uri,
        queues: Iterable[Queue | str] = (),
        *,
        partitions: str | None = None,
        workers: int | None = None,
        retry: Retry | None = _RETRY,
        on_exhausted: OnExhausted = "park",
        cost: Asked = "count",
        rate: Number | None = None,
        burst: int | None = None,
        guaranteed: Mapping[int, int] | None = None,
        drain: float = 30.0,
        consumer_timeout: float = 1800.0,
        name: str = "",
    ) -> None:
        self._uri = parse(uri)
        self._queues = queues_of(queues)
        if not self._queues and partitions is None:
            raise ConfigError("queues", [], "at least one queue")
        self._count = whole("workers", 1 if workers is None else workers, 1)
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError("retry", retry, "a Retry, or None for one try")
        self._retry = retry or Retry(tries=1)
        if on_exhausted not in get_args(OnExhausted):
            raise ConfigError("on_exhausted", on_exhausted, f"one of {', '.join(get_args(OnExhausted))}")
        self._on_exhausted = on_exhausted
        self._cost, self._costs = costs_of(cost)
        if burst is not None and rate is None:
            raise ConfigError("burst", burst, "a rate with it")
        self._limits = {"rate": rate, "burst": 1 if burst is None else burst, "guaranteed": guaranteed}
        self._drain = nanoseconds("drain", drain)
        nanoseconds("consumer_timeout", consumer_timeout)
        self._timeout = consumer_timeout
        text("name", name, "a string, for the broker's list of connections", 0)
        self._name = name or f"leash {socket.gethostname()}:{os.getpid()}"
        self._handler: Callable[..., Any] | None = None
        self._batch: Batch | None = None
        self._engine: Engine | None = None
        self._abandoned = False
        self._leaving = threading.Lock()
        self._ended: bool | None = None
        self._partitioned: PartitionedConsumer | None = None
        if partitions is None:
            self._flow()  # what is wrong with the lanes is said now
            return
        text("partitions", partitions, "the partitions' name")
        if self._queues:
            raise ConfigError("partitions", partitions, "queues or partitions, not both")
        if rate is not None or guaranteed is not None or cost != "count":
            raise ConfigError("rate", rate, "not with partitions; nor are guaranteed and cost")
        from leash.partitions.consuming import PartitionedConsumer

        settings = {"retry": retry, "on_exhausted": on_exhausted, "drain": drain, "name": name}
        self._partitioned = PartitionedConsumer(
            self._uri, partitions, workers=workers, consumer_timeout=consumer_timeout, **settings
        )

    def _flow(self) -> Flow:
        least = self._batch.size * self._count if self._batch else 1
        lanes = [queue.lane(min(least, 65535)) for queue in self._queues]
        return Flow(
            lanes,
            workers=self._count,
            cost=self._cost,
            redelivered=_redelivered,
            **self._limits,  # type: ignore[arg-type]
        )

    # --- the handler ---

    def handler(self, function: Handler) -> Handler:
        """Decorates the function that gets each message: `def` runs in threads, `async def` on one loop."""
        if self._partitioned is not None:
            return self._partitioned.handler(function)
        self._set(function, None)
        return function

    def batch_handler(self, size: int, wait: float = 1.0) -> Callable[[Handler], Handler]:
        """Decorates a function that gets lists of up to `size` messages, of `wait` seconds at most."""
        if self._partitioned is not None:
            raise ConfigError("batch_handler", size, "not with partitions: their messages come one at a time")
        batch = Batch(whole("size", size, 1, 65535), nanoseconds("wait", wait))

        def decorate(function: Handler) -> Handler:
            self._set(function, batch)
            return function

        return decorate

    def _set(self, function: Callable[..., Any], batch: Batch | None) -> None:
        if not callable(function):
            raise ConfigError("handler", function, "a function of one argument")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError("handler", function, "a function that does not yield: nobody would run it")
        if self._handler is not None:
            raise ConfigError("handler", function, "one handler for a consumer, and it has one")
        self._handler, self._batch = function, batch

    # --- running ---

    def run(self) -> None:
        """Consume until SIGINT, SIGTERM or `stop`, then drain; a second signal leaves at once."""
        signals = 0
        started = False

        def on_signal(_: int, __: FrameType | None) -> None:
            nonlocal signals
            signals += 1  # and no more: whoever is interrupted may hold any lock
            if signals > 1 and not started:
                sys.exit(1)

        installed = _install(on_signal)
        try:
            self.start()
            started = True
            while not signals and not self._told_to_leave():
                time.sleep(_LOOK)
            leaver = leave_in_thread(self._leave)
            while leaver.is_alive() and signals < 2:
                leaver.join(_LOOK)
            if signals < 2:
                self._leave()  # is done; should it have failed, this says so
        finally:
            for number, before in installed:
                signal.signal(number, before)
        if signals > 1:
            self.abandon()
            sys.exit(1)

    def _told_to_leave(self) -> bool:
        """Whether somebody called `stop` or `abandon`."""
        if self._partitioned is not None:
            return self._partitioned.left
        return self._running().stopping

    def start(self) -> None:
        """Begin to consume, in threads of its own. Raises if a queue is missing or the broker not reached."""
        with self._leaving:  # a `stop` meanwhile waits until there is something to stop
            if self._partitioned is not None:
                self._partitioned.start()
            else:
                self._start(LIVE)

    def _start(self, parts: Parts) -> None:
        if self._handler is None:
            raise ConfigError("handler", None, "a function: decorate it with @consumer.handler")
        if self._engine is not None:
            raise ConfigError("start", "again", "a consumer that was not started before")
        deadlines = frozenset(queue.name for queue in self._queues if queue.deadline is not None)
        engine = parts.engine(self._flow(), self._costs, deadlines, parts.clock)
        self._republisher = parts.republisher(
            self._uri, self._name, lambda message: _republished(engine, message), self._prepare
        )
        self._pool = parts.pool(engine, self._handler, self._count, self._batch, self._failed)
        self._conductor = parts.conductor(
            engine, self._uri, self._name, self._queues, self._pool.workers, self._timeout, self._prepare
        )
        self._engine = engine
        self._began = parts.clock.now()
        try:
            self._conductor.open()
        except BaseException:
            self._engine = None
            raise
        self._pool.start()
        self._conductor.thread.start()
        log.info(
            "event=started broker=%r queues=%d workers=%d", str(self._uri), len(self._queues), self._count
        )

    def stop(self) -> bool:
        """Finish what runs and leave; False: something was still running at the deadline.

        A handler that calls it only asks, and is answered False at once: it is itself still running.
        """
        if self._partitioned is not None:
            asked = self._partitioned.leave_later(self._leave)
        else:
            asked = self._engine is not None and self._pool.leave_later(self._leave)
        return False if asked else self._leave()

    def _leave(self) -> bool:
        """Once; whoever else asks waits for it, and gets the same answer."""
        with self._leaving:
            if self._ended is None:
                self._ended = self._stop() if self._partitioned is None else self._partitioned.stop()
            return self._ended

    def _stop(self) -> bool:
        engine = self._running()
        clock = engine.clock.now
        deadline = clock() + self._drain
        engine.stop()
        while not (ended := self._pool.join(min(deadline, clock() + _SLICE))) and clock() < deadline:
            if self._abandoned:
                return False
        while self._republisher.pending and clock() < deadline and not self._gone():
            time.sleep(0.01)
        self._conductor.leave()
        self._conductor.thread.join(max(0.1, (deadline - clock()) / SECOND))
        self._republisher.stop()
        self._say_goodbye(engine)
        log.info("event=stopped in_time=%r", ended)
        return ended

    def _say_goodbye(self, engine: Engine) -> None:
        """The last acks, then the channels: closing one gives back what is left, at its place."""
        with engine.lock:
            engine.flush()
        engine.drain()
        connection = self._conductor.connection
        if connection is not None:
            connection.close()

    def _gone(self) -> bool:
        connection = self._conductor.connection
        return connection is None or connection.closed

    def abandon(self) -> None:
        """Leave at once, as a crash would: the broker delivers again what was not settled."""
        if self._partitioned is not None:
            self._partitioned.abandon()
            return
        engine = self._running()
        self._abandoned = True
        engine.stopping = True
        connection = self._conductor.connection
        if connection is not None:
            connection.abort()
        self._conductor.leave()

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> Engine:
        if self._partitioned is not None:
            raise ConfigError("partitions", self._partitioned.name, "no single queue can be set or paused")
        if self._engine is None:
            raise ConfigError("consumer", self._name, "one that was started")
        return self._engine

    # --- what failed ---

    def _prepare(self, connection: Connection) -> None:
        failing.declare(connection, self._queues, self._retry, self._on_exhausted)

    def _failed(self, messages: list[Message], error: BaseException) -> None:
        """A handler raised: decide for each message that it did not settle itself."""
        engine = self._running()
        for message in messages:
            if engine.claim(message):
                try:
                    self._fail(engine, message, error)
                except Exception:  # whatever it is, the worker goes on, and the message is not lost
                    log.exception("event=failing_failed queue=%r", message.queue)
                    engine.settle(message, Outcome.REQUEUED, claimed=True)
            elif message._link.alive:
                log.warning("event=failed_after_settling queue=%r error=%r", message.queue, error)

    def _fail(self, engine: Engine, message: Message, error: BaseException) -> None:
        queue, failures = message.queue, message.tries + 1
        wait = self._retry.wait(failures)
        log.warning(
            "event=handler_failed queue=%r tries=%d of=%d error=%r", queue, failures, self._retry.tries, error
        )
        with engine.lock:
            engine.counts[queue]["failed"] += 1
            if wait is not None:
                engine.counts[queue]["retried"] += 1
            elif self._on_exhausted == "park":
                engine.counts[queue]["parked"] += 1
        ordered = message._link.spec.ordered
        if wait is not None and ordered:
            self._again_in_place(engine, message, wait)
        elif wait is not None and (copy := failing.later(message, wait)) is not None:
            self._republisher.put(message, copy)
        elif self._on_exhausted == "park":
            if ordered:
                with engine.lock:
                    engine.flow.park(queue)
            self._republisher.put(message, failing.parked(message, error))
        else:
            rejected = self._on_exhausted == "reject"
            engine.settle(message, Outcome.REJECTED if rejected else Outcome.DISCARDED, claimed=True)

    def _again_in_place(self, engine: Engine, message: Message, wait: int) -> None:
        with engine.lock:
            raw = message.raw_again()
            if raw[6].alive and not engine.stopping:
                now = engine.clock.now()
                engine.flow.retry_in_place(now, message.queue, raw, now + wait * 1_000_000)

    # --- at run time ---

    def stats(self) -> Stats:
        """Plain numbers about every queue."""
        if self._partitioned is not None:
            return self._partitioned.stats()
        return collect(self._running(), self._conductor, self._republisher, self._began)

    def pause(self, queue: str) -> None:
        """Take nothing more from a queue, and give back what is buffered."""
        self._running().pause(self._known(queue))

    def resume(self, queue: str) -> None:
        self._running().resume(self._known(queue))

    def set_quantum(self, queue: str, quantum: int) -> None:
        """From its next turn on; what is left of this one is cut to it."""
        engine = self._running()
        with engine.lock:
            engine.flow.set_quantum(self._known(queue), quantum)

    def set_rate(self, queue: str | None, rate: Number | None, burst: int | None = None) -> None:
        """A queue's rate, or that of all together (None); a rate of None is no limit."""
        engine = self._running()
        with engine.lock:
            engine.flow.set_rate(
                engine.clock.now(), None if queue is None else self._known(queue), rate, burst
            )
            engine.ready.notify_all()

    def _known(self, queue: str) -> str:
        names = [each.name for each in self._queues]
        if queue not in names:
            raise ConfigError("queue", queue, f"one of {', '.join(map(repr, names))}")
        return queue


def _republished(engine: Engine, message: Message) -> None:
    engine.settle(message, Outcome.REPUBLISHED, claimed=True)
    with engine.lock:
        if engine.links.get(message.queue) is message._link:
            engine.flow.parked(message.queue)
            engine.wake()
    engine.nudge.set()


def _redelivered(raw: Any) -> bool:
    return bool(raw[1])


def _install(on_signal: Callable[[int, FrameType | None], None]) -> list[tuple[int, Any]]:
    """Only the main thread may; elsewhere whoever runs it calls `stop`."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [(number, signal.signal(number, on_signal)) for number in (signal.SIGINT, signal.SIGTERM)]
