"""Each client doing the same job in a process of its own: `python -m bench.peers CLIENT JOB`, a job as JSON.

Consuming: acks with `multiple` every half window, on one channel a queue. Publishing: with confirms, in the
way that each client offers for it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """What to do."""

    uri: str
    action: str  # consume or publish; for a publisher: publish-threads, publish-many, publish-later
    queues: list[str]
    window: int
    count: int
    size: int = 0

    def encode(self) -> str:
        return json.dumps(asdict(self))


def leash(job: Job) -> None:
    from leash.amqp import Outgoing, Properties, Publisher, connect

    with connect(job.uri) as connection:
        if job.action == "publish":
            with Publisher(connection) as publisher:
                # As the others do: transient, and not mandatory.
                transient = Properties(delivery_mode=1)
                message = Outgoing(b"x" * job.size, "", job.queues[0], transient, mandatory=False)
                publisher.publish(message for _ in range(job.count))
            return
        done = threading.Event()
        left, half = job.count, max(1, job.window // 2)
        channels: dict[int, Any] = {}
        unacked: dict[int, int] = {}

        def deliver(batch: Any) -> None:
            nonlocal left
            left -= len(batch)
            number = batch.channel
            unacked[number] += len(batch)
            if unacked[number] >= half or left <= 0:
                channels[number].ack(batch.tags[-1], multiple=True)
                unacked[number] = 0
            if left <= 0:
                done.set()

        for name in job.queues:
            channel = connection.channel()
            channel.qos(job.window)
            channels[channel.number] = channel
            unacked[channel.number] = 0
            channel.consume(name, deliver=deliver)
        done.wait()


def pika(job: Job) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(job.uri))
    if job.action == "publish":
        channel = connection.channel()
        channel.confirm_delivery()
        body = b"x" * job.size
        for _ in range(job.count):
            channel.basic_publish("", job.queues[0], body)
        connection.close()
        return
    half = max(1, job.window // 2)
    seen = 0
    unacked: dict[int, int] = {}

    def deliver(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        nonlocal seen
        seen += 1
        number = channel.channel_number
        unacked[number] = unacked.get(number, 0) + 1
        if unacked[number] >= half or seen >= job.count:
            channel.basic_ack(method.delivery_tag, multiple=True)
            unacked[number] = 0

    for name in job.queues:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=job.window)
        channel.basic_consume(name, deliver)
    while seen < job.count:
        connection.process_data_events(time_limit=1)
    connection.close()


def amqpstorm(job: Job) -> None:
    from amqpstorm import UriConnection  # type: ignore[attr-defined]

    connection = UriConnection(job.uri)
    if job.action == "publish":
        channel = connection.channel()
        channel.confirm_deliveries()
        body = b"x" * job.size
        for _ in range(job.count):
            channel.basic.publish(body, job.queues[0])
        connection.close()
        return
    half = max(1, job.window // 2)
    seen = 0
    unacked = 0
    channel = connection.channel()
    channel.basic.qos(job.window)

    def deliver(message: Any) -> None:
        nonlocal seen, unacked
        seen += 1
        unacked += 1
        if unacked >= half or seen >= job.count:
            channel.basic.ack(message.delivery_tag, multiple=True)
            unacked = 0

    for name in job.queues:
        channel.basic.consume(deliver, name)
    while seen < job.count:
        channel.process_data_events()
    connection.close()


def aio_pika(job: Job) -> None:
    import aio_pika as client

    async def consume() -> None:
        connection = await client.connect(job.uri)
        half = max(1, job.window // 2)
        seen = 0
        unacked = dict.fromkeys(job.queues, 0)
        done = asyncio.Event()

        async def deliver(message: Any) -> None:
            nonlocal seen
            seen += 1
            name = message.routing_key
            unacked[name] += 1
            if unacked[name] >= half or seen >= job.count:
                await message.ack(multiple=True)
                unacked[name] = 0
            if seen >= job.count:
                done.set()

        for name in job.queues:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=job.window)
            await (await channel.get_queue(name)).consume(deliver)
        await done.wait()
        await connection.close()

    async def publish() -> None:
        connection = await client.connect(job.uri)
        channel = await connection.channel(publisher_confirms=True)
        body = b"x" * job.size
        left = job.count
        while left > 0:  # the fastest way it has: a window of publishes awaited together
            batch = min(left, job.window)
            exchange = channel.default_exchange
            await asyncio.gather(
                *(
                    exchange.publish(client.Message(body), job.queues[0], mandatory=False)
                    for _ in range(batch)
                )
            )
            left -= batch
        await connection.close()

    asyncio.run(publish() if job.action == "publish" else consume())


def leash_consumer(job: Job) -> None:
    """Everything on: quanta, a rate that never binds, CoDel, windows on autopilot."""
    from leash import Consumer, Queue

    queues = [
        Queue(name, quantum=4 * (n + 1), rate=1_000_000, burst=job.window)
        for n, name in enumerate(job.queues)
    ]
    consumer = Consumer(job.uri, queues=queues, workers=1, rate=10_000_000, burst=1_000_000)
    done = threading.Event()
    seen = 0

    @consumer.handler
    def handle(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == job.count:
            done.set()

    with consumer:
        done.wait()


def leash_publisher(job: Job) -> None:
    """One by one from `window` threads, in bulk, or with the confirms awaited later."""
    from leash import Publisher

    body, queue = b"x" * job.size, job.queues[0]
    with Publisher(job.uri) as publisher:
        if job.action == "publish-threads":
            _in_threads(job, lambda count: [publisher.publish(body, queue) for _ in range(count)])
        elif job.action == "publish-later":
            sent = [publisher.send(body, queue) for _ in range(job.count)]
            for each in sent:
                each.result()
        else:
            publisher.publish_many((body for _ in range(job.count)), queue)


def pika_publisher(job: Job) -> None:
    """It has no way but one by one, and a connection is one thread's."""
    import pika

    body, persistent = b"x" * job.size, pika.BasicProperties(delivery_mode=2)

    def work(count: int) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(job.uri))
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", job.queues[0], body, persistent, mandatory=True)
        connection.close()

    if job.action == "publish-threads":
        _in_threads(job, work)
    else:
        work(job.count)


def on_one_core(work: Callable[[Job], None]) -> Callable[[Job], None]:
    """Python runs one thread at a time anyway; on one core, none is woken on another for it."""

    def run(job: Job) -> None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        work(job)

    return run


def _in_threads(job: Job, work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(job.count // job.window,)) for _ in range(job.window)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


CLIENTS: dict[str, tuple[Callable[[Job], None], str]] = {
    "leash": (leash, "leash.amqp"),
    "leash.Consumer": (leash_consumer, "leash.consumer.consumer"),
    "leash.Publisher": (leash_publisher, "leash.publisher"),
    "leash.Publisher, on one core": (on_one_core(leash_publisher), "leash.publisher"),
    "pika": (pika, "pika"),
    "pika publisher": (pika_publisher, "pika"),
    "pika publisher, on one core": (on_one_core(pika_publisher), "pika"),
    "amqpstorm": (amqpstorm, "amqpstorm"),
    "aio-pika": (aio_pika, "aio_pika"),
}
"""What to run, and what to import before the clock starts: C has nothing to import."""


def main() -> None:
    job = Job(**json.loads(sys.argv[2]))
    client, module = CLIENTS[sys.argv[1]]
    importlib.import_module(module)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    client(job)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{seconds:.6f} {cpu:.6f}")


if __name__ == "__main__":
    main()
