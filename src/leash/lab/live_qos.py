"""`qos` on a real broker: the document's shared pool, then two real consumers on autopilot."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from leash.amqp import connect
from leash.amqp.topology import declare_queue, delete_queue
from leash.amqp.wire import Outgoing, PublishEncoder
from leash.consumer import Consumer, Message
from leash.lab import qos
from leash.lab.figures import Progress, Run
from leash.lab.live import TRANSIENT, Server, prompt_threads
from leash.lab.live_seeds import SharedThreads
from leash.lab.quiet import timed
from leash.units import SECOND

QUEUE = "work"


def measure(uri: str, progress: Progress) -> Run:
    run = Run()
    with prompt_threads():
        for prefetch in (0, 1):
            done = timed(run, partial(_shared, uri, prefetch, _third(progress, prefetch)))
            qos.fill(run, f"prefetch {prefetch}", done["fast"], done["slow"])
        done, run.series["held"] = timed(run, partial(_autopilot, uri, _third(progress, 2)))
        qos.fill(run, "autopilot", done["fast"], done["slow"])
    return run


def _third(progress: Progress, number: int) -> Progress:
    return lambda part: progress((number + part) / 3)


def _shared(uri: str, prefetch: int, progress: Progress) -> dict[str, int]:
    """The document's thread pool, shared by both kinds of work."""
    _fresh(uri)
    with connect(uri, name="lab") as connection:
        services = {"fast": qos.FAST / SECOND, "slow": qos.SLOW / SECOND}
        workers = SharedThreads(connection, QUEUE, services, prefetch, qos.THREADS)
        _produce(uri, progress)
        done = dict(workers.done)
        workers.stop()
    return done


def _autopilot(uri: str, progress: Progress) -> tuple[dict[str, int], list[tuple[float, int]]]:
    """Two consumers: how many messages they handled, and how many the slow one held over time."""
    _fresh(uri)
    done = {"fast": 0, "slow": 0}
    fast, slow = Consumer(uri, [QUEUE]), Consumer(uri, [QUEUE], drain=2.0)

    def work(name: str, seconds: float) -> Callable[[Message], None]:
        server = Server(seconds)

        def handle(message: Message) -> None:
            server.serve(time.monotonic_ns() - round(message.age * SECOND))
            done[name] += 1

        return handle

    fast.handler(work("fast", qos.FAST / SECOND))
    slow.handler(work("slow", qos.SLOW / SECOND))
    with fast, slow:
        held: list[tuple[float, int]] = []
        began = time.monotonic()

        def look(part: float) -> None:
            held.append((time.monotonic() - began, slow.stats().queues[QUEUE].unsettled))
            progress(part)

        _produce(uri, look)
        return dict(done), held


def _fresh(uri: str) -> None:
    with connect(uri, name="lab") as connection, connection.channel() as channel:
        delete_queue(channel, QUEUE)
        declare_queue(channel, QUEUE)


def _produce(uri: str, progress: Progress) -> None:
    """One message every `GAP`, by the clock, for `SPAN`; without confirms, as in the document."""
    with connect(uri, name="lab producer") as connection, connection.channel() as channel:
        encoder = PublishEncoder(channel.number)
        parts: list[bytes] = []
        encoder.encode([Outgoing(b"", "", QUEUE, TRANSIENT, mandatory=False)], parts)
        frame = b"".join(parts)
        began = time.monotonic_ns()
        for number in range(qos.SPAN // qos.GAP + 1):
            wait = began + number * qos.GAP - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait / SECOND)
            channel.write(frame)
            if number % 10 == 0:
                progress(number * qos.GAP / qos.SPAN)
