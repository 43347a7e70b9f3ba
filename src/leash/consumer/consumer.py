"""The front door: a consumer of many queues with one fair pool of workers."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, overload

from leash.amqp.uri import Uri, parse
from leash.consumer.breaker_settings import Breaker, checked_breaker
from leash.consumer.costs import Asked, costs_of
from leash.consumer.handlers import D, Decorator, Handlers, Middleware, R
from leash.consumer.message import Message
from leash.consumer.partitioned import PartitionedSession, check
from leash.consumer.retry import Retry, checked
from leash.consumer.session import LIVE, Parts, Session
from leash.consumer.settings import BUFFER_BYTES, OnExhausted, Queue, Settings, queues_of, text
from leash.consumer.side_services import Beside
from leash.consumer.signals import Signals
from leash.consumer.stats import Stats
from leash.consumer.stream_settings import Stream, check_streams, streams_of, with_partitions
from leash.consumer.tenancy import lanes_of
from leash.consumer.workers import Batch, leave_in_thread
from leash.errors import ConfigError, NotDrained
from leash.fleet import Budget, Tenants
from leash.policies.exact_numbers import Number, whole
from leash.units import SECOND, nanoseconds

_RETRY = Retry()
_LOOK = 0.1  # seconds between two checks for signals in `run`


class Consumer:
    """Consumes several queues, or partitions, with one pool of workers; see docs/consumer.md.

    Give it a function with `@consumer.handler` (or `batch_handler`), then `run()` it, or `start()` and
    `stop()` it yourself, or use it as a context. A message is acked when the handler returns; if the
    handler raises, it is tried again later and, after the last try, parked in `leash.dead.<queue>`.
    Nothing is lost on the way.

    Shares, rates and windows are those of this process: every process has its own. A `Budget` is shared by
    all processes that name it.

    Arguments:
        uri: The broker, `amqp://user:password@host:port/vhost`; several hosts, separated by commas, for a
            cluster.
        queues: Names, or `Queue`s with a quantum, a rate, a tier and so on. Leash does not declare them.
            Required, unless there are streams or partitions. Default: none.
        streams: Names, or `Stream`s with a quantum, a rate and so on, beside the queues or instead. Their
            offsets are stored under `name`, or each stream's own. See docs/streams.md. Default: none.
        super_stream: The name of a super stream, or a `Stream` with what holds for each partition. All
            processes with the same `name` share them, each in order (RabbitMQ 3.11 or later). Default: None.
        partitions: The name of partitions (`leash.Partitions`), instead of `queues`. All their queues are
            consumed, each in order, and shared with the other processes that consume them. Default: None.
        tenants: `Tenants`, instead of `queues`: all lanes are consumed, quiet ones first. Default: None.
        workers: How many messages are worked on at once: threads for a plain handler, tasks of one event
            loop for an `async def`. Default: 1; with partitions, one for each queue.
        retry: How often and how far apart a failing message is tried. Default: `Retry()`, which is five
            tries, two seconds apart. None: one try.
        breaker: A `Breaker` for every queue without its own: while the handler of a queue fails again and
            again, it slows to single probes. Default: None.
        on_exhausted: What becomes of a message after its last try: "park" (the default) copies it, with the
            error, to `leash.dead.<queue>`; "reject" sends it to the queue's dead-letter exchange, or drops it
                if there is none; "discard" drops it.
        cost: What a message takes of its queue's share: "count" (the default: 1), "bytes", "time" (of its
            handler), "header:<name>", or a function of the message that returns a whole number.
        rate: Messages per second, over all queues, in this process only. For a limit over all processes use
            `budget`. Default: None, no limit.
        burst: How many messages may be handled at once after a pause. Default: 1. Needs a rate.
        budget: A `Budget`, shared with every process that names it. Every message needs a permit from it.
            Default: None.
        guaranteed: The percentage of the service that a tier gets even while lower-numbered ones have work:
            `{1: 20}`. Default: none.
        buffer_messages: Messages that all queues together may have buffered here or in flight. Default:
            20,000, or twice the messages that the workers' batches hold, if that is more.
        buffer_bytes: The same, in bytes of message bodies. Default: 32 MiB.
        drain: Seconds that `stop` waits for handlers to finish. Default: 30.
        consumer_timeout: The broker's `consumer_timeout` in seconds. Handlers that come near it are logged.
            Default: 1800, as in RabbitMQ.
        middleware: Functions around the handler, the first one outermost: `def log(message, call_next)`
            calls `call_next(message)`; `async def` if the handlers are. Default: none.
        name: The name in the broker's list of connections, and for the offsets of streams, which need one.
            Default: `leash <host>:<pid>`.
        health: A port that serves `/healthz`, `/readyz` and `/metrics` to this machine while the consumer
            runs, or "0.0.0.0:8080" to serve everybody. Default: none.
        report: Publish statistics once a second to the exchange `leash.stats`, for `leash page`. If that is
            not possible, nothing happens. Default: True.
        stream_port: The port for streams, at all hosts. Default: 5552, with TLS 5551.
        load_balancer: Read streams by the hosts of the URI only: what nodes call themselves cannot be
            reached from here. Default: False.
    """

    def __init__(
        self,
        uri: str | Uri,
        queues: Iterable[Queue | str] = (),
        *,
        streams: Iterable[Stream | str] = (),
        super_stream: str | Stream | None = None,
        partitions: str | None = None,
        tenants: Tenants | None = None,
        workers: int | None = None,
        retry: Retry | None = _RETRY,
        breaker: Breaker | None = None,
        on_exhausted: OnExhausted = "park",
        cost: Asked = "count",
        rate: Number | None = None,
        burst: int | None = None,
        budget: Budget | None = None,
        guaranteed: Mapping[int, int] | None = None,
        buffer_messages: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        drain: float = 30.0,
        consumer_timeout: float = 1800.0,
        middleware: Iterable[Middleware] = (),
        name: str = "",
        health: int | str | None = None,
        report: bool = True,
        stream_port: int | None = None,
        load_balancer: bool = False,
    ) -> None:
        text("name", name, "a string, for the broker's list of connections", 0)
        place, read = parse(uri), streams_of(streams, name)
        specs = queues_of(queues) + read
        if tenants is not None:
            specs = lanes_of(tenants, specs, partitions or super_stream)
        if not specs and partitions is None and super_stream is None:
            raise ConfigError("queues", [], "at least one queue")
        count = whole("workers", 1 if workers is None else workers, 1)
        kind, costs = costs_of(cost)
        if burst is not None and rate is None:
            raise ConfigError("burst", burst, "a rate with it")
        self.super_stream = check_streams(super_stream, name, on_exhausted, stream_port, bool(read))
        self.settings = Settings(
            uri=place,
            queues=specs,
            workers=count,
            retry=checked(retry),
            breaker=checked_breaker(breaker),
            on_exhausted=on_exhausted,
            cost=kind,
            costs=costs,
            rate=rate,
            burst=1 if burst is None else burst,
            budget=budget,
            guaranteed=guaranteed,
            buffer_messages=buffer_messages,
            buffer_bytes=buffer_bytes,
            drain=nanoseconds("drain", drain),
            consumer_timeout=consumer_timeout,
            name=name or f"leash {socket.gethostname()}:{os.getpid()}",
            quiet_first=tenants is not None,
            stream_port=stream_port,
            load_balancer=load_balancer,
        )
        self._beside = Beside(self, health, report, tenants)
        self._workers = workers
        self._partitions = partitions
        self._own = specs
        if partitions is not None:
            check(partitions, self.settings, self.super_stream)
        elif specs:
            self.settings.flow()  # report a wrong lane now
        self._handlers = Handlers(middleware)
        self._session: Session | PartitionedSession | None = None
        self._leaving = threading.Lock()
        self._ended: bool | None = None

    # --- the handlers ---

    @overload
    def handler(self, function: Callable[[Message], R], /) -> Callable[[Message], R]: ...

    @overload
    def handler(self, function: Callable[[D], R], /) -> Callable[[D], R]: ...

    @overload
    def handler(self, function: Callable[[D, Message], R], /) -> Callable[[D, Message], R]: ...

    @overload
    def handler(self, *queues: str, retry: Retry | None = _RETRY) -> Decorator: ...

    def handler(self, *given: Any, retry: Retry | None = _RETRY) -> Any:
        """Decorates the function that gets each message: `def` runs in threads, `async def` on one loop.

        With names of queues, `@consumer.handler("orders", retry=Retry(tries=3))`, it gets theirs only. Its
        first argument is the message, or, by its annotation, the decoded body; then a second one may be the
        message.
        """
        if len(given) == 1 and not isinstance(given[0], str):
            self._handlers.add(given[0])
            return given[0]
        if not given or not all(isinstance(each, str) for each in given):
            raise ConfigError("handler", given, "a function, or names of queues")
        if self._partitions is not None or self.super_stream is not None:
            raise ConfigError("handler", given, "one for all partitions: no names")
        for queue in given:
            self.settings.known(queue)
        self.settings.sharing.update(dict.fromkeys(given, given))
        if retry is not _RETRY:
            own = dict.fromkeys(given, checked(retry))
            self.settings = replace(self.settings, retries={**self.settings.retries, **own})

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            self._handlers.add(function, given)
            return function

        return decorate

    def batch_handler(
        self, size: int, wait: float = 1.0
    ) -> Callable[[Callable[[list[Message]], R]], Callable[[list[Message]], R]]:
        """Decorates a function that gets lists of up to `size` messages, collected for at most `wait`
        seconds.
        """
        if self._partitions is not None:
            raise ConfigError("batch_handler", size, "not with partitions: their messages come one at a time")
        if self.settings.budgets:
            why = "not with a budget: permits expire while a batch is gathered; take from it in the handler"
            raise ConfigError("batch_handler", size, why)
        batch = Batch(whole("size", size, 1, 65535), nanoseconds("wait", wait))

        def decorate(function: Callable[[list[Message]], R]) -> Callable[[list[Message]], R]:
            self._handlers.add_batch(function, batch)
            return function

        return decorate

    # --- running ---

    def run(self) -> None:
        """Consume until SIGINT, SIGTERM or `stop`, then drain; a second signal leaves at once.

        Raises NotDrained if messages were not finished within `drain` seconds; DataLost as `stop` does.
        """
        with Signals() as signals:
            self.start()
            signals.started = True
            while not signals.numbers and not self._running().left:
                time.sleep(_LOOK)
            leaver = leave_in_thread(self._leave)
            while leaver.is_alive() and not signals.urgent:
                leaver.join(_LOOK)
            if not signals.urgent and not self.stop():  # already done; raises again if it failed
                raise NotDrained(self.settings.drain / SECOND, *self._running().undone)
        if signals.urgent:
            self.abandon()
            sys.exit(signals.status)

    def start(self, parts: Parts = LIVE) -> None:
        """Begin to consume, in background threads. Raises if a queue is missing or the broker unreachable.

        `parts` is for `leash.testing`, which replaces them.
        """
        with self._leaving:  # a concurrent `stop` waits until there is something to stop
            if self._session is not None:
                raise ConfigError("start", "again", "a consumer that was not started before")
            if self.super_stream is not None:
                self.settings = with_partitions(self.settings, self._own, self.super_stream, self._workers)
            handler = self._handlers.together(each.name for each in self.settings.queues)
            handler = self._beside.counted(handler)
            if self._partitions is None:
                self._session = Session(self.settings, handler, self._handlers.batch, parts)
            else:
                self._session = PartitionedSession(self.settings, handler, self._partitions, self._workers)
            try:
                if parts is LIVE:
                    self._beside.serve()
                self._session.start()
            except BaseException:
                self._session = None
                self._beside.unserve()
                raise
            if parts is LIVE:
                self._beside.report()

    def stop(self) -> bool:
        """Finish running handlers and leave; False: one was still running at the deadline.

        In a handler it is False at once. Raises DataLost if a stream with `fail_on_data_loss` lost messages.
        """
        asked = self._session is not None and self._session.leave_later(self._leave)
        return False if asked else self._running().outcome(self._leave())

    def _leave(self) -> bool:
        """Leave once; other callers wait for it and get the same answer."""
        with self._leaving:
            if self._ended is None:
                self._ended = self._running().stop()
                self._beside.stop()
            return self._ended

    def abandon(self) -> None:
        """Leave at once, as a crash would: the broker redelivers what was not settled."""
        self._running().abandon()
        self._beside.leave()

    def reset(self) -> None:
        """Forget the session that ended, so that another one can be started."""
        self._session = None
        self._ended = None

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> Session | PartitionedSession:
        if self._session is None:
            raise ConfigError("consumer", self.settings.name, "one that was started")
        return self._session

    @property
    def session(self) -> Session:
        """The running session of a consumer of queues: for tests and tools."""
        if self._partitions is not None:
            raise ConfigError("partitions", self._partitions, "queues: partitions cannot be set or paused")
        running = self._running()
        assert isinstance(running, Session)
        return running

    # --- at run time ---

    def stats(self) -> Stats:
        """Plain numbers about every queue."""
        return self._beside.with_tenants(self._running().stats())

    def pause(self, queue: str) -> None:
        """Take no more messages from a queue, and return those that are buffered."""
        self.session.engine.pause(self.settings.known(queue))

    def resume(self, queue: str) -> None:
        """The inverse of `pause`."""
        self.session.engine.resume(self.settings.known(queue))

    def set_quantum(self, queue: str, quantum: int) -> None:
        """Change a queue's quantum from its next turn on; the rest of this turn is cut to it."""
        self.session.set_quantum(self.settings.known(queue), quantum)

    def set_rate(self, queue: str | None, rate: Number | None, burst: int | None = None) -> None:
        """Change the rate of a queue, or of all together if `queue` is None; a rate of None is no limit."""
        self.session.set_rate(None if queue is None else self.settings.known(queue), rate, burst)
