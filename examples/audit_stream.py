"""A stream and a queue by one consumer: the audit log keeps everything, and two services read all of it.

Each service stores its offset under its own name. The second run of the first service continues where the
first one was stopped: no message is skipped, and none that was stored comes again.
"""

import os
import threading

from leash import Consumer, Message, Publisher, Queue, Stream
from leash.amqp import connect
from leash.amqp.topology import declare_queue, purge_queue
from leash.streams import Publisher as StreamPublisher
from leash.streams import connect as connect_streams
from leash.streams import create_stream, delete_stream, parse

URI = os.environ.get("LEASH_URI", "amqp://localhost")
PORT = int(os.environ.get("LEASH_STREAM_PORT", "5552"))
EVENTS, JOBS = 3_000, 100


def fill() -> None:
    with connect_streams(parse(URI, PORT)) as connection:
        delete_stream(connection, "audit.log")
        create_stream(connection, "audit.log", {"max-age": "1h"})
    with StreamPublisher(parse(URI, PORT), "audit.log") as publisher:
        publisher.publish([b"event %d" % number for number in range(EVENTS)])
    with connect(URI) as amqp:
        declare_queue(amqp.channel(), "audit.jobs")
        purge_queue(amqp.channel(), "audit.jobs")
    with Publisher(URI) as jobs:
        jobs.publish_many(["a job"] * JOBS, "audit.jobs")


def service(name: str, events: int, queues: list[Queue]) -> list[int]:
    """Read until so many events are handled; returns their offsets."""
    offsets: list[int] = []
    done = threading.Event()
    consumer = Consumer(URI, queues, streams=[Stream("audit.log", 10, name=name)], stream_port=PORT)

    @consumer.handler
    def work(message: Message) -> None:
        if message.offset is not None:
            offsets.append(message.offset)
        if len(offsets) == events:
            consumer.stop()  # begins nothing more
            done.set()

    with consumer:
        assert done.wait(60)
    return offsets


if __name__ == "__main__":
    fill()
    first = service("billing", 1_000, [Queue("audit.jobs")])
    second = service("billing", EVENTS - 1_000, [])
    other = service("search", EVENTS, [])
    print(f"billing handled {len(first)} events, was stopped, and went on with offset {second[0]}")
    print(f"search handled all {len(other)} events by itself")
    assert first + second == list(range(EVENTS))
    assert other == list(range(EVENTS))
