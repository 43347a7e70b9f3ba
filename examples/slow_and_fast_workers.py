"""One queue, two consumers, one a hundred times slower: it must not sit on work that the other could do.

Nobody sets a prefetch here. Each window starts small and follows what its own handlers can do.
"""

import os
import threading
import time

from leash import Consumer, Message, Publisher
from leash.amqp import connect
from leash.amqp.topology import declare_queue, purge_queue

URI = os.environ.get("LEASH_URI", "amqp://localhost")
COUNT = 2000

handled = {"slow": 0, "fast": 0}
done = threading.Event()


def a_consumer(name: str, seconds: float) -> Consumer:
    consumer = Consumer(URI, ["pictures"], name=name)

    @consumer.handler
    def work(_: Message) -> None:
        time.sleep(seconds)
        handled[name] += 1
        if sum(handled.values()) == COUNT:
            done.set()

    return consumer


def fill() -> None:
    with connect(URI) as connection:
        channel = connection.channel()
        declare_queue(channel, "pictures")
        purge_queue(channel, "pictures")
    with Publisher(URI) as publisher:
        publisher.publish_many(["a picture"] * COUNT, "pictures")


if __name__ == "__main__":
    fill()
    slow, fast = a_consumer("slow", 0.1), a_consumer("fast", 0.001)
    with slow, fast:
        begin = time.monotonic()
        assert done.wait(30)
        took = time.monotonic() - begin
        window = slow.stats().queues["pictures"].window
    print(
        f"slow handled {handled['slow']}, fast {handled['fast']}, in {took:.1f} s; slow's window is {window}"
    )
    assert handled["slow"] >= 1
    assert handled["fast"] >= 0.9 * COUNT
    assert window <= 4
