"""One client reading or writing one stream, in a process of its own: prints seconds and CPU seconds.

What happens once in a process, such as imports, is done before, by a run with few messages.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from leash.amqp import Outgoing
from leash.amqp import Publisher as AmqpPublisher
from leash.amqp import connect as connect_amqp
from leash.streams import Publisher, Reader, connect, first_and_end, parse, wire
from leash.streams.subscription import Subscription


def leash_read(job: dict[str, Any]) -> None:
    rows = 0
    with Reader(job["uri"], job["stream"], end=job["count"]) as reader:
        for batch in reader:
            rows += batch.num_rows
    assert rows == job["count"], rows


def socket_read(job: dict[str, Any]) -> None:
    """Chunks taken from the socket, their headers read and nothing else."""
    with connect(job["uri"]) as connection:
        subscription = Subscription(connection, job["stream"], wire.FIRST)
        end = 0
        while end < job["count"]:
            end = subscription.take(60)[-1].end


def rstream_read(job: dict[str, Any]) -> None:
    import rstream

    place = parse(job["uri"])
    host, port = place.hosts[0]

    async def read() -> None:
        consumer = rstream.Consumer(
            host, port=port, username=place.username, password=place.password, vhost=place.vhost
        )
        seen = 0

        async def on_message(_message: Any, _context: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == job["count"]:
                consumer.stop()

        await consumer.start()
        await consumer.subscribe(
            stream=job["stream"],
            callback=on_message,
            decoder=rstream.amqp_decoder,
            offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None),
        )
        await consumer.run()
        await consumer.close()

    asyncio.run(read())


def amqp_read(job: dict[str, Any]) -> None:
    seen = unacked = 0
    with connect_amqp(job["amqp"]) as connection:
        channel = connection.channel()
        channel.qos(10_000)
        channel.consume(job["stream"], arguments={"x-stream-offset": "first"})
        while seen < job["count"]:
            batch = channel.deliveries(60)
            assert batch is not None
            seen += len(batch)
            unacked += len(batch)
            if unacked >= 5000:
                channel.ack(batch.tags[-1], multiple=True)
                unacked = 0


def leash_messages(job: dict[str, Any]) -> Any:
    return pa.array([b"x" * job["size"]] * job["count"])


def leash_write(job: dict[str, Any], column: Any) -> None:
    with Publisher(job["uri"], job["stream"]) as publisher:
        publisher.publish(column)


def amqp_messages(job: dict[str, Any]) -> Any:
    return [Outgoing(b"x" * job["size"], "", job["stream"]) for _ in range(job["count"])]


def amqp_write(job: dict[str, Any], messages: Any) -> None:
    with connect_amqp(job["amqp"]) as connection, AmqpPublisher(connection) as publisher:
        publisher.publish(messages)


def rstream_messages(job: dict[str, Any]) -> Any:
    import rstream

    return [rstream.AMQPMessage(body=b"x" * job["size"]) for _ in range(job["count"])]


def rstream_write(job: dict[str, Any], messages: Any) -> None:
    import rstream

    place = parse(job["uri"])
    host, port = place.hosts[0]

    async def write() -> None:
        async with rstream.Producer(
            host, port=port, username=place.username, password=place.password, vhost=place.vhost
        ) as producer:
            for at in range(0, len(messages), 1000):
                await producer.send_batch(job["stream"], list(messages[at : at + 1000]))
        with connect(job["uri"]) as connection:  # it does not wait for confirms
            while first_and_end(connection, job["stream"]).end < job["count"]:
                await asyncio.sleep(0.01)

    asyncio.run(write())


READ = {
    "leash": leash_read,
    "bare socket": socket_read,
    "AMQP 0-9-1": amqp_read,
    "rstream": rstream_read,
}
WRITE = {
    "leash": (leash_messages, leash_write),
    "AMQP 0-9-1": (amqp_messages, amqp_write),
    "rstream": (rstream_messages, rstream_write),
}
CLIENTS = {"read": list(READ), "write": list(WRITE)}


def prepared(client: str, job: dict[str, Any]) -> Callable[[], None]:
    """What is measured. The messages to write are there before, each client's own kind."""
    if job["action"] == "read":
        return lambda: READ[client](job)
    make, write = WRITE[client]
    messages = make(job)
    return lambda: write(job, messages)


def main() -> None:
    client, text = sys.argv[1:]
    job = json.loads(text)
    prepared(client, job | job["warm_up"])()
    run = prepared(client, job)
    began, cpu = time.perf_counter(), time.process_time()
    run()
    print(time.perf_counter() - began, time.process_time() - cpu)


if __name__ == "__main__":
    main()
