"""`qos` on a real broker: the document's shared pool, then two real consumers on autopilot."""

from __future__ import annotations

import time
from collections.abc import Callable

from leash.amqp import connect
from leash.amqp.topology import declare_queue
from leash.amqp.wire import Outgoing, PublishEncoder
from leash.consumer import Consumer, Message
from leash.lab import qos
from leash.lab.clock import SECOND
from leash.lab.figures import Progress, Run
from leash.lab.live import Server, prompt_threads
from leash.lab.live_seeds import SharedThreads


def measure(uri: str, progress: Progress) -> Run:
    with prompt_threads():
        return _measure(uri, progress)


def _measure(uri: str, progress: Progress) -> Run:
    run = Run()
    for prefetch in (0, 1):
        queue = f"prefetch-{prefetch}"
        with connect(uri, name="lab") as connection:
            with connection.channel() as channel:
                declare_queue(channel, queue)
            services = {"fast": qos.FAST / SECOND, "slow": qos.SLOW / SECOND}
            workers = SharedThreads(connection, queue, services, prefetch, qos.THREADS)
            _produce(uri, queue, _third(progress, prefetch))
            done = dict(workers.done)
            workers.stop()
        qos.fill(run, f"prefetch {prefetch}", done["fast"], done["slow"])
    _autopilot(run, uri, _third(progress, 2))
    return run


def _third(progress: Progress, number: int) -> Progress:
    return lambda part: progress((number + part) / 3)


def _autopilot(run: Run, uri: str, progress: Progress) -> None:
    with connect(uri, name="lab") as connection, connection.channel() as channel:
        declare_queue(channel, "autopilot")
    done = {"fast": 0, "slow": 0}
    fast, slow = Consumer(uri, ["autopilot"]), Consumer(uri, ["autopilot"], drain=2.0)

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
            held.append((time.monotonic() - began, slow.stats().queues["autopilot"].unsettled))
            progress(part)

        _produce(uri, "autopilot", look)
        qos.fill(run, "autopilot", done["fast"], done["slow"])
    run.series["held"] = held


def _produce(uri: str, queue: str, progress: Progress) -> None:
    """One message every `GAP`, by the clock, for `SPAN`; without confirms, as in the document."""
    with connect(uri, name="lab producer") as connection, connection.channel() as channel:
        encoder = PublishEncoder(channel.number)
        parts: list[bytes] = []
        encoder.encode([Outgoing(b"", "", queue)], parts)
        frame = b"".join(parts)
        began = time.monotonic_ns()
        for number in range(qos.SPAN // qos.GAP + 1):
            wait = began + number * qos.GAP - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait / SECOND)
            channel.write(frame)
            if number % 10 == 0:
                progress(number * qos.GAP / qos.SPAN)
